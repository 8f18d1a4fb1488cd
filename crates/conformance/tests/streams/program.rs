//! What was asked of the driver, in the order of the calls.

use plimsoll_plan::PlanSet;
use std::ops::Range;
use std::sync::Arc;

/// Addresses, of the device and of the host: in the mock, one space.
pub type Addresses = Range<u64>;

/// Memory that the driver gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    PageLocked,
}

/// Something that a stream does.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel with the pointers among its parameters, in order; null where there is none.
    Kernel {
        module: u64,
        blocks: [u32; 3],
        pointers: Vec<u64>,
    },
    /// A product of the library: A, B, C and, if there is one, the bias; and its workspace.
    Product {
        pointers: Vec<u64>,
        workspace: Addresses,
    },
    /// With the kinds of memory that it is from and to; none of the host's own.
    Copy {
        from: u64,
        to: u64,
        bytes: u64,
        kinds: [Option<Kind>; 2],
    },
    Fill {
        to: u64,
        bytes: u64,
        byte: u8,
    },
}

/// A call that matters for the order of things.
#[derive(Clone, Debug)]
pub enum Call {
    Queue {
        stream: u64,
        work: Work,
    },
    Record {
        event: u64,
        stream: u64,
    },
    Wait {
        stream: u64,
        event: u64,
    },
    /// The host waits for an event, for a stream, or for all streams.
    FinishEvent(u64),
    FinishStream(u64),
    FinishAll,
    /// Memory is given back.
    Free(Addresses),
    /// A kernel's code is unloaded.
    Unload(u64),
    Said(Mark),
}

/// What the test says between calls.
#[derive(Clone, Debug)]
pub enum Mark {
    /// A GPU is open: this is its page-locked memory for inputs.
    Opened {
        staging: Addresses,
    },
    /// Plans are ready, with the start of their arena and the host tier.
    Prepared {
        plans: Arc<PlanSet>,
        arena: u64,
        tier: Addresses,
    },
    /// A plan begins to run; the run has been queued.
    Run(usize),
    Ran,
    /// The host itself has used memory since the last call.
    Used {
        range: Addresses,
        writes: bool,
    },
}

/// A call, and who made it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub thread: u64,
    /// Whether it was the thread between the device and the file.
    pub staged: bool,
    pub call: Call,
}
