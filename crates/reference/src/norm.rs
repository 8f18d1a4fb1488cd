//! Normalisation and its parts.

use crate::evaluate::Values;
use crate::loss::logsumexp;
use crate::tensor::{Elements, offsets};
use plimsoll_graph::op::{Norm, NormAxis};
use plimsoll_tensor::{Shape, TensorType};

pub(crate) fn evaluate(op: &Norm, inputs: &[Elements<'_>], outputs: &[&TensorType]) -> Values {
    let x = &inputs[0];
    Ok(match *op {
        Norm::Layer { eps } => {
            let [y, mean, _, rstd] = normalise(inputs, NormAxis::Row, outputs[1], eps);
            vec![y, mean, rstd]
        }
        Norm::Batch { eps } => normalise(inputs, NormAxis::Channel, outputs[1], eps).into(),
        Norm::LogSumExp => {
            let columns = x.columns();
            let rows = outputs[0].shape.elements();
            let of = |i: usize| logsumexp(&x.data[i * columns..(i + 1) * columns]);
            vec![(0..rows).map(of).collect()]
        }
        Norm::Stats { axis } => {
            let (mean, variance) = stats(x, &group(x.shape(), axis), outputs[0]);
            vec![mean, variance]
        }
        Norm::Moments => {
            let channel = TensorType::new(outputs[0].dtype, [x.columns()]);
            let (mean, variance) = stats(x, &group(x.shape(), NormAxis::Channel), &channel);
            let count = (x.data.len() / x.columns().max(1)) as f64;
            let squares = variance.iter().map(|variance| variance * count);
            vec![std::iter::repeat_n(count, mean.len()).chain(mean.iter().copied()).chain(squares).collect()]
        }
        Norm::StatsOfMoments { .. } => {
            let [counts, means, squares] =
                [0, 1, 2].map(|row| &x.data[row * x.columns()..(row + 1) * x.columns()]);
            vec![means.to_vec(), squares.iter().zip(counts).map(|(squares, count)| squares / count).collect()]
        }
        Norm::Sums { axis } => {
            let (dy, x) = (&inputs[0], &inputs[1]);
            let (mean, rstd) = (inputs[2].broadcast(x.shape()), inputs[3].broadcast(x.shape()));
            let size = outputs[0].shape.elements();
            let (mut plain, mut scaled) = (vec![0.0; size], vec![0.0; size]);
            for (i, group) in group(x.shape(), axis).into_iter().enumerate() {
                plain[group] += dy.data[i];
                scaled[group] += dy.data[i] * (x.data[i] - mean[i]) * rstd[i];
            }
            vec![plain, scaled]
        }
    })
}

/// The moments of two groups of examples together, in place of the second one's: counts, means, sums of squares.
pub(crate) fn combine_moments(before: &[f64], moments: &mut [f64]) {
    let channels = moments.len() / 3;
    for i in 0..channels {
        let [mean, squares] = [channels + i, 2 * channels + i];
        let (count, distance) = (before[i] + moments[i], moments[mean] - before[mean]);
        if before[i] > 0.0 && count > 0.0 {
            moments[squares] += before[squares] + distance * distance * before[i] * moments[i] / count;
            moments[mean] = before[mean] + distance * moments[i] / count;
        }
        moments[i] = count;
    }
}

/// Result, mean, variance and 1 / deviation.
fn normalise(inputs: &[Elements<'_>], axis: NormAxis, statistic: &TensorType, eps: f64) -> [Vec<f64>; 4] {
    let (x, gain, bias) = (&inputs[0], &inputs[1], &inputs[2]);
    let groups = group(x.shape(), axis);
    let (mean, variance) = stats(x, &groups, statistic);
    let rstd: Vec<f64> = variance.iter().map(|variance| 1.0 / (variance + eps).sqrt()).collect();
    let channels = x.columns();
    let element = |(i, &group): (usize, &usize)| {
        let centred = (x.data[i] - mean[group]) * rstd[group];
        centred * gain.data[i % channels] + bias.data[i % channels]
    };
    let y = groups.iter().enumerate().map(element).collect();
    [y, mean, variance, rstd]
}

/// Mean and mean squared distance from it, of each group: two passes, so that nothing cancels.
fn stats(x: &Elements<'_>, groups: &[usize], statistic: &TensorType) -> (Vec<f64>, Vec<f64>) {
    let count = statistic.shape.elements();
    let members = (groups.len() / count.max(1)) as f64;
    let (mut mean, mut variance) = (vec![0.0; count], vec![0.0; count]);
    for (&group, value) in groups.iter().zip(&x.data) {
        mean[group] += value;
    }
    mean.iter_mut().for_each(|sum| *sum /= members);
    for (&group, value) in groups.iter().zip(&x.data) {
        variance[group] += (value - mean[group]).powi(2);
    }
    variance.iter_mut().for_each(|sum| *sum /= members);
    (mean, variance)
}

/// Which statistic each element belongs to.
fn group(shape: &Shape, axis: NormAxis) -> Vec<usize> {
    let (rest, last) = shape.split_at(shape.rank() - 1);
    let rows = Shape::from(rest).strides();
    match axis {
        NormAxis::Row => offsets(shape, &[&rows[..], &[0]].concat()),
        NormAxis::Channel => offsets(shape, &[vec![0; rest.len()], vec![1; last.len()]].concat()),
    }
}
