//! Losses and their gradients.

use crate::EvaluateError;
use crate::evaluate::Values;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::Loss;

pub(crate) fn evaluate(op: &Loss, inputs: &[Elements<'_>]) -> Values {
    match (op, inputs) {
        (Loss::CrossEntropy, [logits, labels, weights]) => {
            cross_entropy("cross_entropy", &logits.data, logits.columns(), labels, weights)
        }
        (Loss::CrossEntropyGrad, [logits, labels, weights, lse, dloss]) => {
            let rows = Rows { op: "cross_entropy_grad", labels, weights, lse: &lse.data, dloss };
            Ok(vec![dlogits(&rows, &logits.data, logits.columns())?])
        }
        (Loss::LinearCrossEntropy { transposed }, [x, kernel, labels, weights]) => {
            let kernel = Kernel::new(kernel, *transposed);
            cross_entropy("linear_cross_entropy", &logits(x, &kernel), kernel.classes, labels, weights)
        }
        (Loss::LinearCrossEntropyGrad { transposed }, [x, kernel, labels, weights, lse, dloss]) => {
            let rows = Rows { op: "linear_cross_entropy_grad", labels, weights, lse: &lse.data, dloss };
            linear_grad(&rows, x, &Kernel::new(kernel, *transposed))
        }
        (Loss::LinearCrossEntropyWithGrad { transposed }, [x, kernel, labels, weights, dloss]) => {
            let (op, kernel) = ("linear_cross_entropy_with_grad", Kernel::new(kernel, *transposed));
            let mut outputs = cross_entropy(op, &logits(x, &kernel), kernel.classes, labels, weights)?;
            let lse = outputs.pop().unwrap_or_default();
            let rows = Rows { op, labels, weights, lse: &lse, dloss };
            outputs.extend(linear_grad(&rows, x, &kernel)?);
            Ok(outputs)
        }
        _ => unreachable!("the type rule checks the inputs"),
    }
}

/// `ln Σ exp(x)`, shifted by the largest element so that nothing overflows; -∞ of nothing.
pub(crate) fn logsumexp(values: &[f64]) -> f64 {
    // Not f64::max, which drops a NaN.
    let larger = |a: f64, b: f64| if a > b || a.is_nan() { a } else { b };
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, larger);
    if largest.is_infinite() {
        return largest;
    }
    largest + values.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

fn cross_entropy(
    op: &'static str,
    logits: &[f64],
    classes: usize,
    labels: &Elements<'_>,
    weights: &Elements<'_>,
) -> Values {
    let mut loss = 0.0;
    let mut lse = Vec::with_capacity(labels.data.len());
    for (r, weight) in weights.data.iter().enumerate() {
        let row = &logits[r * classes..(r + 1) * classes];
        let label = labels.index(op, "label", r, classes)?;
        let sum = logsumexp(row);
        loss += weight * (sum - row[label]);
        lse.push(sum);
    }
    Ok(vec![vec![loss], lse])
}

/// What a loss's gradient reads for each row.
struct Rows<'a> {
    op: &'static str,
    labels: &'a Elements<'a>,
    weights: &'a Elements<'a>,
    lse: &'a [f64],
    dloss: &'a Elements<'a>,
}

/// `(softmax - onehot) · weights · dloss`.
fn dlogits(rows: &Rows<'_>, logits: &[f64], classes: usize) -> Result<Vec<f64>, EvaluateError> {
    let mut gradient = Vec::with_capacity(logits.len());
    for (r, weight) in rows.weights.data.iter().enumerate() {
        let label = rows.labels.index(rows.op, "label", r, classes)?;
        for c in 0..classes {
            let softmax = (logits[r * classes + c] - rows.lse[r]).exp();
            let onehot = if c == label { 1.0 } else { 0.0 };
            gradient.push((softmax - onehot) * weight * rows.dloss.data[0]);
        }
    }
    Ok(gradient)
}

/// A kernel stored one way or the other.
struct Kernel<'a> {
    data: &'a [f64],
    width: usize,
    classes: usize,
    transposed: bool,
}

impl<'a> Kernel<'a> {
    fn new(kernel: &'a Elements<'_>, transposed: bool) -> Self {
        let [rows, columns] = kernel.extents();
        let (width, classes) = if transposed { (columns, rows) } else { (rows, columns) };
        Self { data: &kernel.data, width, classes, transposed }
    }

    fn place(&self, i: usize, c: usize) -> usize {
        if self.transposed {
            at([self.classes, self.width], [c, i])
        } else {
            at([self.width, self.classes], [i, c])
        }
    }
}

/// `x · kernel`.
fn logits(x: &Elements<'_>, kernel: &Kernel<'_>) -> Vec<f64> {
    let [rows, width] = x.extents();
    let classes = kernel.classes;
    let mut logits = vec![0.0; rows * classes];
    for r in 0..rows {
        for c in 0..classes {
            for i in 0..width {
                logits[r * classes + c] +=
                    x.data[at([rows, width], [r, i])] * kernel.data[kernel.place(i, c)];
            }
        }
    }
    logits
}

fn linear_grad(rows: &Rows<'_>, x: &Elements<'_>, kernel: &Kernel<'_>) -> Values {
    let [count, width] = x.extents();
    let classes = kernel.classes;
    let dlogits = dlogits(rows, &logits(x, kernel), classes)?;
    let mut dx = vec![0.0; x.data.len()];
    let mut dkernel = vec![0.0; kernel.data.len()];
    for r in 0..count {
        for i in 0..width {
            for c in 0..classes {
                let gradient = dlogits[r * classes + c];
                dx[at([count, width], [r, i])] += gradient * kernel.data[kernel.place(i, c)];
                dkernel[kernel.place(i, c)] += gradient * x.data[at([count, width], [r, i])];
            }
        }
    }
    Ok(vec![dx, dkernel])
}
