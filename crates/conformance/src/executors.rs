//! The executors under test.

use plimsoll_cpu::Cpu;
use plimsoll_cpu::isa::{Isa, UnavailableIsa};
use plimsoll_plan::Executor;
use plimsoll_testing::or_skip;

/// An executor under test.
pub struct ExecutorEntry {
    /// Its name, for messages.
    pub name: &'static str,
    /// The instruction set that it needs, if not every machine can run it.
    isa: Option<Isa>,
    /// On this many threads, and with its memory checker on or off.
    make: fn(threads: usize, checked: bool) -> Box<dyn Executor>,
}

impl ExecutorEntry {
    /// Itself, if this machine can run it.
    fn available(&self) -> Result<&Self, UnavailableIsa> {
        self.isa.map_or(Ok(self), |isa| isa.available().map(|_| self))
    }

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
    [ExecutorEntry { name: "cpu", isa: None, make: |threads, checked| cpu(Isa::detect(), threads, checked) }];

/// The CPU with older instruction sets; [`EXECUTORS`] has it with the best one of this machine.
static OLDER_INSTRUCTION_SETS: [ExecutorEntry; 2] = [
    ExecutorEntry {
        name: "cpu, portable",
        isa: Some(Isa::Portable),
        make: |threads, checked| cpu(Isa::Portable, threads, checked),
    },
    ExecutorEntry {
        name: "cpu, avx2",
        isa: Some(Isa::Avx2),
        make: |threads, checked| cpu(Isa::Avx2, threads, checked),
    },
];

/// The CPU with those older instruction sets that this machine has; says which are skipped.
pub fn older_instruction_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    OLDER_INSTRUCTION_SETS.iter().filter_map(|entry| or_skip(entry.available()))
}

/// [`EXECUTORS`] and [`older_instruction_sets`]: every set of kernels that this machine can run.
pub fn kernel_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    EXECUTORS.iter().chain(older_instruction_sets())
}

/// An executor on two threads, for tests that are not about executors.
pub fn any_executor() -> Box<dyn Executor> {
    EXECUTORS[0].on(2)
}

fn cpu(isa: Isa, threads: usize, checked: bool) -> Box<dyn Executor> {
    let cpu = Cpu::with_isa(threads, isa).expect("an instruction set that was found, and worker threads");
    Box::new(if checked { cpu.checked() } else { cpu })
}
