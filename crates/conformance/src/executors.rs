//! The executors under test.

use plimsoll_cpu::{Cpu, isa::Isa};
use plimsoll_plan::Executor;

/// An executor under test.
pub struct ExecutorEntry {
    /// Its name, for messages.
    pub name: &'static str,
    /// On this many threads, and with its memory checker on or off.
    make: fn(threads: usize, checked: bool) -> Box<dyn Executor>,
}

impl ExecutorEntry {
    /// The executor on this many threads.
    pub fn on(&self, threads: usize) -> Box<dyn Executor> {
        (self.make)(threads, false)
    }

    /// The executor on this many threads, with its memory checker on.
    pub fn checked(&self, threads: usize) -> Box<dyn Executor> {
        (self.make)(threads, true)
    }
}

/// Every executor that must agree with the reference. A new executor is a row here.
pub static EXECUTORS: [ExecutorEntry; 1] =
    [ExecutorEntry { name: "cpu", make: |threads, checked| cpu(Isa::detect(), threads, checked) }];

/// The CPU with older instruction sets; [`EXECUTORS`] has it with the best one of this machine.
pub static OLDER_INSTRUCTION_SETS: [ExecutorEntry; 2] = [
    ExecutorEntry { name: "cpu, portable", make: |threads, checked| cpu(Isa::Portable, threads, checked) },
    ExecutorEntry { name: "cpu, avx2", make: |threads, checked| cpu(Isa::Avx2, threads, checked) },
];

/// [`EXECUTORS`] and [`OLDER_INSTRUCTION_SETS`]: every set of kernels that this machine can run.
pub fn kernel_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    EXECUTORS.iter().chain(&OLDER_INSTRUCTION_SETS)
}

/// An executor on two threads, for tests that are not about executors.
pub fn any_executor() -> Box<dyn Executor> {
    EXECUTORS[0].on(2)
}

fn cpu(isa: Isa, threads: usize, checked: bool) -> Box<dyn Executor> {
    let cpu = Cpu::with_isa(threads, isa).expect("worker threads");
    Box::new(if checked { cpu.checked() } else { cpu })
}
