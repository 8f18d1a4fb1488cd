//! The packets of a trace, and the file that they go to. Field numbers are those of Perfetto's `trace_packet.proto`,
//! `track_descriptor.proto` and `track_event.proto`.
//!
//! A thread writes packets to its lane, which has a lock of its own: threads that end their shares of a kernel together do not wait for
//! each other. A full lane goes to the file.

use crate::proto::Message;
use crate::{BUFFER_BYTES, LANES, LikeSpan, SpanKinds, Value};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a lane's packets: its share without what is not encoded yet and the counters.
const LANE_BYTES: usize = BUFFER_BYTES / LANES
    - MOST_PENDING * size_of::<Pending>()
    - MOST_COUNTERS * size_of::<(u64, &str, u64)>();

/// Bytes that one packet takes at most: names are cut off.
const PACKET_BYTES: usize = 4 << 10;
/// Bytes of a name or a text at most.
const TEXT_BYTES: usize = 256;
/// The most counters of a lane, which are named in the code.
const MOST_COUNTERS: usize = 16;
/// The most spans of a lane that wait to be encoded: those of some training steps, because each step drives the writer's code and
/// buffers out of the caches.
const MOST_PENDING: usize = 384;

/// The track of the process. Those of threads and counters follow.
pub(crate) const PROCESS: u64 = 1;
/// The only sequence of packets.
const SEQUENCE: u64 = 1;

/// `Trace.packet`, and fields of `TracePacket`.
const PACKET: u32 = 1;
const TIMESTAMP: u32 = 8;
const SEQUENCE_ID: u32 = 10;
const TRACK_EVENT: u32 = 11;
const TRACK_DESCRIPTOR: u32 = 60;

/// Kinds of a `TrackEvent`.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;
/// Fields of a `TrackEvent` for counters that have a value at its time: their values, and their tracks.
const EXTRA_COUNTER_VALUES: u32 = 12;
const EXTRA_COUNTER_TRACKS: u32 = 31;
/// The unit of a counter of bytes.
const SIZE_BYTES: u64 = 3;

/// A span that is not encoded yet.
struct Pending {
    track: u64,
    what: What,
}

/// What a span that is not encoded yet says.
enum What {
    Named {
        started: Instant,
        time: Duration,
        category: &'static str,
        name: &'static str,
    },
    /// Of the lane's kinds.
    Like(LikeSpan),
}

/// The file of a trace.
pub(crate) struct TraceFile {
    file: File,
    /// The first error; nothing is written after it.
    failed: Option<io::Error>,
}

impl TraceFile {
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, failed: None })
    }

    /// Writes packets, unless an earlier write failed. That error is told by the next call that can tell it.
    pub fn write(&mut self, packets: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.file.write_all(packets).err();
        }
    }

    /// The first error.
    pub fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }
}

