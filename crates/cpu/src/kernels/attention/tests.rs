//! Attention against the formula, and its bits.

use super::*;
use crate::isa::Context;
use crate::kernels::testing::{Workspace, assert_bits, assert_near, below, normal, on_all};

const PLAIN: AttentionSpec = AttentionSpec {
    examples: 1,
    queries: 1,
    keys: 1,
    heads: 1,
    key_heads: 1,
    width: 1,
    causal: false,
    window: None,
    mask: None,
};

/// Inputs of attention and its gradient.
struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dy: Vec<f32>,
    mask: Vec<u8>,
}

impl Data {
    /// Normal numbers; a third of the keys is masked.
    fn new(spec: &AttentionSpec) -> Self {
        let [q, dy] = [1, 4].map(|seed| normal(seed, spec.query_elements()));
        let [k, v] = [2, 3].map(|seed| normal(seed, spec.key_elements()));
        let mask = below(5, spec.mask_elements(), 3).into_iter().map(|x| u8::from(x > 0)).collect();
        Self { q, k, v, dy, mask }
    }

    fn sees(&self, spec: &AttentionSpec, index: [usize; 4]) -> bool {
        let masked = spec.mask.is_some_and(|extents| {
            let axes = extents.iter().zip(index);
            self.mask[axes.fold(0, |at, (&extent, i)| at * extent + if extent == 1 { 0 } else { i })] == 0
        });
        let near = spec.window.is_none_or(|window| index[2] < index[3] + window);
        !masked && near && (!spec.causal || index[3] <= index[2])
    }
}

/// y, lse, dq, dk, dv.
type Results<T> = [Vec<T>; 5];

fn exact(spec: &AttentionSpec, data: &Data) -> Results<f64> {
    let [mut y, mut dq] = [(); 2].map(|()| vec![0.0; spec.query_elements()]);
    let [mut dk, mut dv] = [(); 2].map(|()| vec![0.0; spec.key_elements()]);
    let mut all_lse = vec![0.0; spec.rows()];
    let scale = 1.0 / (spec.width as f64).sqrt();
    let dot = |a: &[f32], at: usize, b: &[f32], bt: usize| -> f64 {
        (0..spec.width).map(|i| f64::from(a[at + i]) * f64::from(b[bt + i])).sum()
    };
    for (example, head) in (0..spec.examples).flat_map(|e| (0..spec.heads).map(move |h| (e, h))) {
        let key_head = head * spec.key_heads / spec.heads;
        let key = |j| ((example * spec.keys + j) * spec.key_heads + key_head) * spec.width;
        for i in 0..spec.queries {
            let row = (example * spec.queries + i) * spec.heads + head;
            let at = row * spec.width;
            let seen: Vec<usize> =
                (0..spec.keys).filter(|&j| data.sees(spec, [example, head, i, j])).collect();
            let s: Vec<f64> = seen.iter().map(|&j| dot(&data.q, at, &data.k, key(j)) * scale).collect();
            let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = s.iter().map(|s| (s - max).exp()).sum();
            let lse = if seen.is_empty() { f64::NEG_INFINITY } else { max + sum.ln() };
            all_lse[row] = lse;
            let p: Vec<f64> = s.iter().map(|s| (s - lse).exp()).collect();
            let dp: Vec<f64> = seen.iter().map(|&j| dot(&data.dy, at, &data.v, key(j))).collect();
            let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for (n, &j) in seen.iter().enumerate() {
                let ds = p[n] * (dp[n] - delta) * scale;
                for d in 0..spec.width {
                    y[at + d] += p[n] * f64::from(data.v[key(j) + d]);
                    dq[at + d] += ds * f64::from(data.k[key(j) + d]);
                    dk[key(j) + d] += ds * f64::from(data.q[at + d]);
                    dv[key(j) + d] += p[n] * f64::from(data.dy[at + d]);
                }
            }
        }
    }
    [y, all_lse, dq, dk, dv]
}

