//! The memory tiers behind the computing space, and the links to them.
//!
//! Kernels compute in one memory space. What does not fit there waits in a tier: in host memory, if the computing space is a
//! device's, or in a file. Transfers to a tier run on its queues, beside the kernels and beside those of other tiers.

use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// Everything in a tier starts at a multiple of this: direct I/O moves whole blocks.
pub const TIER_ALIGNMENT: u64 = 4096;

/// Where states and values wait that are not in the computing space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Host memory that a device can copy from and to (pinned). Only where the computing space is a device's.
    Host,
    /// A file on a disk.
    File,
}

impl Tier {
    /// All tiers, the fastest first.
    pub const ALL: [Self; 2] = [Self::Host, Self::File];

    /// In words, as load sheets and messages have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host memory",
            Self::File => "the spill file",
        }
    }

    /// The queue of its transfers in a direction. A link to host memory is duplex; a disk serves one request after the other.
    pub const fn queue(self, direction: Direction) -> Queue {
        match (self, direction) {
            (Self::Host, Direction::Load) => Queue::HostLoads,
            (Self::Host, Direction::Store) => Queue::HostStores,
            (Self::File, _) => Queue::File,
        }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From a tier to the computing space.
    Load,
    /// From the computing space to a tier.
    Store,
}

impl Direction {
    /// As one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
        }
    }
}

/// A queue of transfers. It does one transfer after the other, in the order of their steps; queues run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Loads from host memory.
    HostLoads,
    /// Stores to host memory.
    HostStores,
    /// Loads from and stores to the file.
    File,
}

impl Queue {
    /// All queues.
    pub const ALL: [Self; 3] = [Self::HostLoads, Self::HostStores, Self::File];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// As an index into an array of [`Queue::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Something for each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PerTier<T> {
    /// For [`Tier::Host`].
    pub host: T,
    /// For [`Tier::File`].
    pub file: T,
}

impl<T> Index<Tier> for PerTier<T> {
    type Output = T;

    fn index(&self, tier: Tier) -> &T {
        match tier {
            Tier::Host => &self.host,
            Tier::File => &self.file,
        }
    }
}

impl<T> IndexMut<Tier> for PerTier<T> {
    fn index_mut(&mut self, tier: Tier) -> &mut T {
        match tier {
            Tier::Host => &mut self.host,
            Tier::File => &mut self.file,
        }
    }
}

impl<T> PerTier<T> {
    /// Each tier's, by a function.
    pub fn from_fn(mut each: impl FnMut(Tier) -> T) -> Self {
        Self { host: each(Tier::Host), file: each(Tier::File) }
    }
}

impl PerTier<u64> {
    /// Of all tiers together.
    pub const fn sum(&self) -> u64 {
        self.host.saturating_add(self.file)
    }
}

/// The link between the computing space and a tier. Whole numbers, so that planning stays a pure function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// Time to load a MiB.
    pub load_ns_per_mib: u64,
    /// Time to store a MiB.
    pub store_ns_per_mib: u64,
    /// Latency of a transfer among others, beside the time of its bytes.
    pub latency_ns: u64,
    /// Additional latency of a transfer of 1 MiB or more that is alone in the queue, in proportion for less.
    pub single_request_ns: u64,
    /// Processor time of a transfer for every MiB begun; it is taken from computing.
    pub request_cpu_ns: u64,
}

impl Link {
    /// The link to what lies behind this one's far end: bytes pass both links in a pipeline.
    ///
    /// ```
    /// use plimsoll_plan::Link;
    /// let to_host = Link { load_ns_per_mib: 20, store_ns_per_mib: 30, latency_ns: 5, ..Link::default() };
    /// let to_disk = Link { load_ns_per_mib: 400, store_ns_per_mib: 10, latency_ns: 100, ..Link::default() };
    /// let both = to_host.through(to_disk);
    /// assert_eq!((both.load_ns_per_mib, both.store_ns_per_mib, both.latency_ns), (400, 30, 105));
    /// ```
    pub const fn through(self, next: Self) -> Self {
        const fn slower(a: u64, b: u64) -> u64 {
            if a > b { a } else { b }
        }
        Self {
            load_ns_per_mib: slower(self.load_ns_per_mib, next.load_ns_per_mib),
            store_ns_per_mib: slower(self.store_ns_per_mib, next.store_ns_per_mib),
            latency_ns: self.latency_ns.saturating_add(next.latency_ns),
            single_request_ns: self.single_request_ns.saturating_add(next.single_request_ns),
            request_cpu_ns: self.request_cpu_ns.saturating_add(next.request_cpu_ns),
        }
    }

    /// Latency of a transfer of so many bytes, beside the time of the bytes.
    pub(crate) fn latency(&self, bytes: usize) -> u64 {
        let first = bytes.min(1 << 20);
        self.latency_ns.saturating_add(per_mib(first, self.single_request_ns))
    }

    /// Processor time of a transfer of so many bytes.
    pub(crate) fn request_cpu(&self, bytes: usize) -> u64 {
        self.request_cpu_ns.saturating_mul(bytes.div_ceil(1 << 20) as u64)
    }

    /// Time to move so many bytes.
    pub(crate) fn ns(&self, direction: Direction, bytes: usize) -> u64 {
        match direction {
            Direction::Load => per_mib(bytes, self.load_ns_per_mib),
            Direction::Store => per_mib(bytes, self.store_ns_per_mib),
        }
    }
}

/// The time of bytes at so many nanoseconds for a MiB.
pub(crate) fn per_mib(bytes: usize, nanoseconds: u64) -> u64 {
    u64::try_from((bytes as u128 * u128::from(nanoseconds)) >> 20).unwrap_or(u64::MAX)
}

/// A tier that plans may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TierSpec {
    /// The most that may wait there.
    pub capacity_bytes: u64,
    /// How to get there.
    pub link: Link,
    /// Host memory that transfers need beside what they move.
    pub staging_bytes: usize,
}

/// The tiers of a machine. There is a host tier exactly where the computing space is a device's.
pub type Tiers = PerTier<Option<TierSpec>>;

impl Tiers {
    /// A file behind a link, without limit: what a processor that computes in host memory has.
    pub const fn disk(link: Link, staging_bytes: usize) -> Self {
        Self { host: None, file: Some(TierSpec { capacity_bytes: u64::MAX, link, staging_bytes }) }
    }

    /// The tiers that there are, the fastest first.
    pub fn present(&self) -> impl Iterator<Item = (Tier, TierSpec)> + '_ {
        Tier::ALL.into_iter().filter_map(|tier| Some((tier, self[tier]?)))
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.host.is_none() && self.file.is_none()
    }

    /// The link to a tier; one that takes no time if there is no such tier.
    pub fn link(&self, tier: Tier) -> Link {
        self[tier].map_or_else(Link::default, |spec| spec.link)
    }

    /// The time to move bytes between the computing space and a tier.
    pub fn ns(&self, tier: Tier, direction: Direction, bytes: usize) -> u64 {
        self.link(tier).ns(direction, bytes)
    }
}
