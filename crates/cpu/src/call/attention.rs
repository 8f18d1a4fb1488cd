//! Kernels for the attention family.

use super::{Call, Found, Operands, all_f32, found, read, scratch, write};
use crate::attention::{self, AttentionSpec};
use crate::isa::{Context, Isa};
use plimsoll_graph::op::Attention;
use plimsoll_plan::KernelQuery;

pub(super) fn find(op: &Attention, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    let &[examples, positions, heads, width] = &x[0].shape[..] else { return None };
    if !all_f32(x) {
        return None;
    }
    let spec = AttentionSpec { examples, positions, heads, width, causal: op.causal() };
    match op {
        Attention::Forward { .. } => found(Forward { spec }),
        Attention::Grad { .. } => found(Grad { spec }),
    }
}

/// Queries of all heads.
fn rows(spec: &AttentionSpec) -> usize {
    spec.examples * spec.positions * spec.heads
}

struct Forward {
    spec: AttentionSpec,
}

impl Call for Forward {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        attention::attention_workspace(isa, threads, &self.spec)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (n, rows) = (rows(&self.spec) * self.spec.width, rows(&self.spec));
        let (q, k, v) = (read!(o, 0, n), read!(o, 1, n), read!(o, 2, n));
        attention::attention(ctx, &self.spec, q, k, v, write!(o, 0, n), write!(o, 1, rows), scratch!(o));
        Ok(())
    }
}

struct Grad {
    spec: AttentionSpec,
}

impl Call for Grad {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        attention::attention_grad_workspace(isa, threads, &self.spec)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (n, rows) = (rows(&self.spec) * self.spec.width, rows(&self.spec));
        let (q, k, v) = (read!(o, 0, n), read!(o, 1, n), read!(o, 2, n));
        let (y, lse, dy) = (read!(o, 3, n), read!(o, 4, rows), read!(o, 5, n));
        let (dq, dk, dv) = (write!(o, 0, n), write!(o, 1, n), write!(o, 2, n));
        attention::attention_grad(ctx, &self.spec, q, k, v, y, lse, dy, dq, dk, dv, scratch!(o));
        Ok(())
    }
}
