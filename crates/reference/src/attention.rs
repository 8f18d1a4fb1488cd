//! Attention and its gradient, with whole rows of scores: one query at a time.

use crate::evaluate::Values;
use crate::loss::logsumexp;
use crate::tensor::{Tensor, at};
use plimsoll_graph::op::Attention;

pub(crate) fn evaluate(op: &Attention, inputs: &[Tensor<'_>]) -> Values {
    Ok(match *op {
        Attention::Forward { causal } => forward(&inputs[0], &inputs[1], &inputs[2], causal),
        Attention::Grad { causal } => {
            let [q, k, v, y, lse, dy] = inputs else { unreachable!("the type rule checks the inputs") };
            grad(q, k, v, (y, lse), dy, causal)
        }
    })
}

/// The scores of query `i` against the keys it sees, in the order of the keys.
fn scores(q: &Tensor<'_>, k: &Tensor<'_>, causal: bool, n: usize, head: usize, i: usize) -> Vec<f64> {
    let extents @ [_, positions, _, width] = q.extents();
    let seen = if causal { i + 1 } else { positions };
    let score = |j: usize| {
        let products =
            (0..width).map(|c| q.data[at(extents, [n, i, head, c])] * k.data[at(extents, [n, j, head, c])]);
        products.sum::<f64>() / (width as f64).sqrt()
    };
    (0..seen).map(score).collect()
}

fn forward(q: &Tensor<'_>, k: &Tensor<'_>, v: &Tensor<'_>, causal: bool) -> Vec<Vec<f64>> {
    let extents @ [count, positions, heads, width] = q.extents();
    let mut y = vec![0.0; q.data.len()];
    let mut lse = vec![0.0; count * positions * heads];
    for n in 0..count {
        for i in 0..positions {
            for head in 0..heads {
                let scores = scores(q, k, causal, n, head, i);
                let sum = logsumexp(&scores);
                lse[at([count, positions, heads], [n, i, head])] = sum;
                for (j, score) in scores.iter().enumerate() {
                    for c in 0..width {
                        y[at(extents, [n, i, head, c])] +=
                            (score - sum).exp() * v.data[at(extents, [n, j, head, c])];
                    }
                }
            }
        }
    }
    vec![y, lse]
}

fn grad(
    q: &Tensor<'_>,
    k: &Tensor<'_>,
    v: &Tensor<'_>,
    (y, lse): (&Tensor<'_>, &Tensor<'_>),
    dy: &Tensor<'_>,
    causal: bool,
) -> Vec<Vec<f64>> {
    let extents @ [count, positions, heads, width] = q.extents();
    let scale = 1.0 / (width as f64).sqrt();
    let [mut dq, mut dk, mut dv] = [(); 3].map(|()| vec![0.0; q.data.len()]);
    for n in 0..count {
        for i in 0..positions {
            for head in 0..heads {
                let query = |c: usize| at(extents, [n, i, head, c]);
                let sum = lse.data[at([count, positions, heads], [n, i, head])];
                // Σ_j p_j · dp_j, the part of the softmax's gradient that all keys share.
                let shared: f64 = (0..width).map(|c| dy.data[query(c)] * y.data[query(c)]).sum();
                for (j, score) in scores(q, k, causal, n, head, i).into_iter().enumerate() {
                    let key = |c: usize| at(extents, [n, j, head, c]);
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
