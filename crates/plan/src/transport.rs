//! How the devices of a run pass values to each other: what exchange nodes need of the machine.

use plimsoll_graph::op::Exchange;
use std::fmt;
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

    /// Waits for a message and copies it. Allocates nothing.
    fn receive(&self, from: usize, message: Message, into: &mut [u8]) -> Result<(), String>;

    /// Waits until all that this device sent in the step was received: after it, the bytes may change.
    fn finish(&self) -> Result<(), String>;
}

/// The processes of a run that train together, as one of them sees them: each is a device with its own memory, and the transport leads to
/// the others.
pub trait Ranks: Transport {
    /// Gives a few bytes to all, and returns what each gave, by rank. All call it, in the same order.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String>;

    /// Bytes of this process's memory that the connection takes.
    fn bytes(&self) -> usize;
}

/// What a device does with one of an exchange node's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Receives it from a device.
    Receive(usize, Message),
    /// Sends it to a device.
    Send(usize, Message),
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
        Exchange::Share { .. } if !is_last => Ok(()),
        Exchange::Share { from, ref types } => (0..types.len()).try_for_each(|sum| {
            let message = Message { chain: sum as u32, micro_batch: Message::SHARED };
            let (from, device) = (from as usize, transport.device());
            if from != device {
                return pass(sum, Passing::Receive(from, message));
            }
            let mut others = (0..transport.devices()).filter(|&to| to != device);
            others.try_for_each(|to| pass(sum, Passing::Send(to, message)))
        }),
    }
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
    /// The bytes of a micro-batch of `examples` examples in an input of the whole batch; `None` if the batch ends before.
    pub fn rows<'b>(
        &self,
        batch: &'b [u8],
        bytes: usize,
        examples: usize,
        micro_batch: usize,
    ) -> Option<&'b [u8]> {
        let start = (self.first + micro_batch * self.stride) * (bytes / examples.max(1));
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
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection(device {} of {})", self.transport.device(), self.transport.devices())
    }
}
