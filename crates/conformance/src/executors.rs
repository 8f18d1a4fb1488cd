//! The executors under test.

use plimsoll_cpu::{Cpu, isa::Isa};
use plimsoll_plan::Executor;
use std::path::Path;

/// Every executor that must agree with the reference. A new executor is a line here.
pub static EXECUTORS: &[ExecutorEntry] =
    &[ExecutorEntry { name: "cpu", make: |options| cpu(Isa::detect(), options) }];

/// The CPU with older instruction sets; [`EXECUTORS`] has it with the best one of this machine.
pub static OLDER_INSTRUCTION_SETS: &[ExecutorEntry] = &[
    ExecutorEntry { name: "cpu, portable", make: |options| cpu(Isa::Portable, options) },
    ExecutorEntry { name: "cpu, avx2", make: |options| cpu(Isa::Avx2, options) },
];

/// An executor under test.
pub struct ExecutorEntry {
    /// Its name, for messages.
    pub name: &'static str,
    make: fn(options: &Options<'_>) -> Box<dyn Executor>,
}

/// What tests ask of an executor.
struct Options<'a> {
    threads: usize,
    /// Whether its memory checker is on.
    checked: bool,
    /// The folder to offload to, if it may.
    spill: Option<&'a Path>,
}

impl ExecutorEntry {
    /// The executor on this many threads.
    pub fn on(&self, threads: usize) -> Box<dyn Executor> {
        (self.make)(&Options { threads, checked: false, spill: None })
    }

    /// The executor on this many threads, with its memory checker on.
    pub fn checked(&self, threads: usize) -> Box<dyn Executor> {
        (self.make)(&Options { threads, checked: true, spill: None })
    }

    /// The executor on this many threads, with its memory checker on or off, that may offload to a folder.
    pub fn offloading(&self, threads: usize, checked: bool, folder: &Path) -> Box<dyn Executor> {
        (self.make)(&Options { threads, checked, spill: Some(folder) })
    }
}

/// [`EXECUTORS`] and [`OLDER_INSTRUCTION_SETS`]: every set of kernels that this machine can run.
pub fn kernel_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    EXECUTORS.iter().chain(OLDER_INSTRUCTION_SETS)
}

/// An executor on two threads, for tests that are not about executors.
pub fn any_executor() -> Box<dyn Executor> {
    EXECUTORS[0].on(2)
}

fn cpu(isa: Isa, options: &Options<'_>) -> Box<dyn Executor> {
    let cpu = Cpu::with_isa(options.threads, isa).expect("worker threads");
    let cpu = if options.checked { cpu.checked() } else { cpu };
    Box::new(match options.spill {
        Some(folder) => cpu.spilling(folder),
        None => cpu,
    })
}
