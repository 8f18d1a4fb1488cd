//! The executors under test.

use plimsoll_cpu::Cpu;
use plimsoll_cpu::isa::{Isa, UnavailableIsa};
use plimsoll_cuda::emulator::Emulator;
use plimsoll_cuda::{Cuda, Gpu};
use plimsoll_eager::Eager;
use plimsoll_plan::{Executor, Link};
use plimsoll_runtime::KernelExecutor;
use plimsoll_runtime::transfer::DISK;
use plimsoll_simulated::Simulated;
use plimsoll_tensor::DType;
use plimsoll_testing::or_skip;
use std::cell::Cell;
use std::path::Path;

/// Every executor that must agree with the reference. A new executor is a line here.
static EXECUTORS: &[ExecutorEntry] = &[
    ExecutorEntry { name: "cpu", isa: None, make: |options| cpu(Isa::detect(), options) },
    ExecutorEntry { name: "simulated accelerator", isa: None, make: simulated },
];

/// The CPU with every instruction set that differs in more than products of bf16; [`executors`] has it with the best one of
/// this machine.
static INSTRUCTION_SETS: &[ExecutorEntry] = &[
    ExecutorEntry {
        name: "cpu, portable",
        isa: Some(Isa::Portable),
        make: |options| cpu(Isa::Portable, options),
    },
    ExecutorEntry { name: "cpu, avx2", isa: Some(Isa::Avx2), make: |options| cpu(Isa::Avx2, options) },
    ExecutorEntry { name: "cpu, avx512", isa: Some(Isa::Avx512), make: |options| cpu(Isa::Avx512, options) },
    ExecutorEntry { name: "cpu, neon", isa: Some(Isa::Neon), make: |options| cpu(Isa::Neon, options) },
];

/// The CPU with the instruction sets that multiply bf16, emulated where this machine lacks them.
static PRODUCTS_OF_BF16: &[ExecutorEntry] = &[
    ExecutorEntry {
        name: "cpu, avx512-bf16",
        isa: Some(Isa::Avx512),
        make: |options| cpu(Isa::Avx512Bf16, options),
    },
    ExecutorEntry { name: "cpu, amx", isa: Some(Isa::Avx512), make: |options| cpu(Isa::Amx, options) },
];

/// The CUDA kernels, run as code of the host.
static EMULATED_CUDA: &[ExecutorEntry] =
    &[ExecutorEntry { name: "emulated cuda", isa: None, make: emulated_cuda }];

/// A GPU.
static GPU: &[ExecutorEntry] = &[ExecutorEntry { name: "cuda", isa: None, make: cuda }];

/// Both, with products in TF32.
static EMULATED_TF32: &[ExecutorEntry] =
    &[ExecutorEntry { name: "emulated cuda in tf32", isa: None, make: emulated_tf32 }];
static GPU_TF32: &[ExecutorEntry] = &[ExecutorEntry { name: "cuda in tf32", isa: None, make: cuda_tf32 }];

thread_local! {
    /// The executors under test in this thread, if not all of them.
    static INSTEAD: Cell<Option<&'static [ExecutorEntry]>> = const { Cell::new(None) };
}

/// An executor under test.
pub struct ExecutorEntry {
    /// Its name, for messages.
    pub name: &'static str,
    /// The instruction set that it needs, if not every machine can run it.
    isa: Option<Isa>,
    make: fn(options: &Options<'_>) -> Box<dyn KernelExecutor>,
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
    /// Itself, if this machine can run it.
    fn available(&self) -> Result<&Self, UnavailableIsa> {
        self.isa.map_or(Ok(self), |isa| isa.available().map(|_| self))
    }

    /// The executor on this many threads.
    pub fn on(&self, threads: usize) -> Box<dyn Executor> {
        self.kernels(threads)
    }

    /// The executor on this many threads, to run its kernels one by one.
    pub fn kernels(&self, threads: usize) -> Box<dyn KernelExecutor> {
        (self.make)(&Options { threads, checked: false, spill: None })
    }

    /// A context of eager tensors on this many threads.
    pub fn eager(&self, threads: usize) -> Eager {
        let context = Eager::builder().boxed_executor(self.kernels(threads));
        context.build().expect("an executor of this machine")
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

/// The executors under test: every one that must agree with the reference, or what [`on_emulated_cuda`] says.
pub fn executors() -> &'static [ExecutorEntry] {
    INSTEAD.get().unwrap_or(EXECUTORS)
}

/// Runs a test with the CUDA kernels, as code of the host, in place of [`executors`] and [`kernel_sets`]; skipped, with a word,
/// where there is no C++ compiler.
pub fn on_emulated_cuda(test: impl FnOnce()) {
    if or_skip(Emulator::new()).is_some() {
        instead(EMULATED_CUDA, test);
    }
}

/// Runs a test on this machine's first GPU in place of [`executors`] and [`kernel_sets`]; skipped, with a word, where there is
/// none.
pub fn on_gpu(test: impl FnOnce()) {
    if or_skip(Gpu::describe(0)).is_some() {
        instead(GPU, test);
    }
}

/// As [`on_emulated_cuda`], with products in TF32.
pub fn on_emulated_tf32(test: impl FnOnce()) {
    if or_skip(Emulator::new()).is_some() {
        instead(EMULATED_TF32, test);
    }
}

/// As [`on_gpu`], with products in TF32.
pub fn on_gpu_tf32(test: impl FnOnce()) {
    if or_skip(Gpu::describe(0)).is_some_and(|gpu| gpu.has_tf32()) {
        instead(GPU_TF32, test);
    }
}

fn instead(entries: &'static [ExecutorEntry], test: impl FnOnce()) {
    INSTEAD.set(Some(entries));
    test();
    INSTEAD.set(None);
}

/// The CPU with every instruction set of this machine, oldest first, that widens bf16; says which are skipped.
pub fn widening_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    let sets = INSTEAD.get().unwrap_or(INSTRUCTION_SETS);
    sets.iter().filter_map(|entry| or_skip(entry.available()))
}

/// [`widening_sets`] before this machine's best.
pub fn older_instruction_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    widening_sets().filter(|entry| entry.isa != Some(Isa::detect()))
}

