//! What a plan may use of the machine: the line, and the disk that holds what does not fit.

use crate::Entry;

/// What plans may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The line: a limit for arena and everything outside it together.
    pub line_bytes: usize,
    /// What lies outside the arena: code, stacks, heap, the data pipeline.
    pub outside: Vec<Entry>,
    /// Whether tasks may run twice to stay under the line.
    pub rematerialize: bool,
    /// The disk that states and values may be offloaded to.
    pub offload: Option<Disk>,
    /// Plans with offload that take longer than this are not searched for, because a better one is known.
    pub time_limit_ns: u64,
}

/// The disk of the spill file. Whole numbers, so that planning stays a pure function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Time to read a MiB.
    pub read_ns_per_mib: u64,
    /// Time to write a MiB.
    pub write_ns_per_mib: u64,
    /// Latency of a request among others, beside the time of its bytes.
    pub latency_ns: u64,
    /// Additional latency of a request of 1 MiB or more that is alone in the queue, in proportion for less.
    pub single_request_ns: u64,
    /// Processor time of a request for every MiB begun; it is taken from computing.
    pub request_cpu_ns: u64,
    /// Memory outside the arena that transfers need.
    pub staging_bytes: usize,
}

impl Disk {
    /// Latency of a request for so many bytes, beside the time of the bytes.
    pub(crate) fn latency(&self, bytes: usize) -> u64 {
        let first = bytes.min(1 << 20) as u128;
        self.latency_ns.saturating_add(((first * u128::from(self.single_request_ns)) >> 20) as u64)
    }

    /// Processor time of a request for so many bytes.
    pub(crate) fn request_cpu(&self, bytes: usize) -> u64 {
        self.request_cpu_ns.saturating_mul(bytes.div_ceil(1 << 20) as u64)
    }

    /// Time to read so many bytes.
    pub(crate) fn read_ns(&self, bytes: usize) -> u64 {
        ((bytes as u128 * u128::from(self.read_ns_per_mib)) >> 20) as u64
    }

    /// Time to write so many bytes.
    pub(crate) fn write_ns(&self, bytes: usize) -> u64 {
        ((bytes as u128 * u128::from(self.write_ns_per_mib)) >> 20) as u64
    }
}

impl Budget {
    /// A budget without rematerialization and offload.
    pub fn new(line_bytes: usize, outside: Vec<Entry>) -> Self {
        Self { line_bytes, outside, rematerialize: false, offload: None, time_limit_ns: u64::MAX }
    }

    /// What is left for the arena.
    pub fn arena_bytes(&self) -> usize {
        self.outside.iter().fold(self.line_bytes, |left, entry| left.saturating_sub(entry.bytes))
    }
}