fn run(ctx: Context<'_>, spec: &AttentionSpec, data: &Data) -> Results<f32> {
    let Data { q, k, v, dy, mask } = data;
    let nan = |len| vec![f32::NAN; len];
    let (mut y, mut lse) = (nan(spec.query_elements()), nan(spec.rows()));
    let mut space = Workspace::new(attention_workspace::<f32>(ctx.isa, ctx.pool.threads(), spec));
    attention(ctx, spec, q, k, v, mask, &mut y, &mut lse, space.get());
    let mut dq = nan(spec.query_elements());
    let [mut dk, mut dv] = [(); 2].map(|()| nan(spec.key_elements()));
    let mut space = Workspace::new(attention_grad_workspace::<f32>(ctx.isa, ctx.pool.threads(), spec));
    attention_grad(ctx, spec, q, k, v, &y, &lse, dy, mask, &mut dq, &mut dk, &mut dv, space.get());
    [y, lse, dq, dk, dv]
}

/// Compares all results on every instruction set and number of threads; -infinity only with -infinity.
fn check(spec: &AttentionSpec) {
    let data = Data::new(spec);
    let wanted = exact(spec, &data).concat();
    let none = |x: f64| x == f64::NEG_INFINITY;
    let finite: Vec<f64> = wanted.iter().map(|&x| if none(x) { 0.0 } else { x }).collect();
    for found in on_all(|ctx| run(ctx, spec, &data).concat()) {
        assert!(found.iter().zip(&wanted).all(|(&a, &b)| none(f64::from(a)) == none(b)), "{spec:?}");
        let found: Vec<f32> = found.into_iter().map(|x| if none(f64::from(x)) { 0.0 } else { x }).collect();
        assert_near(&found, &finite, 1.0, 1e-5, &format!("{spec:?}"));
    }
}

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
            let (queries, keys, key_heads) = (positions, positions, heads);
            check(&AttentionSpec { examples, queries, keys, heads, key_heads, width, causal, ..PLAIN });
        }
    }
}

#[test]
fn keys_of_another_length_and_shared_key_heads() {
    for (queries, keys) in [(1, 70), (70, 1), (70, 33), (33, 70), (5, 200), (200, 5), (0, 3), (3, 0)] {
        for (heads, key_heads) in [(1, 1), (4, 1), (6, 2)] {
            for causal in [false, true] {
                let spec = AttentionSpec { examples: 2, queries, keys, heads, key_heads, width: 9, ..PLAIN };
                check(&AttentionSpec { causal, ..spec });
            }
        }
    }
}

/// Windows that begin at a tile and in one, wider than all positions, and of one; queries past what the last key reaches.
#[test]
fn windows_hide_earlier_keys() {
    for (queries, keys) in [(5, 5), (130, 130), (200, 200), (33, 70), (200, 70), (3, 0)] {
        for window in [1, 2, 63, 64, 65, 100, 500] {
            for mask in [None, Some([1, 1, queries, keys])] {
                let spec = AttentionSpec { queries, keys, heads: 2, causal: true, mask, ..PLAIN };
                check(&AttentionSpec { width: 5, window: Some(window), ..spec });
            }
        }
    }
}

#[test]
fn masks_broadcast_along_every_axis() {
    for (queries, keys) in [(3, 2), (70, 33), (33, 140)] {
        for ones in 0..8 {
            for causal in [false, true] {
                let spec = AttentionSpec { examples: 2, queries, keys, heads: 4, key_heads: 2, ..PLAIN };
                let extent = |axis: usize, whole| if ones >> axis & 1 == 1 { 1 } else { whole };
                let mask = Some([extent(0, 2), extent(1, 4), extent(2, queries), keys]);
                check(&AttentionSpec { width: 7, causal, mask, ..spec });
            }
        }
    }
}

#[test]
fn a_query_whose_keys_are_all_masked_gives_zeros() {
    let mask = Some([1, 1, 3, 70]);
    let spec = AttentionSpec { queries: 3, keys: 70, width: 4, mask, ..PLAIN };
    let mut data = Data::new(&spec);
    data.mask[70..140].fill(0);
    on_all(|ctx| {
        let [y, lse, dq, dk, dv] = run(ctx, &spec, &data);
        assert_eq!((&y[4..8], &dq[4..8], lse[1]), (&[0.0; 4][..], &[0.0; 4][..], f32::NEG_INFINITY));
        assert!(
            [&y[..4], &y[8..], &lse[..1], &lse[2..], &dk, &dv]
                .iter()
                .all(|x| x.iter().all(|x| x.is_finite()))
        );
        y
    });
}

