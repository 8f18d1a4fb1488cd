//! What layers of bytes are in terms of scales, as files have them.

use crate::ExportError;
use crate::weights::Source;
use plimsoll_graph::Node;
use plimsoll_graph::op::{Factor, Grid};

/// How far a mean's factor may be off that of a mean, which divides by the pixels.
const MEAN_TOLERANCE: f64 = 1e-6;

/// The scale of each output channel's weights: what its factor is, less the scales of the activations before and behind. `None`: the
/// factors are no states.
pub(crate) fn weight_scales(
    source: &Source<'_>,
    node: &Node,
    from: Grid,
    to: Grid,
) -> Result<Option<Vec<f32>>, ExportError> {
    let multipliers = source.vector(node.inputs[3], i32::from_le_bytes)?;
    let shifts = source.vector(node.inputs[4], i32::from_le_bytes)?;
    let (Some(multipliers), Some(shifts)) = (multipliers, shifts) else { return Ok(None) };
    let scale = |(multiplier, shift): (i32, i32)| {
        let scale = number(Factor { multiplier, shift }) * f64::from(to.scale) / f64::from(from.scale);
        // A factor of nothing: a scale so small that it becomes one again.
        (scale as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
    };
    Ok(Some(multipliers.into_iter().zip(shifts).map(scale).collect()))
}

/// One scale for all channels, where they are the same.
pub(crate) fn joined(mut scales: Vec<f32>) -> Vec<f32> {
    if scales.windows(2).all(|pair| pair[0] == pair[1]) {
        scales.truncate(1);
    }
    scales
}

/// Whether a factor is that of a mean over so many pixels.
pub(crate) fn is_mean(factor: Factor, pixels: usize, from: Grid, to: Grid) -> bool {
    let expected = f64::from(from.scale) / f64::from(to.scale) / pixels.max(1) as f64;
    (number(factor) - expected).abs() <= MEAN_TOLERANCE * expected
}

/// The number that a fixed-point factor is.
fn number(factor: Factor) -> f64 {
    f64::from(factor.multiplier) * 2f64.powi(factor.shift.clamp(-31, 30) - 31)
}
