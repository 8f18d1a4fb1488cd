//! The packets of a trace, and the file that they go to. Field numbers are those of Perfetto's `trace_packet.proto`,
//! `track_descriptor.proto` and `track_event.proto`.

use crate::proto::Message;
use crate::{BUFFER_BYTES, Value};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

/// Bytes that one packet takes at most: names are cut off.
const PACKET_BYTES: usize = 4 << 10;
/// Bytes of a name or a text at most.
const TEXT_BYTES: usize = 256;
/// The most counters, which are named in the code.
const MOST_COUNTERS: usize = 64;

/// The track of the process.
const PROCESS: u64 = 1;
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
/// The unit of a counter of bytes.
const SIZE_BYTES: u64 = 3;

/// A trace on its way to its file.
pub(crate) struct TraceFile {
    file: File,
    /// When the trace began.
    start: Instant,
    packets: Message,
    /// The track of the newest thread or counter.
    last_track: u64,
    counters: Vec<(Option<u64>, &'static str, u64)>,
    process: u64,
    /// The first error; nothing is written after it.
    failed: Option<io::Error>,
}

impl TraceFile {
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut trace = Self {
            file: File::create(path)?,
            start: Instant::now(),
            packets: Message::with_capacity(BUFFER_BYTES),
            last_track: PROCESS,
            counters: Vec::with_capacity(MOST_COUNTERS),
            process: u64::from(std::process::id()),
            failed: None,
        };
        let process = trace.process;
        trace.descriptor(PROCESS, |descriptor| {
            descriptor.message(3, |of| {
                of.uint(1, process);
                of.text(6, "plimsoll");
            });
        });
        Ok(trace)
    }

    /// Adds the track of the calling thread.
    pub fn thread_track(&mut self) -> u64 {
        self.last_track += 1;
        let (track, process) = (self.last_track, self.process);
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
        track
    }

    pub fn span(
        &mut self,
        track: u64,
        [from, to]: [Instant; 2],
        category: &str,
        name: &str,
        arguments: &[(&str, Value<'_>)],
    ) {
        self.event(track, from, SLICE_BEGIN, |event| {
            event.text(22, category);
            event.text(23, cut(name));
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
        });
        self.event(track, to, SLICE_END, |_| {});
    }

    /// A counter of the process, or of a thread's track.
    pub fn counter(&mut self, of: Option<u64>, name: &'static str, at: Instant, bytes: u64) {
        let found = self.counters.iter().find(|(parent, known, _)| (*parent, *known) == (of, name));
        let track = match found {
            Some((.., track)) => *track,
            None if self.counters.len() == MOST_COUNTERS => return,
            None => {
                self.last_track += 1;
                let track = self.last_track;
                self.counters.push((of, name, track));
                self.descriptor(track, |descriptor| {
                    descriptor.text(2, name);
                    descriptor.uint(5, of.unwrap_or(PROCESS));
                    descriptor.message(8, |counter| counter.uint(3, SIZE_BYTES));
                });
                track
            }
        };
        self.event(track, at, COUNTER, |event| event.int(30, bytes as i64));
    }

    pub fn flush(&mut self) -> io::Result<()> {
        if self.failed.is_none()
            && let Err(error) = self.file.write_all(self.packets.as_bytes())
        {
            self.failed = Some(error);
        }
        self.packets.clear();
        match &self.failed {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
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
        if self.packets.as_bytes().len() + PACKET_BYTES > BUFFER_BYTES {
            // The error is kept, and told by the next call that can tell it.
            let _ = self.flush();
        }
        self.packets.message(PACKET, |packet| {
            packet.uint(SEQUENCE_ID, SEQUENCE);
            write(packet);
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
