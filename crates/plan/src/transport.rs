//! How the devices of a run pass values to each other: what exchange nodes need of the machine.

use plimsoll_graph::op::Exchange;
use plimsoll_graph::{BatchMark, Graph, Op};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Names a message between two devices within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// The chain that it belongs to.
    pub chain: u32,
    /// The micro-batch that it was sent in; [`Message::SHARED`] for a sum that is complete.
    pub micro_batch: u32,
}

impl Message {
    /// After the last micro-batch.
    pub const SHARED: u32 = u32::MAX;
    /// What passes between two processes outside of steps: one message follows another.
    const OUTSIDE: Self = Self { chain: 0, micro_batch: Self::SHARED };
}

/// A device's connection to the other devices of a run.
///
/// A wait ends with an error when another device has failed, so that no device waits for ever.
pub trait Transport: Send + Sync {
    /// This device's number.
    fn device(&self) -> usize;

    /// How many devices there are.
    fn devices(&self) -> usize;

    /// Offers bytes to another device. Does not wait until they are received. Allocates nothing.
    ///
    /// # Safety
    /// The bytes stay valid and unchanged until the device that they are for has received them. A plan keeps that promise by its
    /// chains: a sum lies in its accumulator, which is next written when the chain has come around, or in the next step.
    unsafe fn send(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String>;

    /// Sends bytes to another device, and waits until they may be overwritten: they were received, or copied. Allocates nothing.
    fn hand(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String>;

    /// Waits for a message and copies it. Allocates nothing.
    fn receive(&self, from: usize, message: Message, into: &mut [u8]) -> Result<(), String>;

    /// Starts to add numbers up over all devices, in place, in whatever order is fastest; all end with the same bits. All devices call
    /// it for the same sums, in the same order. [`Transport::finish`] waits for the results.
    ///
    /// # Safety
    /// The numbers are valid, and nothing else touches them until then.
    unsafe fn all_reduce(&self, numbers: *mut [f32]) -> Result<(), String> {
        let _ = numbers;
        Err("this connection cannot add up over all devices".into())
    }

    /// Waits until all that this device sent in the step was received, and all that it adds up with others is whole: after it, the
    /// bytes may change.
    fn finish(&self) -> Result<(), String>;
}

/// The processes of a run that train together, as one of them sees them: each is a device with its own memory, and the transport leads to
/// the others.
pub trait Ranks: Transport {
    /// Gives a few bytes to all, and returns what each gave, by rank. All call it, in the same order.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String>;

    /// Bytes of this process's memory that the connection takes.
    fn bytes(&self) -> usize;

    /// Gives bytes to another process outside of steps, and waits until it has taken them.
    fn give(&self, to: usize, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the bytes are borrowed until the wait is over; where that fails, the run ends.
        unsafe { self.send(to, Message::OUTSIDE, bytes) }?;
        self.finish()
    }

    /// Waits for what another process gives.
    fn take(&self, from: usize, into: &mut [u8]) -> Result<(), String> {
        self.receive(from, Message::OUTSIDE, into)
    }
}

/// What a device does with one of an exchange node's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Receives it from a device.
    Receive(usize, Message),
    /// Sends it to a device.
    Send(usize, Message),
    /// Sets it to zero.
    Clear,
    /// Sends the node's first input to a device, and waits until it may be overwritten.
    Hand(usize, Message),
    /// Starts to add it up over all devices.
    AllReduce,
}

/// Does what an exchange node asks for in a micro-batch, by calling `pass` with an output's index for every message.
pub fn exchange(
    op: &Exchange,
    transport: &dyn Transport,
    (micro_batch, micro_batches): (usize, usize),
    mut pass: impl FnMut(usize, Passing) -> Result<(), String>,
) -> Result<(), String> {
    let (now, is_last) = (micro_batch as u32, micro_batch + 1 == micro_batches);
    match *op {
        Exchange::Receive { wraps: true, .. } if micro_batch == 0 => Ok(()),
        Exchange::Receive { chain, from, wraps, .. } => {
            let sent = now - u32::from(wraps);
            pass(0, Passing::Receive(from as usize, Message { chain, micro_batch: sent }))
        }
        Exchange::Send { wraps: true, .. } if is_last => Ok(()),
        Exchange::Send { chain, to, .. } => {
            pass(0, Passing::Send(to as usize, Message { chain, micro_batch: now }))
        }
        Exchange::Take { wraps: true, .. } if micro_batch == 0 => pass(1, Passing::Clear),
        Exchange::Take { chain, from, wraps, .. } => {
            let sent = now - u32::from(wraps);
            pass(1, Passing::Receive(from as usize, Message { chain, micro_batch: sent }))
        }
        Exchange::Give { chain, to } => {
            pass(0, Passing::Hand(to as usize, Message { chain, micro_batch: now }))
        }
        Exchange::AllReduce { .. } | Exchange::Share { .. } if !is_last => Ok(()),
        Exchange::AllReduce { ref types, .. } => {
            (0..types.len()).try_for_each(|sum| pass(sum, Passing::AllReduce))?;
            transport.finish()
        }
        Exchange::Synchronise { from, ref chains, .. } => share(from as usize, chains, &[], transport, pass),
        Exchange::Share { from, ref chains, ref to, .. } => share(from as usize, chains, to, transport, pass),
    }
}

/// Passes the whole sums of some chains from the device that holds them to all others, or to some.
fn share(
    from: usize,
    chains: &[u32],
    to: &[Vec<u32>],
    transport: &dyn Transport,
    mut pass: impl FnMut(usize, Passing) -> Result<(), String>,
) -> Result<(), String> {
    let device = transport.device();
    chains.iter().enumerate().try_for_each(|(sum, &chain)| {
        let message = Message { chain, micro_batch: Message::SHARED };
        if from != device {
            return pass(sum, Passing::Receive(from, message));
        }
        let goes = |other: &usize| to.get(sum).is_none_or(|to| to.contains(&(*other as u32)));
        let mut others = (0..transport.devices()).filter(|&other| other != device).filter(goes);
        others.try_for_each(|other| pass(sum, Passing::Send(other, message)))
    })
}

/// The order of the exchanges of a graph and the meetings of all devices, as a number: devices wait for each other for ever unless
/// it is the same for all that take examples of a step.
pub fn exchange_order(graph: &Graph) -> u64 {
    let mut order = DefaultHasher::new();
    let mut since: Vec<u32> = Vec::new();
    for node in &graph.nodes {
        match &node.op {
            // A device that keeps a sum sends it twice.
            Op::Exchange(Exchange::Send { chain, .. } | Exchange::Give { chain, .. })
                if !since.contains(chain) =>
            {
                since.push(*chain);
            }
            // A parameter is given by one device, and taken by all others.
            Op::Exchange(Exchange::Take { chain, mark, .. }) if *mark != BatchMark::SUM => since.push(*chain),
            Op::Exchange(
                Exchange::Synchronise { chains, types, .. } | Exchange::AllReduce { chains, types, .. },
            ) => {
                (&since, chains).hash(&mut order);
                types.iter().for_each(|ty| ty.to_string().hash(&mut order));
                since.clear();
            }
            _ => {}
        }
    }
    since.hash(&mut order);
    order.finish()
}

/// Bytes of the largest value that a graph's exchanges give to another device, or take.
pub fn largest_pass(graph: &Graph) -> usize {
    let bytes = graph.nodes.iter().map(|node| match &node.op {
        Op::Exchange(Exchange::Give { .. }) => {
            node.inputs.first().map_or(0, |value| graph.ty(*value).bytes())
        }
        Op::Exchange(Exchange::Take { ty, .. }) => ty.bytes(),
        _ => 0,
    });
    bytes.max().unwrap_or(0)
}

/// The rows of a step's batch that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPart {
    /// Its first example in the first micro-batch.
    pub first: usize,
    /// Examples from there to its first example in the next micro-batch.
    pub stride: usize,
}

