//! Values that pass between the devices of a run.

use super::{Family, Properties};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};

/// The chain of a sum over the batch, which every device continues where the one before it stopped. A device receives the sum
/// so far, adds its own examples to it, and sends it on; the last one shares the whole sum with all. In the next micro-batch the
/// chain goes on from the last device to the first.
///
/// Each of these nodes has an accumulator for every output, which it is written in place of, so it runs exactly once in every
/// micro-batch. Inputs, if there are any, only say what has to be computed before it waits for another device.
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
    /// The sums of all chains, one output each, as a device holds them after the last micro-batch; in those before it, the
    /// accumulators themselves.
    Share {
        /// The device that holds them.
        from: u32,
        /// The sums' types, by chain.
        types: Vec<TensorType>,
    },
}

impl Exchange {
    /// Bytes that arrive from another device.
    pub fn received_bytes(&self) -> usize {
        match self {
            Self::Receive { ty, .. } => ty.bytes(),
            Self::Send { .. } => 0,
            Self::Share { types, .. } => types.iter().map(TensorType::bytes).sum(),
        }
    }
}

impl Family for Exchange {
    fn name(&self) -> &'static str {
        match self {
            Self::Receive { .. } => "receive",
            Self::Send { .. } => "send",
            Self::Share { .. } => "share",
        }
    }

    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        Ok(match self {
            Self::Receive { ty, .. } | Self::Send { ty, .. } => vec![ty.clone()],
            Self::Share { types, .. } => types.clone(),
        })
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType]) -> u64 {
        0
    }

    /// Sums of other devices' examples.
    fn batch_relation(&self, _: &[bool], _: &[&TensorType]) -> Vec<BatchRelation> {
        let outputs = match self {
            Self::Receive { .. } | Self::Send { .. } => 1,
            Self::Share { types, .. } => types.len(),
        };
        vec![BatchRelation::Reduced; outputs]
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Receive { .. } | Self::Send { .. } => Properties { folds: &[0], ..Properties::GENERAL },
            // Every output has an accumulator; their number is the node's.
            Self::Share { .. } => Properties::GENERAL,
        }
    }
}
