//! Values that pass between the devices of a run.

use super::{Family, Properties};
use crate::{BatchMark, BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// The chain of a sum over the batch, which every device continues where the one before it stopped. A device receives the sum
/// so far, adds its own examples to it, and sends it on; the last one shares the whole sum with all. In the next micro-batch the
/// chain goes on from the last device to the first. Where the order of a sum may depend on the number of devices, they add up their
/// own sums at the end instead ([`Exchange::AllReduce`]).
///
/// Where devices hold the parts of one model, any value passes from one to another: given by the first, taken by the second, in every
/// micro-batch or in the optimizer step. A chain is then one such value.
///
/// Each of these nodes has an accumulator for every output (but for what is taken), which it is written in place of, so it runs exactly
/// once in every micro-batch; a turn of the optimizer step is written in place of the one before. Inputs, if there are any, only say what has to be computed before it waits for another device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchange {
    /// The sum of a chain as another device left it.
    Receive {
        /// The chain.
        chain: u32,
        /// The device that sends.
        from: u32,
        /// Whether that one sent it in the micro-batch before. In the first one the result is then the accumulator itself.
        wraps: bool,
        /// The sum's type.
        ty: TensorType,
    },
    /// The accumulator itself, which another device receives.
    Send {
        /// The chain.
        chain: u32,
        /// The device that receives.
        to: u32,
        /// Whether that one receives it in the next micro-batch. In the last one nothing is sent then.
        wraps: bool,
        /// The sum's type.
        ty: TensorType,
    },
    /// `(..) → (turn, value)`: what another device gives, in memory of its own: the sum of a chain, for a device that does not keep
    /// it, or a value of another part of the model. Devices that take and give have an accumulator, the turn, which orders what they do.
    Take {
        /// The chain.
        chain: u32,
        /// The device that sends.
        from: u32,
        /// Whether that one sent it in the micro-batch before. In the first one the sum is zero.
        wraps: bool,
        /// The value's type.
        ty: TensorType,
        /// How it relates to the batch.
        mark: BatchMark,
    },
    /// `(value, ..) → turn`: passes a value on, and waits until it may be overwritten.
    Give {
        /// The chain.
        chain: u32,
        /// The device that receives.
        to: u32,
    },
    /// Sums of some chains as the last device of the chain holds them, in the midst of a step of one micro-batch: what the whole
    /// batch is normalised by. They are the same on every device, so that what reads them is as if they came from outside. Devices
    /// meet there: all that is exchanged before it on one of them is before it on every other, too.
    Synchronise {
        /// The device that holds them.
        from: u32,
        /// The chains.
        chains: Vec<u32>,
        /// The sums' types.
        types: Vec<TensorType>,
    },
    /// Sums of some chains, each of which every device has of its own examples, added up over all devices after the last micro-batch, in
    /// an order that the connection chooses; in those before it, the accumulators themselves. Devices meet there, too.
    AllReduce {
        /// How many devices there are.
        devices: u32,
        /// The chains.
        chains: Vec<u32>,
        /// The sums' types: f32.
        types: Vec<TensorType>,
    },
    /// The sums of all chains, one output each, as a device holds them after the last micro-batch; in those before it, the
    /// accumulators themselves.
    Share {
        /// The device that holds them.
        from: u32,
        /// The chains of the first outputs, which are shared. The others stay as they are: they were synchronised before, or only
        /// other devices read them.
        chains: Vec<u32>,
        /// The devices that each of these goes to, on the one that holds them; empty: to all others.
        to: Vec<Vec<u32>>,
        /// The sums' types.
        types: Vec<TensorType>,
    },
}

impl Exchange {
    /// The type of a turn, whose value means nothing.
    pub fn turn() -> TensorType {
        TensorType::new(DType::I32, [1])
    }

    /// Bytes that arrive from other devices; to add up over all of them, the least that is possible.
    pub fn received_bytes(&self) -> usize {
        match self {
            Self::Receive { ty, .. } | Self::Take { ty, .. } => ty.bytes(),
            Self::Send { .. } | Self::Give { .. } => 0,
            Self::AllReduce { devices, types, .. } => {
                let (devices, bytes) =
                    (*devices as usize, types.iter().map(TensorType::bytes).sum::<usize>());
                2 * bytes * devices.saturating_sub(1) / devices.max(1)
            }
            Self::Synchronise { chains, types, .. } | Self::Share { chains, types, .. } => {
                types.iter().take(chains.len()).map(TensorType::bytes).sum()
            }
        }
    }
}

impl Family for Exchange {
    fn name(&self) -> &'static str {
        match self {
            Self::Receive { .. } => "receive",
            Self::Send { .. } => "send",
            Self::Take { .. } => "take",
            Self::Give { .. } => "give",
            Self::Synchronise { .. } => "synchronise",
            Self::AllReduce { .. } => "all_reduce",
            Self::Share { .. } => "share",
        }
    }

    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        Ok(match self {
            Self::Receive { ty, .. } | Self::Send { ty, .. } => vec![ty.clone()],
            Self::Take { ty, .. } => vec![Self::turn(), ty.clone()],
            Self::Give { .. } => vec![Self::turn()],
            Self::Synchronise { types, .. } | Self::AllReduce { types, .. } | Self::Share { types, .. } => {
                types.clone()
            }
        })
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType]) -> u64 {
        0
    }

    /// Sums of other devices' examples, or what was taken.
    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        let outputs = match self {
            Self::Receive { .. } | Self::Send { .. } | Self::Give { .. } => 1,
            Self::Take { mark, .. } => return vec![BatchRelation::Reduced, mark.relation],
            Self::Synchronise { types, .. } | Self::AllReduce { types, .. } | Self::Share { types, .. } => {
                types.len()
            }
        };
        vec![BatchRelation::Reduced; outputs]
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Receive { .. } | Self::Send { .. } | Self::Take { .. } | Self::Give { .. } => {
                Properties { folds: &[0], ..Properties::GENERAL }
            }
            // Every output has an accumulator; their number is the node's.
            Self::Synchronise { .. } | Self::AllReduce { .. } | Self::Share { .. } => Properties::GENERAL,
        }
    }
}
