//! Recurrences, position by position.

use crate::evaluate::Values;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::Recurrent;

pub(crate) fn evaluate(op: Recurrent, inputs: &[Elements<'_>]) -> Values {
    match (op, inputs) {
        (Recurrent::Lstm { reverse }, [x, kernel, h, c]) => Ok(lstm(reverse, x, kernel, h, c)),
        (Recurrent::LstmGrad { reverse, .. }, [kernel, c, cells, gates, dy, rest @ ..]) => {
            Ok(lstm_grad(reverse, kernel, c, cells, gates, dy, rest.first()))
        }
        _ => unreachable!("the type rule checks the inputs"),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The positions in the order of the recurrence.
fn order(positions: usize, reverse: bool) -> Vec<usize> {
    if reverse { (0..positions).rev().collect() } else { (0..positions).collect() }
}

fn lstm(
    reverse: bool,
    x: &Elements<'_>,
    kernel: &Elements<'_>,
    h: &Elements<'_>,
    c: &Elements<'_>,
) -> Vec<Vec<f64>> {
    let ([n, t, wide], [units, _]) = (x.extents(), kernel.extents());
    let (mut y, mut cells) = (vec![0.0; n * t * units], vec![0.0; n * t * units]);
    let mut gates = vec![0.0; n * t * wide];
    for e in 0..n {
        let (mut h, mut c): (Vec<f64>, Vec<f64>) =
            (0..units).map(|j| at([n, units], [e, j])).map(|i| (h.data[i], c.data[i])).unzip();
        for p in order(t, reverse) {
            for g in 0..wide {
                let product: f64 = (0..units).map(|j| h[j] * kernel.data[at([units, wide], [j, g])]).sum();
                let sum = x.data[at([n, t, wide], [e, p, g])] + product;
                let is_new = g / units == 2;
                gates[at([n, t, wide], [e, p, g])] = if is_new { sum.tanh() } else { sigmoid(sum) };
            }
            for j in 0..units {
                let gate = |g: usize| gates[at([n, t, wide], [e, p, g * units + j])];
                c[j] = gate(1) * c[j] + gate(0) * gate(2);
                h[j] = gate(3) * c[j].tanh();
                cells[at([n, t, units], [e, p, j])] = c[j];
                y[at([n, t, units], [e, p, j])] = h[j];
            }
        }
    }
    vec![y, cells, gates]
}

fn lstm_grad(
    reverse: bool,
    kernel: &Elements<'_>,
    c: &Elements<'_>,
    cells: &Elements<'_>,
    gates: &Elements<'_>,
    dy: &Elements<'_>,
    dcells: Option<&Elements<'_>>,
) -> Vec<Vec<f64>> {
    let ([n, t, wide], [units, _]) = (gates.extents(), kernel.extents());
    let mut dx = vec![0.0; n * t * wide];
    let (mut dh_first, mut dc_first) = (vec![0.0; n * units], vec![0.0; n * units]);
    for e in 0..n {
        let (mut dh, mut dc) = (vec![0.0; units], vec![0.0; units]);
        let mut positions = order(t, reverse);
        while let Some(p) = positions.pop() {
            for j in 0..units {
                let here = at([n, t, units], [e, p, j]);
                let gate = |g: usize| gates.data[at([n, t, wide], [e, p, g * units + j])];
                let before = match positions.last() {
                    Some(&earlier) => cells.data[at([n, t, units], [e, earlier, j])],
                    None => c.data[at([n, units], [e, j])],
                };
                let squashed = cells.data[here].tanh();
                let dh = dy.data[here] + dh[j];
                dc[j] += dh * gate(3) * (1.0 - squashed * squashed) + dcells.map_or(0.0, |d| d.data[here]);
                let slope = |g: usize| gate(g) * (1.0 - gate(g));
                let new = 1.0 - gate(2) * gate(2);
                let all = [
                    dc[j] * gate(2) * slope(0),
                    dc[j] * before * slope(1),
                    dc[j] * gate(0) * new,
                    dh * squashed * slope(3),
                ];
                for (g, value) in all.into_iter().enumerate() {
                    dx[at([n, t, wide], [e, p, g * units + j])] = value;
                }
                dc[j] *= gate(1);
            }
            for (j, dh) in dh.iter_mut().enumerate() {
                let term =
                    |g: usize| dx[at([n, t, wide], [e, p, g])] * kernel.data[at([units, wide], [j, g])];
                *dh = (0..wide).map(term).sum();
            }
        }
        for j in 0..units {
            dh_first[at([n, units], [e, j])] = dh[j];
            dc_first[at([n, units], [e, j])] = dc[j];
        }
    }
    vec![dx, dh_first, dc_first]
}
