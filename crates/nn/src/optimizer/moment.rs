//! Storage of optimizer moments.

use super::{Parameter, moment, state};
use plimsoll_graph::op::Quantise;
use plimsoll_graph::{Builder, GraphError, Op, ValueId};
use plimsoll_tensor::{CODE_BLOCK, DType, TensorType};

/// How Adam's two moments are stored. They are computed in the parameter's type and rounded as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// In the parameter's type: 8 bytes of state per parameter in f32.
    #[default]
    Whole,
    /// In bf16: 4 bytes per parameter. Changes below 1/256 of a moment are lost.
    Half,
    /// Quantised blockwise to 8 bits, a scale for every 256, as in bitsandbytes: 2.03 bytes per parameter.
    Bytes,
}

impl Moments {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Half => "bf16",
            Self::Bytes => "8-bit",
        }
    }

    /// A moment of a parameter, initially zero: its elements, and where to store them.
    pub(super) fn load(
        self,
        b: &mut Builder,
        parameter: &Parameter,
        name: &str,
        signed: bool,
    ) -> Result<(ValueId, MomentState), GraphError> {
        let ty = b.ty(parameter.value).clone();
        Ok(match self {
            Self::Whole => {
                let old = moment(b, parameter, name);
                (old, MomentState::Whole(old))
            }
            Self::Half => {
                let old = state(b, parameter, name, TensorType::new(DType::BF16, ty.shape));
                (b.cast(old, ty.dtype)?, MomentState::Half(old))
            }
            Self::Bytes => {
                let scales = TensorType::new(ty.dtype, [ty.shape.elements().div_ceil(CODE_BLOCK)]);
                let codes = TensorType::new(DType::U8, ty.shape);
                let codes = state(b, parameter, &format!("{name}/codes"), codes);
                let scales = state(b, parameter, &format!("{name}/scales"), scales);
                let values = b.one(Op::Quantise(Quantise::Decode { signed }), &[codes, scales])?;
                (values, MomentState::Bytes { codes, scales, signed })
            }
        })
    }
}

/// The states that hold a moment.
#[derive(Clone, Copy)]
pub(super) enum MomentState {
    Whole(ValueId),
    Half(ValueId),
    Bytes { codes: ValueId, scales: ValueId, signed: bool },
}

impl MomentState {
    /// Stores the moment's new version.
    pub(super) fn store(self, b: &mut Builder, new: ValueId) -> Result<(), GraphError> {
        match self {
            Self::Whole(old) => b.set_state(old, new),
            Self::Half(old) => {
                let rounded = b.cast(new, DType::BF16)?;
                b.set_state(old, rounded);
            }
            Self::Bytes { codes, scales, signed } => {
                let outputs = b.node(Op::Quantise(Quantise::Encode { signed }), &[new])?;
                b.set_state(codes, outputs[0]);
                b.set_state(scales, outputs[1]);
            }
        }
        Ok(())
    }
}
