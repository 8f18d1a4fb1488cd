//! A machine with a GPU that computes nothing: it keeps memory, copies and fills it at once, and records what is asked of it.

mod answers;

use super::library::{self, COMPILER, DRIVER, Functions, MANAGEMENT, PRODUCTS};
use super::program::{Addresses, Call, Entry, Kind, Mark, Work};
use answers::Arguments;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the GPU is called.
pub const NAME: &CStr = c"Mock GPU";
/// Its memory, and what another process holds of it.
pub const TOTAL_BYTES: u64 = 4 << 30;
pub const OTHER: (u32, u64) = (4242, 300 << 20);
/// What its context takes.
const CONTEXT_BYTES: u64 = 400 << 20;

/// The driver's code where memory is short.
pub const OUT_OF_MEMORY: u64 = 2;

/// The machine's state.
#[derive(Default)]
pub struct Machine {
    /// Functions that fail, with their codes.
    pub failing: BTreeMap<&'static str, u64>,
    /// The CUDA that the driver runs at most.
    pub driver_version: i32,
    /// Bytes of a piece of device memory from which on there is none.
    pub most_bytes: Option<u64>,
    /// Memory by its start.
    memory: BTreeMap<u64, Memory>,
    context: bool,
    log: Vec<Entry>,
    /// The stream that is captured, and what it was asked to do.
    capturing: Option<(u64, Vec<Work>)>,
    graphs: HashMap<u64, Vec<Work>>,
    /// How many were launched.
    pub launched_graphs: usize,
    sources: HashMap<u64, String>,
    modules: HashMap<u64, Code>,
    /// The bias of a description of products.
    biases: HashMap<u64, u64>,
    handles: u64,
    /// The thread that runs plans, by the system's number.
    main: u64,
}

struct Memory {
    bytes: u64,
    kind: Kind,
}

/// A kernel's code.
struct Code {
    /// Where pointers are among its parameters; none if they are in a table.
    pointers: Option<Vec<usize>>,
    waits: bool,
}

/// One for the process.
static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// Looks at the machine, or changes it.
pub fn with<T>(use_it: impl FnOnce(&mut Machine) -> T) -> T {
    let new = || Machine { driver_version: 13_000, ..Machine::default() };
    let mut machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(machine.get_or_insert_with(new))
}

/// Puts libraries in place of the real ones, without some of their functions. Once in a process.
pub fn install(libraries: &[Functions], without: &[&str]) -> Result<(), String> {
    library::load(libraries, without, answer)
}

/// Puts all of them in place.
pub fn install_all() -> Result<(), String> {
    install(&[DRIVER, COMPILER, PRODUCTS, MANAGEMENT], &[])
}

/// Says something in the record.
pub fn say(mark: Mark) {
    if let Mark::Run(_) = mark {
        let own = std::fs::read_link("/proc/thread-self").ok();
        let own = own.and_then(|path| path.file_name()?.to_str()?.parse().ok());
        with(|machine| machine.main = own.unwrap_or(0));
    }
    with(|machine| machine.log(Call::Said(mark)));
}

/// What was recorded since this was asked the last time.
pub fn taken() -> Vec<Entry> {
    with(|machine| std::mem::take(&mut machine.log))
}

/// The memory of a kind that is there.
pub fn memory(kind: Kind) -> Vec<Addresses> {
    with(|machine| {
        let own = machine.memory.iter().filter(|(_, memory)| memory.kind == kind);
        own.map(|(&start, memory)| start..start + memory.bytes).collect()
    })
}

/// The number of this thread.
fn thread() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    thread_local! { static NUMBER: Cell<u64> = Cell::new(COUNT.fetch_add(1, Ordering::Relaxed)); }
    NUMBER.get()
}

/// Whether this is the thread that moves bytes between the device and the file.
fn is_staged() -> bool {
    std::thread::current().name() == Some("plimsoll-staged")
}

/// Lets the thread that runs plans go on until it waits for something: what it forgot to wait for, it then does too early. What it
/// waited for is not seen here otherwise, because threads do not wait by the driver.
fn as_late_as_can_be() {
    let main = with(|machine| machine.main);
    let asleep = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{main}/stat"));
        stat.map_or(true, |stat| {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
        })
    };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) && !(asleep() && asleep()) {
        std::thread::yield_now();
    }
}

extern "C" fn answer(function: usize, arguments: *const u64) -> u64 {
    let name = library::name(function);
    let orders = name.starts_with("cuMemcpy") || name.contains("Synchronize");
    if orders && is_staged() {
        as_late_as_can_be();
    }
    with(|machine| match machine.failing.get(name) {
        Some(&code) => code,
        // SAFETY: the caller has given the function's arguments, each valid as the library's manual has it.
        None => unsafe { machine.answer(name, Arguments(arguments)) },
    })
}

impl Machine {
    fn log(&mut self, call: Call) {
        self.log.push(Entry { thread: thread(), staged: is_staged(), call });
    }

    fn handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }

    fn used_bytes(&self) -> u64 {
        let device = self.memory.values().filter(|memory| memory.kind == Kind::Device);
        let context = if self.context { CONTEXT_BYTES } else { 0 };
        OTHER.1 + context + device.map(|memory| memory.bytes).sum::<u64>()
    }

    fn allocate(&mut self, kind: Kind, bytes: u64) -> Option<u64> {
        let most = self.most_bytes.unwrap_or(u64::MAX).min(TOTAL_BYTES - self.used_bytes());
        if kind == Kind::Device && bytes > most {
            return None;
        }
        // SAFETY: a layout of some bytes, of which none is used before it is zero.
        let start = unsafe { alloc_zeroed(layout(bytes)) } as u64;
        self.memory.insert(start, Memory { bytes, kind });
        Some(start)
    }

    fn free(&mut self, start: u64) {
        let memory = self.memory.remove(&start).expect("memory that was given");
        // SAFETY: allocated with this layout.
        unsafe { dealloc(start as *mut u8, layout(memory.bytes)) };
        if memory.kind == Kind::Device {
            self.log(Call::FinishAll);
        }
        self.log(Call::Free(start..start + memory.bytes));
    }

    /// The kind of memory that is at an address, if the driver gave it.
    fn kind(&self, address: u64) -> Option<Kind> {
        let before = self.memory.range(..=address).next_back();
        before.filter(|(start, memory)| address < *start + memory.bytes).map(|(_, memory)| memory.kind)
    }

    /// Does something at once, or keeps it for a graph.
    unsafe fn queue(&mut self, stream: u64, work: Work) {
        match &mut self.capturing {
            Some((captured, works)) if *captured == stream => works.push(work),
            _ => {
                // SAFETY: the caller's promise.
                unsafe { done(&work) };
                self.log(Call::Queue { stream, work });
            }
        }
    }
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes.max(1) as usize, 4096).expect("a size of memory")
}

/// Copies or fills. Kernels do nothing.
unsafe fn done(work: &Work) {
    // SAFETY: ranges are valid and apart, by the promise of who asked for it.
    unsafe {
        match *work {
            Work::Copy { from, to, bytes, .. } => {
                (to as *mut u8).copy_from_nonoverlapping(from as *const u8, bytes as usize);
            }
            Work::Fill { to, bytes, byte } => (to as *mut u8).write_bytes(byte, bytes as usize),
            Work::Kernel { .. } | Work::Product { .. } => {}
        }
    }
}
