//! The recurrence against the formula, and its bits.

use super::*;
use crate::kernels::testing::{Workspace, assert_bits, assert_near, normal, on_all};

struct Case {
    spec: LstmSpec,
    x: Vec<f32>,
    kernel: Vec<f32>,
    state: [Vec<f32>; 2],
    dy: Vec<f32>,
    dcells: Vec<f32>,
}

/// y, cells, gates; dx, dh, dc.
type Results = [Vec<f32>; 6];

impl Case {
    fn new(examples: usize, positions: usize, units: usize, reverse: bool) -> Self {
        let spec = LstmSpec { examples, positions, units, reverse };
        let scaled = |seed, len, by: f32| normal(seed, len).into_iter().map(|x| x * by).collect::<Vec<f32>>();
        Self {
            x: normal(1, 4 * spec.sequence()),
            kernel: scaled(2, spec.kernel(), 1.0 / (units as f32).sqrt()),
            state: [scaled(3, spec.state(), 0.5), normal(4, spec.state())],
            dy: normal(5, spec.sequence()),
            dcells: normal(6, spec.sequence()),
            spec,
        }
    }

    /// The part of a buffer that belongs to some examples.
    fn of<'a>(&self, all: &'a [f32], examples: &Range<usize>) -> &'a [f32] {
        let each = all.len() / self.spec.examples.max(1);
        &all[examples.start * each..examples.end * each]
    }

    /// Runs some examples, in place where that is possible.
    fn run(&self, ctx: Context<'_>, examples: Range<usize>, in_place: bool) -> Results {
        let spec = LstmSpec { examples: examples.len(), ..self.spec };
        let threads = ctx.pool.threads();
        let of = |all: &[f32]| self.of(all, &examples).to_vec();
        let (mut x, h, mut c) = (of(&self.x), of(&self.state[0]), of(&self.state[1]));
        let (mut y, mut cells) = (vec![f32::NAN; spec.sequence()], vec![f32::NAN; spec.sequence()]);
        let mut gates = vec![f32::NAN; if in_place { 0 } else { 4 * spec.sequence() }];
        let operands = LstmOperands {
            x: x.as_mut_ptr(),
            kernel: self.kernel.as_ptr(),
            h: h.as_ptr(),
            c: c.as_ptr(),
            y: y.as_mut_ptr(),
            cells: cells.as_mut_ptr(),
            gates: if in_place { x.as_mut_ptr() } else { gates.as_mut_ptr() },
        };
        let mut space = Workspace::new(lstm_workspace(threads, &spec));
        // SAFETY: all buffers have their sizes.
        unsafe { lstm(ctx, &spec, &operands, space.get()) };
        let mut gates = if in_place { x } else { gates };
        let saved = gates.clone();
        let (dy, dcells) = (of(&self.dy), of(&self.dcells));
        let mut dx = vec![f32::NAN; if in_place { 0 } else { 4 * spec.sequence() }];
        let (mut dh, mut dc) = (vec![f32::NAN; spec.state()], vec![f32::NAN; spec.state()]);
        let operands = LstmGradOperands {
            kernel: self.kernel.as_ptr(),
            c: c.as_ptr(),
            cells: cells.as_ptr(),
            gates: gates.as_ptr(),
            dy: dy.as_ptr(),
            dcells: dcells.as_ptr(),
            dx: if in_place { gates.as_mut_ptr() } else { dx.as_mut_ptr() },
            dh: dh.as_mut_ptr(),
            dc: if in_place { c.as_mut_ptr() } else { dc.as_mut_ptr() },
        };
        let mut space = Workspace::new(lstm_grad_workspace(threads, &spec));
        // SAFETY: all buffers have their sizes.
        unsafe { lstm_grad(ctx, &spec, &operands, space.get()) };
        let (dx, dc) = if in_place { (gates, c) } else { (dx, dc) };
        [y, cells, saved, dx, dh, dc]
    }
}

