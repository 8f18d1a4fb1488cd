//! Attention against the formula, and its bits.

use super::*;
use crate::math::testing::{Workspace, assert_bits, assert_near, normal, on_all};

struct Exact {
    y: Vec<f64>,
    lse: Vec<f64>,
    gradients: [Vec<f64>; 3],
}

fn exact(spec: &AttentionSpec, [q, k, v, dy]: [&[f32]; 4]) -> Exact {
    let n = spec.elements();
    let mut result = Exact {
        y: vec![0.0; n],
        lse: vec![0.0; n / spec.width.max(1)],
        gradients: [vec![0.0; n], vec![0.0; n], vec![0.0; n]],
    };
    let scale = 1.0 / (spec.width as f64).sqrt();
    let dot = |a: &[f32], at: usize, b: &[f32], bt: usize| -> f64 {
        (0..spec.width).map(|i| f64::from(a[at + i]) * f64::from(b[bt + i])).sum()
    };
    for pair in 0..spec.examples * spec.heads {
        for i in 0..spec.positions {
            let seen = if spec.causal { i + 1 } else { spec.positions };
            let at = |j| spec.offset(pair, j);
            let s: Vec<f64> = (0..seen).map(|j| dot(q, at(i), k, at(j)) * scale).collect();
            let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = max + s.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
            result.lse[spec.entry(pair, i)] = lse;
            let p: Vec<f64> = s.iter().map(|s| (s - lse).exp()).collect();
            let dp: Vec<f64> = (0..seen).map(|j| dot(dy, at(i), v, at(j))).collect();
            let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..seen {
                let ds = p[j] * (dp[j] - delta) * scale;
                for d in 0..spec.width {
                    result.y[at(i) + d] += p[j] * f64::from(v[at(j) + d]);
                    result.gradients[0][at(i) + d] += ds * f64::from(k[at(j) + d]);
                    result.gradients[1][at(j) + d] += ds * f64::from(q[at(i) + d]);
                    result.gradients[2][at(j) + d] += p[j] * f64::from(dy[at(i) + d]);
                }
            }
        }
    }
    result
}

/// y, lse, dq, dk, dv in one vector.
fn run(ctx: Context<'_>, spec: &AttentionSpec, [q, k, v, dy]: [&[f32]; 4]) -> Vec<f32> {
    let n = spec.elements();
    let nan = || vec![f32::NAN; n];
    let (mut y, mut lse) = (nan(), vec![f32::NAN; spec.examples * spec.positions * spec.heads]);
    let mut space = Workspace::new(attention_workspace(ctx.isa, ctx.pool.threads(), spec));
    attention(ctx, spec, q, k, v, &mut y, &mut lse, space.get());
    let (mut dq, mut dk, mut dv) = (nan(), nan(), nan());
    let mut space = Workspace::new(attention_grad_workspace(ctx.isa, ctx.pool.threads(), spec));
    attention_grad(ctx, spec, q, k, v, &y, &lse, dy, &mut dq, &mut dk, &mut dv, space.get());
    [y, lse, dq, dk, dv].concat()
}

use crate::isa::Context;

#[test]
fn forward_and_gradient() {
    for (examples, positions, heads, width) in [
        (1, 1, 1, 1),
        (2, 3, 2, 5),
        (1, 64, 1, 16),
        (2, 65, 3, 7),
        (1, 130, 2, 33),
        (3, 200, 1, 64),
        (0, 5, 2, 4),
    ] {
        for causal in [false, true] {
            let spec = AttentionSpec { examples, positions, heads, width, causal };
            let data = [1, 2, 3, 4].map(|seed| normal(seed, spec.elements()));
            let operands = data.each_ref().map(Vec::as_slice);
            let exact = exact(&spec, operands);
            let wanted: Vec<f64> =
                [exact.y, exact.lse].into_iter().chain(exact.gradients).flatten().collect();
            for found in on_all(|ctx| run(ctx, &spec, operands)) {
                assert_near(&found, &wanted, 1.0, 1e-5, &format!("{spec:?}"));
            }
        }
    }
}

/// Scores of very different size must not overflow.
#[test]
fn large_scores() {
    let spec = AttentionSpec { examples: 1, positions: 150, heads: 1, width: 8, causal: true };
    let data = [1, 2, 3, 4].map(|seed| normal(seed, spec.elements()));
    let large: Vec<f32> = data[0].iter().map(|x| x * 40.0).collect();
    let operands = [&large[..], &data[1], &data[2], &data[3]];
    let exact = exact(&spec, operands);
    for found in on_all(|ctx| run(ctx, &spec, operands)) {
        assert_near(&found[..spec.elements()], &exact.y, 1.0, 1e-4, "y");
    }
}

/// An example's bits must not depend on the examples beside it.
#[test]
fn an_example_is_computed_as_if_alone() {
    let spec = AttentionSpec { examples: 3, positions: 70, heads: 2, width: 9, causal: true };
    let one = AttentionSpec { examples: 1, ..spec };
    let data = [1, 2, 3, 4].map(|seed| normal(seed, spec.elements()));
    let each = one.elements();
    on_all(|ctx| {
        let all = run(ctx, &spec, data.each_ref().map(Vec::as_slice));
        let alone = run(ctx, &one, data.each_ref().map(|x| &x[2 * each..]));
        assert_bits(&all[2 * each..3 * each], &alone[..each], "y");
        let entries = each / 9;
        for g in 0..3 {
            let (a, b) = (3 * (each + entries) + g * 3 * each, each + entries + g * each);
            assert_bits(&all[a + 2 * each..a + 3 * each], &alone[b..b + each], "gradient");
        }
        all
    });
}
