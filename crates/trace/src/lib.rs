//! Spans and counters of a run, written to a file as a Perfetto trace (`TrackEvent` packets).
//!
//! A process has at most one trace at a time, as it has one log. What is worth seeing asks [`now`] before it starts and calls
//! [`span`] when it is over; both do nothing while nothing is recorded, which costs one load of an atomic. Packets go through a
//! buffer of [`BUFFER_BYTES`] to the file, so a trace takes the same memory however long it is. A file that was cut off holds
//! whole packets up to the cut.

mod file;
pub mod proto;

use file::TraceFile;
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of the buffer before the file.
pub const BUFFER_BYTES: usize = 64 << 10;

/// Whether spans and counters are recorded now.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// The trace, if there is one.
static TRACE: Mutex<Option<TraceFile>> = Mutex::new(None);
/// Numbers traces, so that a thread's track of an earlier one is not used again.
static GENERATION: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread's track: the trace's number, and the track's.
    static TRACK: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The kernel that this thread runs.
    static KERNEL: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// What an argument of a span says.
#[derive(Clone, Copy, Debug)]
pub enum Value<'v> {
    /// A count, or bytes.
    Count(u64),
    /// A number.
    Number(f64),
    /// Text.
    Text(&'v str),
}

/// The trace of this process, until it is dropped. Nothing is recorded until [`Trace::record`].
#[derive(Debug)]
pub struct Trace(());

impl Trace {
    /// Creates the file, or replaces it.
    ///
    /// # Errors
    /// If the file cannot be written, or the process has a trace already.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut trace = locked();
        if trace.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "this process writes a trace already"));
        }
        *trace = Some(TraceFile::create(path)?);
        GENERATION.fetch_add(1, Relaxed);
        Ok(Self(()))
    }

    /// Records from now on, or no longer.
    pub fn record(&self, on: bool) {
        RECORDING.store(on, Relaxed);
    }

    /// Writes what is in the buffer.
    ///
    /// # Errors
    /// The first of the trace: after it nothing was written.
    pub fn flush(&self) -> io::Result<()> {
        locked().as_mut().map_or(Ok(()), TraceFile::flush)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.record(false);
        if let Some(mut file) = locked().take() {
            // Who wants to know of an error has flushed before.
            let _ = file.flush();
        }
    }
}

/// Whether this process has a trace, recording or not.
pub fn is_created() -> bool {
    locked().is_some()
}

/// Whether spans and counters are recorded.
#[inline]
pub fn is_recording() -> bool {
    RECORDING.load(Relaxed)
}

/// The start of a span, if spans are recorded.
#[inline]
pub fn now() -> Option<Instant> {
    is_recording().then(Instant::now)
}

/// Records what the calling thread did from `started` until now.
pub fn span(started: Instant, category: &str, name: &str, arguments: &[(&str, Value<'_>)]) {
    span_of(started, started.elapsed(), category, name, arguments);
}

/// As [`span`], for a time that was measured already.
pub fn span_of(
    started: Instant,
    time: Duration,
    category: &str,
    name: &str,
    arguments: &[(&str, Value<'_>)],
) {
    with(|file, track| file.span(track, [started, started + time], category, name, arguments));
}

/// As [`span_of`], and the bytes of a counter of the calling thread that were in use when it started.
pub fn counted_span_of(
    started: Instant,
    time: Duration,
    category: &str,
    name: &str,
    arguments: &[(&str, Value<'_>)],
    (counter, bytes): (&'static str, u64),
) {
    with(|file, track| {
        file.counter(Some(track), counter, started, bytes);
        file.span(track, [started, started + time], category, name, arguments);
    });
}

/// Records bytes that the process has in use now.
pub fn counter(name: &'static str, bytes: u64) {
    with(|file, _| file.counter(None, name, Instant::now(), bytes));
}

/// Says which kernel the calling thread runs, for the threads that help it.
pub fn set_kernel(name: Option<&'static str>) {
    KERNEL.set(name);
}

/// The kernel that the calling thread runs, if spans are recorded.
#[inline]
pub fn kernel() -> Option<&'static str> {
    if is_recording() { KERNEL.get() } else { None }
}

/// Calls a function with the file and the calling thread's track, if anything is recorded.
fn with(write: impl FnOnce(&mut TraceFile, u64)) {
    if !is_recording() {
        return;
    }
    let mut trace = locked();
    let Some(file) = trace.as_mut() else { return };
    let generation = GENERATION.load(Relaxed);
    let track = match TRACK.get() {
        (of, track) if of == generation => track,
        _ => {
            let track = file.thread_track();
            TRACK.set((generation, track));
            track
        }
    };
    write(file, track);
}

fn locked() -> MutexGuard<'static, Option<TraceFile>> {
    TRACE.lock().unwrap_or_else(PoisonError::into_inner)
}
