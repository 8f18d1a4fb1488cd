//! How moments lie in memory.

use super::{Parameter, moment, state};
use plimsoll_graph::op::Quantise;
use plimsoll_graph::{Builder, GraphError, Op, ValueId};
use plimsoll_tensor::{CODE_BLOCK, DType, TensorType};

/// How an optimizer's two moments lie in memory. They are computed in the parameter's type and rounded when they are
/// stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// As the parameter: 8 bytes of state per parameter in f32.
    #[default]
    Whole,
    /// In bf16: 4 bytes per parameter. What is less than a 256th of a moment is lost when it is added.
    Half,
    /// One byte for each element and a scale for every 256, as bitsandbytes has them: 2.03 bytes per parameter.
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

    /// A moment of a parameter, starting at zero: its elements, and where they go.
    pub(super) fn load(
        self,
        b: &mut Builder,
        parameter: &Parameter,
        name: &str,
        signed: bool,
    ) -> Result<(ValueId, Place), GraphError> {
        let ty = b.ty(parameter.value).clone();
        Ok(match self {
            Self::Whole => {
                let old = moment(b, parameter, name);
                (old, Place::Whole(old))
            }
            Self::Half => {
                let old = state(b, parameter, name, TensorType::new(DType::BF16, ty.shape));
                (b.cast(old, ty.dtype)?, Place::Half(old))
            }
            Self::Bytes => {
                let scales = TensorType::new(ty.dtype, [ty.shape.elements().div_ceil(CODE_BLOCK)]);
                let codes = TensorType::new(DType::U8, ty.shape);
                let codes = state(b, parameter, &format!("{name}/codes"), codes);
                let scales = state(b, parameter, &format!("{name}/scales"), scales);
                let values = b.one(Op::Quantise(Quantise::Decode { signed }), &[codes, scales])?;
                (values, Place::Bytes { codes, scales, signed })
            }
        })
    }
}

/// Where a moment lies.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Whole(ValueId),
    Half(ValueId),
    Bytes { codes: ValueId, scales: ValueId, signed: bool },
}

impl Place {
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