const CASES: [(usize, usize, usize); 8] =
    [(1, 1, 1), (2, 3, 5), (0, 2, 3), (3, 0, 4), (5, 4, 33), (70, 3, 40), (33, 5, 100), (1100, 2, 33)];

/// Other results by other threads, by other examples beside them, or in place would be a fault.
#[test]
fn bits_depend_on_an_example_alone() {
    for (examples, positions, units) in CASES {
        for reverse in [false, true] {
            let case = Case::new(examples, positions, units, reverse);
            on_all(|ctx| {
                let all = case.run(ctx, 0..examples, false);
                let in_place = case.run(ctx, 0..examples, true);
                let half = examples / 2;
                let parts = [case.run(ctx, 0..half, false), case.run(ctx, half..examples, true)];
                for (i, whole) in all.iter().enumerate() {
                    assert_bits(&in_place[i], whole, "in place");
                    assert_bits(&[&parts[0][i][..], &parts[1][i][..]].concat(), whole, "in two parts");
                }
                all.concat()
            });
        }
    }
}

/// The gradients are those of `Σ y · dy + cells · dcells`, by differences of the forward pass in f64.
#[test]
fn gradients_are_those_of_the_recurrence() {
    let (examples, positions, units) = (2, 4, 3);
    for reverse in [false, true] {
        let case = Case::new(examples, positions, units, reverse);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let start = [wide(&case.x), wide(&case.state[0]), wide(&case.state[1])];
        let objective = |inputs: &[Vec<f64>; 3]| {
            let (y, cells) = exact(&case, inputs);
            let sum = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
            sum(&y, &case.dy) + sum(&cells, &case.dcells)
        };
        let wanted = [0, 1, 2].map(|input: usize| {
            let slope = |i: usize| {
                let at = |by: f64| {
                    let mut moved = start.clone();
                    moved[input][i] += by;
                    objective(&moved)
                };
                (at(1e-5) - at(-1e-5)) / 2e-5
            };
            (0..start[input].len()).map(slope).collect::<Vec<f64>>()
        });
        let (y, cells) = exact(&case, &start);
        on_all(|ctx| {
            let found = case.run(ctx, 0..examples, false);
            assert_near(&found[0], &y, 1.0, 1e-5, "y");
            assert_near(&found[1], &cells, 1.0, 1e-5, "cells");
            for (found, wanted) in found[3..].iter().zip(&wanted) {
                assert_near(found, wanted, 1.0, 2e-5, "gradient");
            }
            found.concat()
        });
    }
}

/// y and cells in f64.
fn exact(case: &Case, [x, h, c]: &[Vec<f64>; 3]) -> (Vec<f64>, Vec<f64>) {
    let spec = &case.spec;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut y, mut cells) = (vec![0.0; spec.sequence()], vec![0.0; spec.sequence()]);
    for e in 0..spec.examples {
        let mut h = h[e * spec.units..(e + 1) * spec.units].to_vec();
        let mut c = c[e * spec.units..(e + 1) * spec.units].to_vec();
        for step in 0..spec.positions {
            let at = spec.at(e, spec.position(step));
            let gate = |g: usize| {
                let column = |j: usize| f64::from(case.kernel[j * 4 * spec.units + g]);
                x[4 * at + g] + (0..spec.units).map(|j| h[j] * column(j)).sum::<f64>()
            };
            let sums: Vec<f64> = (0..4 * spec.units).map(gate).collect();
            for j in 0..spec.units {
                let [i, f, n, o] = [0, 1, 2, 3].map(|g| sums[g * spec.units + j]);
                c[j] = sigmoid(f) * c[j] + sigmoid(i) * n.tanh();
                h[j] = sigmoid(o) * c[j].tanh();
                (y[at + j], cells[at + j]) = (h[j], c[j]);
            }
        }
    }
    (y, cells)
}
