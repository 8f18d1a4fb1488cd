//! Attention without the score matrix, and rotary positions.

use super::{
    Family, InPlace, OperandPrecision, PrecisionClass, Properties, arity, per_example, rank, require,
    same_float,
};
use crate::{BatchRelation, TypeError};
use plimsoll_tensor::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention of q `[n, queries, heads, width]` to k and v `[n, keys, key heads, width]`, computed in
/// tiles: scores `q · kᵀ / √width`, a softmax over the keys, and the weighted sum of v. Heads are a multiple of key
/// heads: that many consecutive heads share a key head (grouped-query attention).
///
/// `causal`: a query sees keys up to its own position, both counted from zero. `masked`: the last input is a bool
/// mask `[n or 1, heads or 1, queries or 1, keys]`; a query sees the keys where it is true. With both, both
/// must allow it. `window`, of causal attention: a query sees at most this many keys, the last up to its own position
/// (sliding-window attention). A query that sees nothing gives zeros, a logsumexp of -infinity, and no gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// `(q, k, v) → (y, logsumexp)` or `(q, k, v, mask) → …`; y has q's shape, logsumexp is `[n, queries, heads]`,
    /// natural logarithm of the softmax's sum, f32 of 16-bit floats.
    Forward {
        /// Whether a query sees keys up to its own position only.
        causal: bool,
        /// Keys that a query of causal attention sees at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<usize>,
        /// Whether the last input is a mask.
        #[serde(default)]
        masked: bool,
    },
    /// `(q, k, v, y, logsumexp, dy) → (dq, dk, dv)` or `(q, k, v, y, logsumexp, dy, mask) → …`.
    Grad {
        /// Whether a query sees keys up to its own position only.
        causal: bool,
        /// Keys that a query of causal attention sees at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<usize>,
        /// Whether the last input is a mask.
        #[serde(default)]
        masked: bool,
    },
    /// Rotary positions, `(x) → y`: in each head of x `[n, positions, heads, width]` the pair of elements
    /// `(i, i + width / 2)` is rotated by the angle `position · base^(-2i / width)`.
    Rotary {
        /// The base of the angles' frequencies.
        base: f64,
        /// Whether it rotates back, which is also the gradient.
        inverse: bool,
        /// The position of the first.
        #[serde(default)]
        start: usize,
    },
}

impl Family for Attention {
    fn name(&self) -> &'static str {
        match self {
            Self::Forward { .. } => "attention",
            Self::Grad { .. } => "attention_grad",
            Self::Rotary { .. } => "rotary",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        if let Self::Forward { causal, window: Some(window), .. }
        | Self::Grad { causal, window: Some(window), .. } = *self
        {
            require(causal && window > 0, || {
                format!("a window of {window} needs causal attention, and at least 1")
            })?;
        }
        match *self {
            Self::Forward { masked: false, .. } => {
                let [q, k, v] = arity(inputs)?;
                Ok(vec![q.clone(), attend(q, k, v, None)?])
            }
            Self::Forward { masked: true, .. } => {
                let [q, k, v, mask] = arity(inputs)?;
                Ok(vec![q.clone(), attend(q, k, v, Some(mask))?])
            }
            Self::Grad { masked: false, .. } => grad(arity(inputs)?, None),
            Self::Grad { masked: true, .. } => {
                let [q, k, v, y, lse, dy, mask] = arity(inputs)?;
                grad([q, k, v, y, lse, dy], Some(mask))
            }
            Self::Rotary { base, start, .. } => {
                let [x] = arity(inputs)?;
                same_float(inputs)?;
                let [_, positions, _, width] = rank("x", x)?;
                require(start.checked_add(positions).is_some(), || format!("there is no position {start}"))?;
                require(width % 2 == 0, || format!("needs an even width, it is {width}"))?;
                require(base > 0.0 && base.is_finite(), || format!("needs a base above zero, it is {base}"))?;
                Ok(vec![x.clone()])
            }
        }
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType]) -> u64 {
        let elements = inputs[0].shape.elements() as u64;
        let (products, causal, window) = match *self {
            Self::Forward { causal, window, .. } => (2, causal, window),
            Self::Grad { causal, window, .. } => (5, causal, window),
            Self::Rotary { .. } => return elements.saturating_mul(3),
        };
        let (queries, keys) = (inputs[0].shape[1] as u64, inputs[1].shape[1] as u64);
        // With as many queries as keys, half of the pairs are computed; queries past the last key see every key.
        let level = if causal { queries.min(keys) } else { 0 };
        let mut pairs_twice = level * level + 2 * (queries - level).saturating_mul(keys);
        if let Some(window) = window {
            pairs_twice = pairs_twice.min(queries.saturating_mul(window as u64).saturating_mul(2));
        }
        (elements / queries.max(1)).saturating_mul(2 * products).saturating_mul(pairs_twice) / 2
    }

    fn batch_relation(&self, batched: &[bool], inputs: &[&TensorType]) -> Vec<BatchRelation> {
        let (outputs, masked) = match *self {
            Self::Forward { masked, .. } => (2, masked),
            Self::Grad { masked, .. } => (3, masked),
            Self::Rotary { .. } => (1, false),
        };
        // A mask without a batch axis must be one for all examples.
        let unsplittable = masked
            && matches!((batched.last(), inputs.last()), (Some(false), Some(mask)) if mask.shape[0] != 1);
        if unsplittable { vec![BatchRelation::Mixed; outputs] } else { per_example(outputs) }
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Forward { .. } => {
                let precision = PrecisionClass { operands: OperandPrecision::Low, ..PrecisionClass::ROUNDED };
                Properties { precision, ..Properties::GENERAL }
            }
            Self::Grad { .. } => Properties { precision: PrecisionClass::ROUNDED, ..Properties::GENERAL },
            Self::Rotary { .. } => Properties {
                precision: PrecisionClass::ROUNDED,
                in_place: InPlace::ReadFirst,
                ..Properties::GENERAL
            },
        }
    }
}

