//! Attention and its gradient, with whole rows of scores: one query at a time. Rotary positions.

use crate::evaluate::Values;
use crate::loss::logsumexp;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::Attention;

pub(crate) fn evaluate(op: &Attention, inputs: &[Elements<'_>]) -> Values {
    Ok(match (*op, inputs) {
        (Attention::Forward { causal, window, .. }, [q, k, v, rest @ ..]) => {
            forward(&Scores { q, k, mask: rest.first(), causal, window }, v)
        }
        (Attention::Grad { causal, window, .. }, [q, k, v, y, lse, dy, rest @ ..]) => {
            grad(&Scores { q, k, mask: rest.first(), causal, window }, v, (y, lse), dy)
        }
        (Attention::Rotary { base, inverse, start }, [x]) => vec![rotary(x, base, inverse, start)],
        _ => unreachable!("the type rule checks the inputs"),
    })
}

/// The operands of the scores.
struct Scores<'a> {
    q: &'a Elements<'a>,
    k: &'a Elements<'a>,
    mask: Option<&'a Elements<'a>>,
    causal: bool,
    window: Option<usize>,
}

impl Scores<'_> {
    /// The key head of a head's queries.
    fn key_head(&self, head: usize) -> usize {
        let ([_, _, heads, _], [_, _, key_heads, _]) = (self.q.extents(), self.k.extents());
        head / (heads / key_heads)
    }

    /// Whether query `i` of a head sees key `j`.
    fn sees(&self, n: usize, head: usize, i: usize, j: usize) -> bool {
        let masked = self.mask.is_some_and(|mask| {
            let extents: [usize; 4] = mask.extents();
            let index = [0, 1, 2, 3].map(|axis| if extents[axis] == 1 { 0 } else { [n, head, i, j][axis] });
            mask.data[at(extents, index)] == 0.0
        });
        !masked && (!self.causal || j <= i) && self.window.is_none_or(|window| i < j + window)
    }

    /// The keys that query `i` of a head sees, in order, with their scores.
    fn of(&self, n: usize, head: usize, i: usize) -> Vec<(usize, f64)> {
        let (extents @ [_, _, _, width], key_extents @ [_, keys, _, _]) =
            (self.q.extents(), self.k.extents());
        let score = |j: usize| {
            let query = |c: usize| self.q.data[at(extents, [n, i, head, c])];
            let key = |c: usize| self.k.data[at(key_extents, [n, j, self.key_head(head), c])];
            (0..width).map(|c| query(c) * key(c)).sum::<f64>() / (width as f64).sqrt()
        };
        (0..keys).filter(|&j| self.sees(n, head, i, j)).map(|j| (j, score(j))).collect()
    }
}

fn forward(scores: &Scores<'_>, v: &Elements<'_>) -> Vec<Vec<f64>> {
    let extents @ [count, queries, heads, width] = scores.q.extents();
    let mut y = vec![0.0; scores.q.data.len()];
    let mut lse = vec![0.0; count * queries * heads];
    for n in 0..count {
        for i in 0..queries {
            for head in 0..heads {
                let seen = scores.of(n, head, i);
                let sum = logsumexp(&seen.iter().map(|(_, score)| *score).collect::<Vec<_>>());
                lse[at([count, queries, heads], [n, i, head])] = sum;
                for (j, score) in seen {
                    let key = |c: usize| at(v.extents(), [n, j, scores.key_head(head), c]);
                    for c in 0..width {
                        y[at(extents, [n, i, head, c])] += (score - sum).exp() * v.data[key(c)];
                    }
                }
            }
        }
    }
    vec![y, lse]
}

fn grad(
    scores: &Scores<'_>,
    v: &Elements<'_>,
    (y, lse): (&Elements<'_>, &Elements<'_>),
    dy: &Elements<'_>,
) -> Vec<Vec<f64>> {
    let (q, k) = (scores.q, scores.k);
    let extents @ [count, queries, heads, width] = q.extents();
    let scale = 1.0 / (width as f64).sqrt();
    let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.data.len()]);
    for n in 0..count {
        for i in 0..queries {
            for head in 0..heads {
                let query = |c: usize| at(extents, [n, i, head, c]);
                let sum = lse.data[at([count, queries, heads], [n, i, head])];
                // Σ_j p_j · dp_j, the part of the softmax's gradient that all keys share.
                let shared: f64 = (0..width).map(|c| dy.data[query(c)] * y.data[query(c)]).sum();
                for (j, score) in scores.of(n, head, i) {
                    let key = |c: usize| at(k.extents(), [n, j, scores.key_head(head), c]);
                    let p = (score - sum).exp();
                    let dp: f64 = (0..width).map(|c| dy.data[query(c)] * v.data[key(c)]).sum();
                    let dscore = p * (dp - shared) * scale;
                    for c in 0..width {
                        dv[key(c)] += p * dy.data[query(c)];
                        dq[query(c)] += dscore * k.data[key(c)];
                        dk[key(c)] += dscore * q.data[query(c)];
                    }
                }
            }
        }
    }
    vec![dq, dk, dv]
}

fn rotary(x: &Elements<'_>, base: f64, inverse: bool, start: usize) -> Vec<f64> {
    let extents @ [count, positions, heads, width] = x.extents();
    let mut y = vec![0.0; x.data.len()];
    for n in 0..count {
        for position in 0..positions {
            for head in 0..heads {
                for i in 0..width / 2 {
                    let [a, b] = [i, i + width / 2].map(|c| at(extents, [n, position, head, c]));
                    let angle = (start + position) as f64 * base.powf(-2.0 * i as f64 / width as f64);
                    let (sin, cos) = if inverse { (-angle).sin_cos() } else { angle.sin_cos() };
                    y[a] = x.data[a] * cos - x.data[b] * sin;
                    y[b] = x.data[b] * cos + x.data[a] * sin;
                }
            }
        }
    }
    y
}
