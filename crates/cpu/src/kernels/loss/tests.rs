//! Losses against the formula, and their bits.

use super::*;
use crate::kernels::testing::{Workspace, assert_bits, assert_near, below, normal, on_all};
use std::ops::Range;

struct Case {
    spec: LinearSpec,
    x: Vec<f32>,
    kernel: Vec<f32>,
    labels: Vec<i32>,
    weights: Vec<f32>,
}

const DLOSS: f32 = 0.7;

impl Case {
    fn new(rows: usize, width: usize, classes: usize, block_rows: usize) -> Self {
        Self {
            spec: LinearSpec { rows, width, classes, transposed: false, block_rows, accumulate: false },
            x: normal(1, rows * width),
            kernel: normal(2, width * classes),
            labels: below(3, rows, classes),
            weights: normal(4, rows),
        }
    }

    fn logits(&self) -> Vec<f64> {
        let LinearSpec { rows, width, classes, .. } = self.spec;
        let mut logits = vec![0.0; rows * classes];
        for r in 0..rows {
            for d in 0..width {
                for c in 0..classes {
                    logits[r * classes + c] +=
                        f64::from(self.x[r * width + d]) * f64::from(self.kernel[d * classes + c]);
                }
            }
        }
        logits
    }

    /// loss, lse, dlogits.
    fn exact(&self, logits: &[f64]) -> (f64, Vec<f64>, Vec<f64>) {
        let classes = self.spec.classes;
        let (mut loss, mut all_lse, mut gradient) = (0.0, Vec::new(), Vec::new());
        for (r, row) in logits.chunks(classes).enumerate() {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = max + row.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
            let (label, weight) = (self.labels[r] as usize, f64::from(self.weights[r]));
            loss += weight * (lse - row[label]);
            all_lse.push(lse);
            let hot = |c| if c == label { 1.0 } else { 0.0 };
            let scale = weight * f64::from(DLOSS);
            gradient.extend(row.iter().enumerate().map(|(c, x)| ((x - lse).exp() - hot(c)) * scale));
        }
        (loss, all_lse, gradient)
    }

    /// Loss, lse, dx and dkernel of some rows; loss and dkernel are added to what is given.
    fn linear(
        &self,
        ctx: Context<'_>,
        rows: Range<usize>,
        accumulate: bool,
        loss: &mut f32,
        dkernel: &mut [f32],
    ) -> Vec<f32> {
        let spec = LinearSpec { rows: rows.len(), accumulate, ..self.spec };
        let x = &self.x[rows.start * spec.width..rows.end * spec.width];
        let (labels, weights) = (&self.labels[rows.clone()], &self.weights[rows.clone()]);
        let (mut lse, mut dx) = (vec![f32::NAN; rows.len()], vec![f32::NAN; x.len()]);
        let threads = ctx.pool.threads();
        let (mut loss_of_both, mut dkernel_of_both) = (*loss, dkernel.to_vec());
        let mut space = Workspace::new(linear_cross_entropy_workspace::<f32>(ctx.isa, threads, &spec));
        linear_cross_entropy(ctx, &spec, x, &self.kernel, labels, weights, loss, &mut lse, space.get())
            .expect("in range");
        let mut space = Workspace::new(linear_cross_entropy_grad_workspace::<f32>(ctx.isa, threads, &spec));
        let space = space.get();
        linear_cross_entropy_grad(
            ctx,
            &spec,
            x,
            &self.kernel,
            labels,
            weights,
            &lse,
            DLOSS,
            &mut dx,
            dkernel,
            space,
        )
        .expect("in range");
        let bytes = linear_cross_entropy_with_grad_workspace::<f32>(ctx.isa, threads, &spec);
        let mut dx_of_both = vec![f32::NAN; x.len()];
        linear_cross_entropy_with_grad(
            ctx,
            &spec,
            x,
            &self.kernel,
            labels,
            weights,
            DLOSS,
            &mut loss_of_both,
            &mut dx_of_both,
            &mut dkernel_of_both,
            Workspace::new(bytes).get(),
        )
        .expect("in range");
        assert_bits(&[loss_of_both], &[*loss], "loss in one pass");
        assert_bits(&dx_of_both, &dx, "dx in one pass");
        assert_bits(&dkernel_of_both, dkernel, "dkernel in one pass");
        [lse, dx].concat()
    }
}

