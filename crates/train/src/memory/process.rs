//! What a process needs besides its arena: entries of the load sheet.

use super::watchdog::page_bytes;
use super::{Watchdog, heap_parts, status, status_count, trim_code, trim_heap};
use crate::files::STATE_BUFFER_BYTES;
use crate::trainer::Trainer;
use plimsoll_data::{DATA_SET, Dataset};
use plimsoll_plan::Entry;
use plimsoll_plan::sheet::{HEAP_CAP, STATE_BUFFER};

/// The heap besides plans, data and buffers: arguments, text, headers of files, what logs of events keep (50 KiB each).
const HEAP_BYTES: usize = (3 << 19) - STATE_BUFFER_BYTES;
/// Resident part of one thread's stack and its kernel structures, with pages of 4 KiB.
const THREAD_BYTES: usize = 12 << 10;
/// Pages of a thread, of whatever size: of its stack, and of its own variables at the stack's other end.
const THREAD_PAGES: usize = 2;
/// Code and constants of planner, kernels and training loop that become resident after a measurement of the program.
const CODE_BYTES: usize = 7 << 20;
/// Measured figures are rounded up to this, so that two runs of a program get the same plan.
const ROUNDING: usize = 1 << 20;

/// What a process holds besides the plan: its program, threads, heap and data. A trainer's line covers it by default,
/// measured when the run is planned; declare what your own code will hold later with [`Trainer::outside`]. A [`Watchdog`]
/// stops a run whose undeclared memory brings the process close to the line.
///
/// ```
/// use plimsoll_data::datasets;
/// use plimsoll_nn::{AdamW, zoo};
/// use plimsoll_plan::MiB;
/// use plimsoll_train::Trainer;
/// let data = datasets::mnist()?;
/// let plan = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory(MiB(128)).plan(&data)?;
/// let sheet = plan.load_sheet();
/// assert!(sheet.total_bytes > sheet.arena_bytes + data.resident_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Process {
    /// The program and its threads, where they are known.
    known: Option<Known>,
    watches: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    program_bytes: usize,
    threads: usize,
}

impl Default for Process {
    /// Measures the process when a run is planned.
    fn default() -> Self {
        Self { known: None, watches: true }
    }
}

impl Process {
    /// A process whose resident code and number of threads were measured before, so that every run of it has the same load
    /// sheet. It holds nothing else before planning but arguments and data.
    pub fn known(program_bytes: usize, threads: usize) -> Self {
        Self { known: Some(Known { program_bytes, threads }), ..Self::default() }
    }

    /// Does not watch the process while it trains.
    pub fn unwatched(self) -> Self {
        Self { watches: false, ..self }
    }

    /// Bytes of the program, and its threads.
    fn program_and_threads(&self) -> (usize, usize) {
        match self.known {
            Some(known) => (known.program_bytes, known.threads),
            None => (measured_program(), status_count("Threads").unwrap_or(1)),
        }
    }

    /// The entries of a process that runs no plan: its program, threads and heap.
    pub fn entries(&self) -> Vec<Entry> {
        let (program_bytes, threads) = self.program_and_threads();
        vec![
            program_entry(program_bytes),
            threads_entry(threads),
            Entry::new(HEAP_CAP, HEAP_BYTES, "names, text"),
        ]
    }

    /// The trainer with this process's entries, heap and watchdog.
    pub(crate) fn account(&self, trainer: Trainer, data: &Dataset) -> Trainer {
        let (program_bytes, threads) = self.program_and_threads();
        let held = if self.known.is_some() { 0 } else { held_already(&trainer, data) };
        let entries = [
            program_entry(program_bytes),
            threads_entry(threads),
            Entry::new(DATA_SET, data.resident_bytes(), "examples, or the list of files"),
            Entry::new(STATE_BUFFER, STATE_BUFFER_BYTES, "states on their way to and from files"),
        ];
        let held = (held > 0).then(|| Entry::new("held already", held, "by this program when it planned"));
        // Where the process is measured, that is in the measurement.
        let connection = trainer.connected().filter(|_| self.known.is_some()).map(|ranks| {
            Entry::new("connection", ranks.bytes(), "the library that connects the ranks, and its buffers")
        });
        let trainer =
            trainer.outside_first(entries.into_iter().chain(held).chain(connection)).heap(HEAP_BYTES);
        if !self.watches || trainer.watch.is_some() {
            return trainer;
        }
        trainer.watch(Watchdog::new().files(program_bytes).heap(heap_parts))
    }
}

fn program_entry(bytes: usize) -> Entry {
    Entry::new("program", bytes, "code, constants, libraries")
}

fn threads_entry(threads: usize) -> Entry {
    let each = thread_bytes();
    Entry::new("threads", threads * each, format!("{threads} × {} KiB of stack", each >> 10))
}

/// What a thread takes.
pub(crate) fn thread_bytes() -> usize {
    THREAD_BYTES.max(THREAD_PAGES * page_bytes())
}

/// Resident code and constants, and those of the run to come.
fn measured_program() -> usize {
    // What was needed up to now is dropped before a run starts.
    trim_code();
    (status("RssFile").unwrap_or(0) + CODE_BYTES).next_multiple_of(ROUNDING)
}

/// Memory of the process that neither the data nor the heap's entry covers.
fn held_already(trainer: &Trainer, data: &Dataset) -> usize {
    // What was freed is not held.
    trim_heap();
    let own = status("RssAnon").unwrap_or(0) + status("VmSwap").unwrap_or(0);
    let covered = data.resident_bytes() + HEAP_BYTES + trainer.declared_bytes() + trainer.model_bytes();
    own.saturating_sub(covered).next_multiple_of(ROUNDING)
}
