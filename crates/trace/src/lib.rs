//! Spans and counters of a run, written to a file as a Perfetto trace (`TrackEvent` packets).
//!
//! A process has at most one trace at a time, as it has one log. What is worth seeing asks [`now`] before it starts and calls
//! [`span`] when it is over; both do nothing while nothing is recorded, which costs one load of an atomic. Packets go through
//! buffers of [`BUFFER_BYTES`] to the file, so a trace takes the same memory however long it is. A file that was cut off holds
//! whole packets up to the cut.

mod file;
pub mod proto;

use file::{Lane, PROCESS, TraceFile};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of the buffers before the file.
pub const BUFFER_BYTES: usize = LANES * (64 << 10);
/// Buffers. More threads than these share them.
const LANES: usize = 8;

/// Whether spans and counters are recorded now.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// The trace's file, if there is a trace.
static FILE: Mutex<Option<TraceFile>> = Mutex::new(None);
/// Its buffers. A thread that holds one may lock the file.
static TRACE: [Mutex<Option<Lane>>; LANES] = [const { Mutex::new(None) }; LANES];
/// The newest track of a thread or counter.
static LAST_TRACK: AtomicU64 = AtomicU64::new(PROCESS);
/// Numbers traces, so that a thread's track of an earlier one is not used again.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// What is repeated is shown for about this long as one span.
const REPEATS: Duration = Duration::from_micros(50);

/// Short things since the clock was read.
#[derive(Clone, Copy)]
struct Repeats {
    started: Option<Instant>,
    /// The first one's number, and how many are over.
    first: u64,
    count: u32,
    /// How many make a span: as many as took about the time of one before.
    most: u32,
}

impl Repeats {
    const NONE: Self = Self { started: None, first: 0, count: 0, most: 1 };
}

thread_local! {
    /// This thread's track: the trace's number, and the track's.
    static TRACK: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// Short things that this thread repeats.
    static REPEATED: Cell<Repeats> = const { Cell::new(Repeats::NONE) };
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

/// The category, the name and the first arguments of spans, encoded once for all of them.
#[derive(Clone, Debug)]
pub struct SpanKind(proto::Message);

impl SpanKind {
    /// The kind of spans with these.
    pub fn new(category: &str, name: &str, arguments: &[(&str, Value<'_>)]) -> Self {
        let mut fields = proto::Message::default();
        file::write_kind(&mut fields, category, name, arguments);
        Self(fields.shrunk())
    }

    /// The bytes that it holds.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.0.as_bytes().len()
    }
}

/// Kinds of spans that a thread's counter goes with.
#[derive(Clone, Debug)]
pub struct SpanKinds {
    /// The kinds, which spans name by their number.
    pub kinds: Vec<SpanKind>,
    /// The name of the counter of bytes.
    pub counter: &'static str,
}

/// A span of one of some kinds.
#[derive(Clone, Copy, Debug)]
pub struct LikeSpan {
    /// When it started.
    pub started: Instant,
    /// How long it took.
    pub time: Duration,
    /// The number of its kind.
    pub kind: u32,
    /// The names of arguments of its own.
    pub arguments: &'static [&'static str],
    /// Their values.
    pub values: [u32; 3],
    /// The counter's bytes when it started.
    pub bytes: u64,
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
        let mut trace = file();
        if trace.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "this process writes a trace already"));
        }
        *trace = Some(TraceFile::create(path)?);
        drop(trace);
        let start = Instant::now();
        GENERATION.fetch_add(1, Relaxed);
        for lane in &TRACE {
            *locked(lane) = Some(Lane::new(start));
        }
        if let Some(lane) = locked(&TRACE[0]).as_mut() {
            lane.describe_process();
            lane.finish();
        }
        Ok(Self(()))
    }

    /// Records from now on, or no longer.
    pub fn record(&self, on: bool) {
        RECORDING.store(on, Relaxed);
    }

    /// Writes what is kept so far.
    ///
    /// # Errors
    /// The first of the trace: after it nothing was written.
    pub fn flush(&self) -> io::Result<()> {
        for lane in &TRACE {
            if let Some(lane) = locked(lane).as_mut() {
                lane.finish();
            }
        }
        file().as_ref().map_or(Ok(()), TraceFile::check)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.record(false);
        // Who wants to know of an error has flushed before.
        let _ = self.flush();
        for lane in &TRACE {
            *locked(lane) = None;
        }
        *file() = None;
    }
}

/// Whether this process has a trace, recording or not.
pub fn is_created() -> bool {
    file().is_some()
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
    with(|lane, track| lane.span(track, [started, started + time], category, name, arguments));
}

/// As [`span_of`], written later: for threads that others wait for.
pub fn span_later(started: Instant, time: Duration, category: &'static str, name: &'static str) {
    with(|lane, track| lane.span_later(track, (started, time), category, name));
}

/// Records a span of the calling thread of one of these kinds. It is written later, as those of [`span_later`].
pub fn span_like(kinds: &Arc<SpanKinds>, span: LikeSpan) {
    with(|lane, track| lane.span_like(track, kinds, span));
}

/// Begins one of many short things of one kind that the calling thread does one after the other. They are shown as one span for some
/// ten microseconds, with the number of the first and how many they are, so that the clock is not read for each.
#[inline]
pub fn repeat_begin(number: u64) {
    if !is_recording() {
        return;
    }
    let repeats = REPEATED.get();
    if repeats.started.is_none() {
        REPEATED.set(Repeats { started: Some(Instant::now()), first: number, count: 0, ..repeats });
    }
}

/// Ends it.
#[inline]
pub fn repeat_end(category: &str, name: &str) {
    let repeats = REPEATED.get();
    if repeats.started.is_some() {
        REPEATED.set(Repeats { count: repeats.count + 1, ..repeats });
        if repeats.count + 1 >= repeats.most {
            repeats_over(category, name);
        }
    }
}

/// The calling thread does something else now, or waits.
pub fn repeats_over(category: &str, name: &str) {
    let Repeats { started, first, count, most } = REPEATED.get();
    let Some(started) = started else { return };
    let time = started.elapsed();
    let fitting = u64::from(count) * REPEATS.as_nanos() as u64 / (time.as_nanos() as u64).max(1);
    // At most twice as many: the first of them may wait for memory that the others have.
    REPEATED.set(Repeats { most: fitting.clamp(1, 2 * u64::from(most)) as u32, ..Repeats::NONE });
    let arguments = [("first", Value::Count(first)), ("count", Value::Count(count.into()))];
    span_of(started, time, category, name, &arguments);
}

/// Records bytes that the process has in use now.
pub fn counter(name: &'static str, bytes: u64) {
    with(|lane, _| lane.counter(name, Instant::now(), bytes));
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

/// Calls a function with the calling thread's buffer and track, if anything is recorded.
fn with(write: impl FnOnce(&mut Lane, u64)) {
    if !is_recording() {
        return;
    }
    let generation = GENERATION.load(Relaxed);
    let (of, known) = TRACK.get();
    let is_known = of == generation;
    let track = if is_known { known } else { next_track() };
    let mut lane = locked(&TRACE[track as usize % LANES]);
    let Some(lane) = lane.as_mut() else { return };
    if !is_known {
        TRACK.set((generation, track));
        lane.describe_thread(track);
    }
    write(lane, track);
}

fn next_track() -> u64 {
    LAST_TRACK.fetch_add(1, Relaxed) + 1
}

fn file() -> MutexGuard<'static, Option<TraceFile>> {
    locked(&FILE)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