#[test]
fn of_logits() {
    for (rows, classes, block) in
        [(1, 1, 1), (0, 3, 2), (7, 10, 2), (300, 65, 16), (5, 3000, 4), (1000, 10, 1000)]
    {
        let case = Case::new(rows, 1, classes, block);
        let logits: Vec<f32> = normal(5, rows * classes).iter().map(|x| x * 10.0).collect();
        let (loss, lse, gradient) = case.exact(&logits.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let wanted: Vec<f64> = [vec![loss], lse, gradient].concat();
        let results = on_all(|ctx| {
            let part = |rows: Range<usize>, accumulate, loss: &mut f32| {
                let mut lse = vec![f32::NAN; rows.len()];
                let mut space = Workspace::new(cross_entropy_workspace(rows.len()));
                let logits = &logits[rows.start * classes..rows.end * classes];
                let (labels, weights) = (&case.labels[rows.clone()], &case.weights[rows.clone()]);
                cross_entropy(
                    ctx,
                    rows.len(),
                    classes,
                    block,
                    accumulate,
                    logits,
                    labels,
                    weights,
                    loss,
                    &mut lse,
                    space.get(),
                )
                .expect("in range");
                lse
            };
            let mut loss = f32::NAN;
            let lse = part(0..rows, false, &mut loss);
            let cut = rows / 2 / block * block;
            let mut in_two = f32::NAN;
            let halves = [part(0..cut, false, &mut in_two), part(cut..rows, true, &mut in_two)].concat();
            assert_bits(&halves, &lse, "in two calls");
            assert_bits(&[in_two], &[loss], "in two calls");
            let mut gradient = vec![f32::NAN; rows * classes];
            let weights = &case.weights;
            cross_entropy_grad(
                ctx,
                rows,
                classes,
                &logits,
                &case.labels,
                weights,
                &lse,
                DLOSS,
                &mut gradient,
            )
            .expect("in range");
            [vec![loss], lse, gradient].concat()
        });
        for found in results {
            assert_near(&found, &wanted, 1.0 + (rows as f64).sqrt(), 2e-5, &format!("[{rows},{classes}]"));
        }
    }
}

#[test]
fn of_a_linear_layer_in_one_call_or_two() {
    for (rows, width, classes, block) in [
        (1, 1, 1, 1),
        (0, 3, 4, 2),
        (37, 5, 11, 4),
        (600, 8, 30, 100),
        (700, 6, 17, 300),
        (530, 3, 70, 1),
        (300, 40, 3, 1000),
    ] {
        let case = Case::new(rows, width, classes, block);
        let (loss, lse, gradient) = case.exact(&case.logits());
        let (mut dx, mut dkernel) = (vec![0.0; rows * width], vec![0.0; width * classes]);
        for r in 0..rows {
            for d in 0..width {
                for c in 0..classes {
                    dx[r * width + d] += gradient[r * classes + c] * f64::from(case.kernel[d * classes + c]);
                    dkernel[d * classes + c] += gradient[r * classes + c] * f64::from(case.x[r * width + d]);
                }
            }
        }
        let wanted: Vec<f64> = [vec![loss], dkernel, lse, dx].concat();
        let results = on_all(|ctx| {
            let (mut loss, mut dkernel) = (f32::NAN, vec![f32::NAN; width * classes]);
            let per_row = case.linear(ctx, 0..rows, false, &mut loss, &mut dkernel);
            let cut = rows / 2 / block * block;
            let (mut loss2, mut dkernel2) = (f32::NAN, vec![f32::NAN; width * classes]);
            let first = case.linear(ctx, 0..cut, false, &mut loss2, &mut dkernel2);
            case.linear(ctx, cut..rows, true, &mut loss2, &mut dkernel2);
            assert_bits(&first[..cut], &per_row[..cut], "log-sum-exp of the first rows");
            assert_bits(&first[cut..], &per_row[rows..][..cut * width], "dx of the first rows");
            assert_bits(&[loss2], &[loss], "the loss in two calls");
            assert_bits(&dkernel2, &dkernel, "the kernel's gradient in two calls");
            [vec![loss], dkernel, per_row].concat()
        });
        for found in results {
            let scale = 1.0 + (rows as f64).sqrt() + (classes as f64).sqrt();
            assert_near(
                &found,
                &wanted,
                scale,
                2e-5,
                &format!("[{rows},{width}] · [{width},{classes}] by {block}"),
            );
        }
    }
}

#[test]
fn rows_of_infinities() {
    let logits = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    on_all(|ctx| {
        let (mut loss, mut lse) = (0.0, [f32::NAN; 2]);
        let mut space = Workspace::new(cross_entropy_workspace(2));
        cross_entropy(ctx, 2, 2, 1, false, &logits, &[0, 0], &[0.0, 1.0], &mut loss, &mut lse, space.get())
            .expect("in range");
        assert_eq!(lse, [f32::NEG_INFINITY, 0.0]);
        Vec::new()
    });
}

#[test]
fn labels_out_of_range_are_named() {
    on_all(|ctx| {
        let (mut loss, mut lse) = (3.0, [0.0; 2]);
        let found = cross_entropy(
            ctx,
            2,
            2,
            1,
            false,
            &[0.0; 4],
            &[1, 2],
            &[1.0; 2],
            &mut loss,
            &mut lse,
            &mut [0.0; 16],
        );
        assert_eq!(found, Err(OutOfRange { position: 1, index: 2, rows: 2 }));
        assert_eq!(loss, 3.0);
        Vec::new()
    });
}
