//! Kernels for the random family.

use super::call::{Call, Found, Operands, found, read, write};
use super::cost::Core;
use crate::isa::Context;
use crate::kernels::random;
use plimsoll_graph::op::{Distribution, Random};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, random::Stream};

/// Nanoseconds of a number, and of one that is normally distributed.
const NUMBER: f64 = 7.5;
const NORMAL_NUMBER: f64 = 25.0;

pub(super) fn find(op: &Random, query: &KernelQuery<'_>) -> Found {
    let known = matches!(
        op.distribution,
        Distribution::Uniform(DType::F32) | Distribution::Normal(DType::F32) | Distribution::Bernoulli(_)
    );
    let size = (query.inputs[1].shape.elements(), op.shape.elements());
    known.then(|| Draw { op: op.clone(), size }).and_then(found)
}

struct Draw {
    op: Random,
    /// Examples, and elements of each.
    size: (usize, usize),
}

impl Call for Draw {
    fn cost(&self, _: &Core, _: &KernelQuery<'_>) -> f64 {
        let each = match self.op.distribution {
            Distribution::Normal(_) => NORMAL_NUMBER,
            Distribution::Uniform(_) | Distribution::Bernoulli(_) => NUMBER,
        };
        self.size.0 as f64 * self.size.1 as f64 * each
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (examples, elements) = self.size;
        let key: &[i64] = read!(o, 0, 2);
        let stream = Stream::new(key[0] as u64, key[1] as u64, &self.op.stream);
        let (which, all) = (read!(o, 1, examples), examples * elements);
        match self.op.distribution {
            Distribution::Uniform(_) => random::uniform(ctx, stream, which, elements, write!(o, 0, all)),
            Distribution::Normal(_) => random::normal(ctx, stream, which, elements, write!(o, 0, all)),
            Distribution::Bernoulli(p) => {
                random::bernoulli(ctx, stream, p, which, elements, write!(o, 0, all))
            }
        }
        Ok(())
    }
}