/// Packets of some threads on their way to the file.
pub(crate) struct Lane {
    /// When the trace began.
    start: Instant,
    packets: Message,
    /// Counters that were described, by their owner's track and name.
    counters: Vec<(u64, &'static str, u64)>,
    pending: Vec<Pending>,
    /// The kinds of those that are of one.
    kinds: Option<Arc<SpanKinds>>,
    process: u64,
}

impl Lane {
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            packets: Message::with_capacity(LANE_BYTES),
            counters: Vec::with_capacity(MOST_COUNTERS),
            pending: Vec::with_capacity(MOST_PENDING),
            kinds: None,
            process: u64::from(std::process::id()),
        }
    }

    /// Describes the process, before anything else.
    pub fn describe_process(&mut self) {
        let process = self.process;
        self.descriptor(PROCESS, |descriptor| {
            descriptor.message(3, |of| {
                of.uint(1, process);
                of.text(6, "plimsoll");
            });
        });
    }

    /// Describes the calling thread's track.
    pub fn describe_thread(&mut self, track: u64) {
        let process = self.process;
        let thread = thread_id().unwrap_or(process + track);
        let current = std::thread::current();
        self.descriptor(track, |descriptor| {
            descriptor.uint(5, PROCESS);
            descriptor.message(4, |of| {
                of.uint(1, process);
                of.uint(2, thread);
                of.text(5, cut(current.name().unwrap_or("thread")));
            });
        });
    }

    pub fn span(
        &mut self,
        track: u64,
        [from, to]: [Instant; 2],
        category: &str,
        name: &str,
        arguments: &[(&str, Value<'_>)],
    ) {
        self.event(track, from, SLICE_BEGIN, |event| write_kind(event, category, name, arguments));
        self.event(track, to, SLICE_END, |_| {});
    }

    /// A span that is encoded later, with others, which takes less time.
    pub fn span_later(
        &mut self,
        track: u64,
        (started, time): (Instant, Duration),
        category: &'static str,
        name: &'static str,
    ) {
        self.later(track, What::Named { started, time, category, name });
    }

    /// A span of one of these kinds, encoded later.
    pub fn span_like(&mut self, track: u64, kinds: &Arc<SpanKinds>, span: LikeSpan) {
        if self.kinds.as_ref().is_none_or(|own| !Arc::ptr_eq(own, kinds)) {
            self.write_pending();
            self.kinds = Some(kinds.clone());
        }
        self.later(track, What::Like(span));
    }

    fn later(&mut self, track: u64, what: What) {
        if self.pending.len() == MOST_PENDING {
            self.write_pending();
        }
        self.pending.push(Pending { track, what });
    }

    fn write_pending(&mut self) {
        let (mut pending, kinds) = (std::mem::take(&mut self.pending), self.kinds.clone());
        for Pending { track, what } in pending.drain(..) {
            match (what, &kinds) {
                (What::Named { started, time, category, name }, _) => {
                    self.span(track, [started, started + time], category, name, &[]);
                }
                (What::Like(span), Some(kinds)) => self.write_like(track, kinds, &span),
                (What::Like(_), None) => {}
            }
        }
        // Its memory is used again.
        self.pending = pending;
    }

    /// Encodes a span of one of these kinds. The counter's bytes are in the packet of its beginning.
    fn write_like(&mut self, track: u64, kinds: &SpanKinds, span: &LikeSpan) {
        let Some(kind) = kinds.kinds.get(span.kind as usize) else { return };
        let counter = self.counter_track(track, kinds.counter);
        self.event(track, span.started, SLICE_BEGIN, |event| {
            event.append(&kind.0);
            for (name, value) in span.arguments.iter().zip(span.values) {
                write_arguments(event, &[(name, Value::Count(value.into()))]);
            }
            if let Some(counter) = counter {
                event.int(EXTRA_COUNTER_VALUES, span.bytes as i64);
                event.uint(EXTRA_COUNTER_TRACKS, counter);
            }
        });
        self.event(track, span.started + span.time, SLICE_END, |_| {});
    }

    /// A counter of the process.
    pub fn counter(&mut self, name: &'static str, at: Instant, bytes: u64) {
        if let Some(track) = self.counter_track(PROCESS, name) {
            self.event(track, at, COUNTER, |event| event.int(30, bytes as i64));
        }
    }

    /// The track of a counter of the process or of a thread, which is described when it is new; `None` where there are too many.
    fn counter_track(&mut self, of: u64, name: &'static str) -> Option<u64> {
        let found = self.counters.iter().find(|(owner, known, _)| (*owner, *known) == (of, name));
        if let Some((.., track)) = found {
            return Some(*track);
        }
        if self.counters.len() == MOST_COUNTERS {
            return None;
        }
        let track = crate::next_track();
        self.counters.push((of, name, track));
        self.descriptor(track, |descriptor| {
            descriptor.text(2, name);
            descriptor.uint(5, of);
            descriptor.message(8, |counter| counter.uint(3, SIZE_BYTES));
        });
        Some(track)
    }

    /// Writes everything.
    pub fn finish(&mut self) {
        self.write_pending();
        self.flush();
    }

    fn flush(&mut self) {
        if let Some(file) = crate::file().as_mut() {
            file.write(self.packets.as_bytes());
        }
        self.packets.clear();
    }

    fn descriptor(&mut self, track: u64, write: impl FnOnce(&mut Message)) {
        self.packet(|packet| {
            packet.message(TRACK_DESCRIPTOR, |descriptor| {
                descriptor.uint(1, track);
                write(descriptor);
            });
        });
    }

    fn event(&mut self, track: u64, at: Instant, kind: u64, write: impl FnOnce(&mut Message)) {
        // What began before the trace is drawn from its start.
        let nanoseconds = at.saturating_duration_since(self.start).as_nanos() as u64;
        self.packet(|packet| {
            packet.uint(TIMESTAMP, nanoseconds);
            packet.message(TRACK_EVENT, |event| {
                event.uint(9, kind);
                event.uint(11, track);
                write(event);
            });
        });
    }

    fn packet(&mut self, write: impl FnOnce(&mut Message)) {
        if self.packets.as_bytes().len() + PACKET_BYTES > LANE_BYTES {
            self.flush();
        }
        self.packets.message(PACKET, |packet| {
            packet.uint(SEQUENCE_ID, SEQUENCE);
            write(packet);
        });
    }
}

/// The fields of a `TrackEvent` that say what it is.
pub(crate) fn write_kind(event: &mut Message, category: &str, name: &str, arguments: &[(&str, Value<'_>)]) {
    event.text(22, category);
    event.text(23, cut(name));
    write_arguments(event, arguments);
}

fn write_arguments(event: &mut Message, arguments: &[(&str, Value<'_>)]) {
    for (name, value) in arguments {
        event.message(4, |annotation| {
            annotation.text(10, name);
            match *value {
                Value::Count(count) => annotation.uint(3, count),
                Value::Number(number) => annotation.double(5, number),
                Value::Text(text) => annotation.text(6, cut(text)),
            }
        });
    }
}

/// The start of a text.
fn cut(text: &str) -> &str {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The system's number of the calling thread.
fn thread_id() -> Option<u64> {
    std::fs::read_link("/proc/thread-self").ok()?.file_name()?.to_str()?.parse().ok()
}