/// Checks the operands of attention; the type of its logsumexp.
fn attend(
    q: &TensorType,
    k: &TensorType,
    v: &TensorType,
    mask: Option<&TensorType>,
) -> Result<TensorType, TypeError> {
    let dtype = same_float(&[q, k, v])?;
    let [n, queries, heads, width] = rank("q", q)?;
    let [key_n, keys, key_heads, key_width] = rank("k", k)?;
    require(k == v, || "k and v must have one shape".into())?;
    require(n == key_n && width == key_width, || {
        format!("q is {q}, k {k}: they must have as many examples and one width")
    })?;
    require(heads.is_multiple_of(key_heads), || {
        format!("{heads} heads are not a multiple of {key_heads} key heads")
    })?;
    if let Some(mask) = mask {
        let extents: [usize; 4] = rank("the mask", mask)?;
        let fits =
            extents.iter().zip([n, heads, queries]).all(|(&extent, whole)| [1, whole].contains(&extent));
        require(mask.dtype == DType::Bool && fits && extents[3] == keys, || {
            format!("the mask must be bool[{n} or 1,{heads} or 1,{queries} or 1,{keys}], it is {mask}")
        })?;
    }
    Ok(TensorType::new(dtype.wide(), [n, queries, heads]))
}

/// Checks the operands of attention's gradient; the types of its outputs.
fn grad(
    [q, k, v, y, saved, dy]: [&TensorType; 6],
    mask: Option<&TensorType>,
) -> Result<Vec<TensorType>, TypeError> {
    let lse = attend(q, k, v, mask)?;
    require(y == q && dy == q, || "q, y and dy must have one shape".into())?;
    require(*saved == lse, || format!("logsumexp must be {lse}, it is {saved}"))?;
    Ok(vec![q.clone(), k.clone(), v.clone()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(op: Attention, types: &[&str]) -> Result<Vec<String>, String> {
        let types: Vec<TensorType> = types.iter().map(|t| t.parse().unwrap()).collect();
        let found = op.infer(&types.iter().collect::<Vec<_>>()).map_err(|e| e.0)?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    fn forward(types: &[&str]) -> Result<Vec<String>, String> {
        infer(Attention::Forward { causal: false, window: None, masked: types.len() == 4 }, types)
    }

    #[test]
    fn keys_may_have_another_length_and_fewer_heads() {
        let (q, k) = ("f32[2,5,6,8]", "f32[2,3,2,8]");
        assert_eq!(forward(&[q, k, k]).unwrap(), [q, "f32[2,5,6]"]);
        let grad = Attention::Grad { causal: true, window: None, masked: false };
        assert_eq!(infer(grad, &[q, k, k, q, "f32[2,5,6]", q]).unwrap(), [q, k, k]);
        for (k, v, reason) in [
            ("f32[2,3,4,8]", "f32[2,3,4,8]", "multiple"),
            ("f32[1,3,2,8]", "f32[1,3,2,8]", "examples"),
            ("f32[2,3,2,4]", "f32[2,3,2,4]", "width"),
            ("f32[2,3,2,8]", "f32[2,4,2,8]", "one shape"),
            ("f64[2,3,2,8]", "f64[2,3,2,8]", "floats of one type"),
            ("f32[2,3,0,8]", "f32[2,3,0,8]", "multiple"),
        ] {
            let error = forward(&[q, k, v]).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_mask_broadcasts_along_extents_of_one() {
        let (q, k) = ("f32[2,5,6,8]", "f32[2,3,2,8]");
        for mask in ["bool[2,6,5,3]", "bool[1,6,5,3]", "bool[2,1,5,3]", "bool[2,6,1,3]", "bool[1,1,1,3]"] {
            assert_eq!(forward(&[q, k, k, mask]).unwrap(), [q, "f32[2,5,6]"]);
        }
        for mask in ["bool[2,2,5,3]", "bool[2,6,5,1]", "bool[5,3]", "f32[2,6,5,3]", "bool[3,6,5,3]"] {
            let error = forward(&[q, k, k, mask]).unwrap_err();
            assert!(error.contains("mask"), "{error}");
        }
        assert!(infer(Attention::Forward { causal: false, window: None, masked: true }, &[q, k, k]).is_err());
        assert!(
            infer(
                Attention::Forward { causal: false, window: None, masked: false },
                &[q, k, k, "bool[1,1,1,3]"]
            )
            .is_err()
        );
    }

    #[test]
    fn a_window_is_of_causal_attention_and_bounds_its_work() {
        let k = "f32[1,100,1,8]";
        let op = |causal, window| Attention::Forward { causal, window, masked: false };
        assert!(infer(op(true, Some(1)), &[k, k, k]).is_ok());
        for op in [op(false, Some(4)), op(true, Some(0))] {
            assert!(infer(op, &[k, k, k]).unwrap_err().contains("window"));
        }
        let k: TensorType = k.parse().unwrap();
        let flops = |window| op(true, window).flops(&[&k, &k, &k], &[]);
        assert_eq!(flops(Some(5)), 100 * 5 * 4 * 8);
        assert_eq!(flops(Some(1000)), flops(None));
    }

    /// A mask has a batch axis, or is one for all examples.
    #[test]
    fn a_mask_for_each_example_without_a_batch_axis_cannot_be_split() {
        let relations = |mask: &str, batched: bool| {
            let types = ["f32[4,5,2,8]", "f32[4,3,2,8]", "f32[4,3,2,8]", mask];
            let types = types.map(|t| t.parse::<TensorType>().unwrap());
            let op = Attention::Forward { causal: false, window: None, masked: true };
            op.batch_relation(&[true, true, true, batched], &types.each_ref())
        };
        assert_eq!(relations("bool[4,1,1,3]", true), [BatchRelation::PerExample; 2]);
        assert_eq!(relations("bool[1,2,5,3]", false), [BatchRelation::PerExample; 2]);
        assert_eq!(relations("bool[4,1,1,3]", false), [BatchRelation::Mixed; 2]);
    }

    #[test]
    fn causal_work_is_that_of_the_pairs_that_see_each_other() {
        let flops = |queries: usize, keys: usize| {
            let q: TensorType = format!("f32[1,{queries},1,1]").parse().unwrap();
            let k: TensorType = format!("f32[1,{keys},1,1]").parse().unwrap();
            Attention::Forward { causal: true, window: None, masked: false }.flops(&[&q, &k, &k], &[])
        };
        assert_eq!(flops(8, 8), 4 * 32);
        assert_eq!(flops(8, 100), 4 * 32);
        assert_eq!(flops(100, 8), 4 * (32 + 92 * 8));
        assert_eq!(flops(0, 8), 0);
    }

    #[test]
    fn rotary_needs_pairs_and_a_base() {
        let rotary = |base, x| infer(Attention::Rotary { base, inverse: false, start: 0 }, &[x]);
        assert_eq!(rotary(10_000.0, "bf16[2,3,4,6]").unwrap(), ["bf16[2,3,4,6]"]);
        for (base, x) in [
            (10_000.0, "f32[2,3,4,5]"),
            (0.0, "f32[2,3,4,6]"),
            (f64::NAN, "f32[2,3,4,6]"),
            (10.0, "f32[2,3,4]"),
            (10.0, "i32[2,3,4,6]"),
        ] {
            assert!(rotary(base, x).is_err(), "{base} {x}");
        }
    }
}