/// What multiplies 16-bit floats of a type without widening them. On the CPU these are its instruction sets for bf16, emulated
/// where this machine lacks them; says which are skipped.
pub fn products_of(low: DType) -> impl Iterator<Item = &'static ExecutorEntry> {
    let own: &[ExecutorEntry] = if low == DType::BF16 { PRODUCTS_OF_BF16 } else { &[] };
    INSTEAD.get().unwrap_or(own).iter().filter_map(|entry| or_skip(entry.available()))
}

/// [`executors`] and [`older_instruction_sets`]: every set of kernels that this machine can run.
pub fn kernel_sets() -> impl Iterator<Item = &'static ExecutorEntry> {
    let older = INSTEAD.get().is_none().then(older_instruction_sets);
    executors().iter().chain(older.into_iter().flatten())
}

/// Whether tests that take minutes are complete: with `PLIMSOLL_LONG=1`, as `.ci/long` has it.
pub fn long_tests() -> bool {
    std::env::var_os("PLIMSOLL_LONG").is_some()
}

/// The executors of tests that take minutes: all of them if [`long_tests`], else the first.
pub fn executors_of_long_tests() -> &'static [ExecutorEntry] {
    if long_tests() { executors() } else { &executors()[..1] }
}

/// An executor on two threads, for tests that are not about executors.
pub fn any_executor() -> Box<dyn Executor> {
    executors()[0].on(2)
}

fn cpu(isa: Isa, options: &Options<'_>) -> Box<dyn KernelExecutor> {
    let cpu = Cpu::emulating(options.threads, isa);
    let cpu = cpu.expect("an instruction set that was found, and worker threads");
    let cpu = if options.checked { cpu.checked() } else { cpu };
    Box::new(match options.spill {
        Some(folder) => cpu.spilling(folder),
        None => cpu,
    })
}

/// With a fast link and a fast disk: conformance is not about time.
fn simulated(options: &Options<'_>) -> Box<dyn KernelExecutor> {
    let fast =
        |ns_per_mib| Link { load_ns_per_mib: ns_per_mib, store_ns_per_mib: ns_per_mib, ..Link::default() };
    let accelerator = Simulated::with_link(options.threads, fast(20_000)).expect("worker threads");
    let accelerator = if options.checked { accelerator.checked() } else { accelerator };
    Box::new(match options.spill {
        Some(folder) => accelerator.spilling(folder, fast(200_000)),
        None => accelerator,
    })
}

/// It has one thread.
fn emulated_cuda(options: &Options<'_>) -> Box<dyn KernelExecutor> {
    emulated(Emulator::new().expect("a compiler that was found"), options)
}

fn emulated_tf32(options: &Options<'_>) -> Box<dyn KernelExecutor> {
    emulated(Emulator::new().expect("a compiler that was found").tf32(), options)
}

fn emulated(emulator: Emulator, options: &Options<'_>) -> Box<dyn KernelExecutor> {
    let emulator = if options.checked { emulator.checked() } else { emulator };
    Box::new(match options.spill {
        Some(folder) => emulator.spilling(folder),
        None => emulator,
    })
}

/// It offloads to host memory, and may to a file.
fn cuda(options: &Options<'_>) -> Box<dyn KernelExecutor> {
    on_cuda(Cuda::open(0, None).expect("a GPU that was found"), options)
}

fn cuda_tf32(options: &Options<'_>) -> Box<dyn KernelExecutor> {
    on_cuda(Cuda::open(0, None).and_then(Cuda::tf32).expect("a GPU with TF32 that was found"), options)
}

fn on_cuda(gpu: Cuda, options: &Options<'_>) -> Box<dyn KernelExecutor> {
    let gpu = if options.checked { gpu.checked() } else { gpu };
    Box::new(match options.spill {
        Some(folder) => gpu.spilling(folder, DISK),
        None => gpu,
    })
}
