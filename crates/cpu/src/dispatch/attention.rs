//! Kernels for the attention family.

use super::call::{Call, Found, Operands, all_f32, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::attention::{self, AttentionSpec, RotarySpec};
use crate::kernels::float::{Float, with_float};
use plimsoll_graph::op::Attention;
use plimsoll_plan::KernelQuery;
use std::marker::PhantomData;

/// The fraction of a product's speed that its small tiles reach.
const REACH: f64 = 0.6;
/// Multiply-adds of vectors that a (query, key) pair takes besides the products.
const PAIR: f64 = 15.0;
/// Multiply-adds of vectors that a rotation takes for each of them.
const ROTATION: f64 = 10.0;

/// So many products of queries and keys, and the work on the scores: nanoseconds on one thread.
fn attend(core: &Core, spec: &AttentionSpec, products: usize) -> f64 {
    let pairs = spec.examples as f64 * spec.heads as f64 * spec.scored_pairs();
    let work = (products * core.vectors(spec.width)) as f64 / REACH + PAIR;
    pairs * work * core.slot
}

pub(super) fn find(op: &Attention, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    let &[examples, queries, heads, width] = &x[0].shape[..] else { return None };
    // All operands are of one type, but for the f32 of sums.
    let dtype = x[0].dtype;
    let spec = |causal, window, masked: bool| {
        let &[_, keys, key_heads, _] = &x[1].shape[..] else { return None };
        let mask = match x.last().filter(|_| masked) {
            Some(mask) => Some(mask.shape[..].try_into().ok()?),
            None => None,
        };
        Some(AttentionSpec { examples, queries, keys, heads, key_heads, width, causal, window, mask })
    };
    match *op {
        Attention::Forward { causal, window, masked } => {
            let spec = spec(causal, window, masked)?;
            with_float!(dtype, T => found(Forward::<T> { spec, of: PhantomData }))
        }
        Attention::Grad { causal, window, masked } => {
            let spec = spec(causal, window, masked)?;
            with_float!(dtype, T => found(Grad::<T> { spec, of: PhantomData }))
        }
        Attention::Rotary { base, inverse, start } if all_f32(x) => {
            let spec = RotarySpec { examples, positions: queries, heads, width, base, inverse, start };
            found(Rotary { spec })
        }
        Attention::Rotary { .. } => None,
    }
}

/// Whether an output may share an input's buffer.
pub(super) fn in_place(op: &Attention) -> bool {
    match op {
        // A pair of elements is read before it is written.
        Attention::Rotary { .. } => true,
        Attention::Forward { .. } | Attention::Grad { .. } => false,
    }
}

/// The mask, if there is one.
///
/// # Safety
/// As for `read!`.
unsafe fn mask<'a>(o: &'a Operands<'_>, input: usize, spec: &AttentionSpec) -> &'a [u8] {
    if spec.mask.is_some() { read!(o, input, spec.mask_elements()) } else { &[] }
}

/// Operands are stored as `T`.
struct Forward<T> {
    spec: AttentionSpec,
    of: PhantomData<T>,
}

impl<T: Float> Call for Forward<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        attention::attention_workspace::<T>(isa, threads, &self.spec)
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

/// Operands are stored as `T`.
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
        // SAFETY: the operands are the node's, of its types; y does not overlap x or, in place, is the same memory.
        unsafe { attention::rotary(ctx, &self.spec, x, y, space) };
        Ok(())
    }
}
