//! Kernels for the attention family.

use super::{Call, Found, Operands, all_f32, bytes, found, read, scratch, write};
use crate::attention::{self, AttentionSpec, RotarySpec};
use crate::cost::Core;
use crate::float::{Float, with_float};
use crate::isa::{Context, Isa};
use plimsoll_graph::op::Attention;
use plimsoll_plan::KernelQuery;
use std::marker::PhantomData;

/// How much of a product's time per multiply-add its tiles reach: they are small.
const REACH: f64 = 0.6;
/// Multiply-adds of vectors that a pair of query and key takes besides the products.
const PAIR: f64 = 15.0;
/// Multiply-adds of vectors that a rotation takes for each of them.
const ROTATION: f64 = 10.0;

/// So many products of queries and keys, and what is done with the scores: nanoseconds on one thread.
fn attend(core: &Core, spec: &AttentionSpec, products: usize) -> f64 {
    let pairs = spec.examples as f64 * spec.heads as f64 * spec.scored_pairs();
    let work = (products * core.vectors(spec.width)) as f64 / REACH + PAIR;
    pairs * work * core.slot
}

pub(super) fn find(op: &Attention, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    let &[examples, queries, heads, width] = &x[0].shape[..] else { return None };
    let (causal, masked) = match *op {
        Attention::Forward { causal, masked } | Attention::Grad { causal, masked } => (causal, masked),
        Attention::Rotary { base, inverse, start } => {
            let spec = RotarySpec { examples, positions: queries, heads, width, base, inverse, start };
            return if all_f32(x) { found(Rotary { spec }) } else { None };
        }
    };
    let (floats, mask) = x.split_at(x.len() - usize::from(masked));
    let &[_, keys, key_heads, _] = &x[1].shape[..] else { return None };
    // All of one type, but for the f32 of sums.
    let dtype = floats[0].dtype;
    let mask = match mask {
        [mask] => Some(mask.shape[..].try_into().ok()?),
        _ => None,
    };
    let spec = AttentionSpec { examples, queries, keys, heads, key_heads, width, causal, mask };
    match op {
        Attention::Forward { .. } => with_float!(dtype, T => found(Forward::<T> { spec, of: PhantomData })),
        _ => with_float!(dtype, T => found(Grad::<T> { spec, of: PhantomData })),
    }
}

/// The mask, if there is one.
///
/// # Safety
/// As for `read!`.
unsafe fn mask<'a>(o: &'a Operands<'_>, input: usize, spec: &AttentionSpec) -> &'a [u8] {
    if spec.mask.is_some() { read!(o, input, spec.mask_elements()) } else { &[] }
}

/// Of operands that lie in memory as `T`.
struct Forward<T> {
    spec: AttentionSpec,
    of: PhantomData<T>,
}

impl<T: Float> Call for Forward<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        attention::attention_workspace(isa, threads, &self.spec)
    }

    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        attend(core, &self.spec, 2)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let (queries, keys) = (spec.query_elements(), spec.key_elements());
        let (q, k, v) = (read!(o, 0, queries), read!(o, 1, keys), read!(o, 2, keys));
        // SAFETY: the mask is the last input.
        let mask = unsafe { mask(o, 3, spec) };
        let (y, lse) = (write!(o, 0, queries), write!(o, 1, spec.rows()));
        attention::attention::<T>(ctx, spec, q, k, v, mask, y, lse, scratch!(o));
        Ok(())
    }
}

/// Of operands that lie in memory as `T`.
struct Grad<T> {
    spec: AttentionSpec,
    of: PhantomData<T>,
}

impl<T: Float> Call for Grad<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        attention::attention_grad_workspace::<T>(isa, threads, &self.spec)
    }

    fn cost(&self, core: &Core, _: &KernelQuery<'_>) -> f64 {
        attend(core, &self.spec, 5)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let (queries, keys) = (spec.query_elements(), spec.key_elements());
        let (q, k, v) = (read!(o, 0, queries), read!(o, 1, keys), read!(o, 2, keys));
        let (y, lse, dy) = (read!(o, 3, queries), read!(o, 4, spec.rows()), read!(o, 5, queries));
        // SAFETY: the mask is the last input.
        let mask = unsafe { mask(o, 6, spec) };
        let (dq, dk, dv) = (write!(o, 0, queries), write!(o, 1, keys), write!(o, 2, keys));
        attention::attention_grad::<T>(ctx, spec, q, k, v, y, lse, dy, mask, dq, dk, dv, scratch!(o));
        Ok(())
    }
}

struct Rotary {
    spec: RotarySpec,
}

impl Call for Rotary {
    fn workspace(&self, _: Isa, _: usize) -> usize {
        attention::rotary_workspace(&self.spec)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let vectors = core.vectors(query.inputs[0].shape.elements()) as f64;
        vectors * ROTATION * core.slot + core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (x, y, space) = (o.reads[0].cast(), o.writes[0].cast(), scratch!(o));
        // SAFETY: the operands are the node's, of its types; y is apart from x or, as the target allows, lies over it.
        unsafe { attention::rotary(ctx, &self.spec, x, y, space) };
        Ok(())
    }
}