/// Scores of very different size must not overflow.
#[test]
fn large_scores() {
    let spec = AttentionSpec { queries: 150, keys: 150, width: 8, causal: true, ..PLAIN };
    let mut data = Data::new(&spec);
    data.q.iter_mut().for_each(|x| *x *= 40.0);
    let [exact, ..] = exact(&spec, &data);
    for found in on_all(|ctx| run(ctx, &spec, &data).concat()) {
        assert_near(&found[..spec.query_elements()], &exact, 1.0, 1e-4, "y");
    }
}

/// An example's bits must not depend on the examples beside it, whether the mask is its own or shared.
#[test]
fn an_example_is_computed_as_if_alone() {
    let wide =
        AttentionSpec { examples: 3, queries: 70, keys: 70, heads: 2, key_heads: 2, width: 9, ..PLAIN };
    for spec in [
        AttentionSpec { causal: true, ..wide },
        AttentionSpec { causal: true, window: Some(7), ..wide },
        AttentionSpec { keys: 130, heads: 4, mask: Some([3, 1, 70, 130]), ..wide },
        AttentionSpec { keys: 33, heads: 4, mask: Some([1, 4, 1, 33]), ..wide },
    ] {
        let mask = spec.mask.map(|[_, heads, queries, keys]| [1, heads, queries, keys]);
        let one = AttentionSpec { examples: 1, mask, ..spec };
        let data = Data::new(&spec);
        let last = |x: &[f32]| x[x.len() / 3 * 2..].to_vec();
        let own = data.mask[spec.mask_elements() - one.mask_elements()..].to_vec();
        let [q, k, v, dy] = [&data.q, &data.k, &data.v, &data.dy].map(|x| last(x));
        let single = Data { q, k, v, dy, mask: own };
        on_all(|ctx| {
            let (all, alone) = (run(ctx, &spec, &data), run(ctx, &one, &single));
            for (all, alone) in all.iter().zip(&alone) {
                assert_bits(&last(all), alone, &format!("{spec:?}"));
            }
            alone.concat()
        });
    }
}

fn rotated(ctx: Context<'_>, spec: &RotarySpec, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    let mut space = Workspace::new(rotary_workspace(spec));
    // SAFETY: x and y have the spec's elements.
    unsafe { rotary(ctx, spec, x.as_ptr(), y.as_mut_ptr(), space.get()) };
    y
}

#[test]
fn rotations() {
    for (examples, positions, heads, width) in [
        (1, 1, 1, 2),
        (2, 70, 3, 6),
        (1, 5, 2, 16),
        (3, 130, 1, 36),
        (2, 600, 4, 64),
        (0, 3, 1, 4),
        (2, 3, 2, 0),
    ] {
        for (inverse, start) in [(false, 0), (true, 0), (false, 9)] {
            let spec = RotarySpec { examples, positions, heads, width, base: 10_000.0, inverse, start };
            let x = normal(1, examples * positions * heads * width);
            let mut wanted = vec![0.0; x.len()];
            for (row, (x, y)) in
                x.chunks_exact(width.max(1)).zip(wanted.chunks_exact_mut(width.max(1))).enumerate()
            {
                let position = (start + row / heads % positions) as f64;
                for i in 0..width / 2 {
                    let angle = position / 10_000f64.powf(2.0 * i as f64 / width as f64);
                    let (sin, cos) = if inverse { (-angle).sin_cos() } else { angle.sin_cos() };
                    let (a, b) = (f64::from(x[i]), f64::from(x[i + width / 2]));
                    (y[i], y[i + width / 2]) = (a * cos - b * sin, a * sin + b * cos);
                }
            }
            for found in on_all(|ctx| rotated(ctx, &spec, &x)) {
                assert_near(&found, &wanted, 1.0, 1e-6, &format!("{spec:?}"));
            }
        }
    }
}

#[test]
fn rotations_in_place_have_the_same_bits() {
    let spec =
        RotarySpec { examples: 2, positions: 70, heads: 3, width: 22, base: 500.0, inverse: false, start: 0 };
    let x = normal(1, 2 * 70 * 3 * 22);
    on_all(|ctx| {
        let (apart, mut in_place) = (rotated(ctx, &spec, &x), x.clone());
        let mut space = Workspace::new(rotary_workspace(&spec));
        let memory = in_place.as_mut_ptr();
        // SAFETY: the memory has the spec's elements.
        unsafe { rotary(ctx, &spec, memory, memory, space.get()) };
        assert_bits(&in_place, &apart, "in place");
        in_place
    });
}