impl BatchPart {
    /// The bytes of one of so many micro-batches of `examples` examples in an input of the whole batch, or of this device's rows alone;
    /// `None` if the batch ends before.
    pub fn rows<'b>(
        &self,
        batch: &'b [u8],
        bytes: usize,
        examples: usize,
        (micro_batch, micro_batches): (usize, usize),
    ) -> Option<&'b [u8]> {
        let is_own = batch.len() == bytes * micro_batches;
        let first = if is_own { micro_batch * examples } else { self.first + micro_batch * self.stride };
        let start = first * (bytes / examples.max(1));
        batch.get(start..start + bytes)
    }
}

/// What a device that runs beside others is given with its plans.
#[derive(Clone)]
pub struct Connection {
    /// The way to the others.
    pub transport: Arc<dyn Transport>,
    /// The part of the batch that it takes, by plan; `None`: the plan takes whole batches.
    pub parts: Vec<Option<BatchPart>>,
    /// The device that updates a state, by state of the plans, where one alone does: after each step of a part of a batch all others
    /// get its new version. Empty: every device updates every state.
    pub owners: Vec<Option<usize>>,
}

/// Bytes of a message that is a piece of a state; the last one may be shorter. A device whose copy is offloaded has as much memory to
/// stage it.
pub const STATE_PIECE: usize = 1 << 20;

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection(device {} of {})", self.transport.device(), self.transport.devices())
    }
}
