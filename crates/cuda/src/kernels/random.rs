//! Random numbers by counter.

use super::builder::{CallBuilder, define, parameters};
use super::{Call, Operand, Parameter, stored};
use plimsoll_graph::op::{Distribution, Random};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::random::fnv1a;

/// Uniform in [0, 1) with 24 random bits.
const UNIFORM: &str = "for (int j = 0; j < 4; j++) y[j] = narrow<Y>((float)(words[j] >> 8) * 0x1p-24f);";
/// Two from each pair of words, by the Box-Muller transform.
const NORMAL: &str = "for (int j = 0; j < 4; j += 2) {
        const double radius = sqrt(-2.0 * log(((double)words[j] + 0.5) / 4294967296.0));
        const double angle = 6.283185307179586 * (((double)words[j + 1] + 0.5) / 4294967296.0);
        y[j] = narrow<Y>((float)(radius * cos(angle)));
        y[j + 1] = narrow<Y>((float)(radius * sin(angle)));
    }";
const BERNOULLI: &str = "for (int j = 0; j < 4; j++) y[j] = (i64)(words[j] >> 8) < threshold;";

pub(super) fn find(op: &Random, query: &KernelQuery<'_>) -> Option<Call> {
    let (draw, threshold) = match op.distribution {
        Distribution::Uniform(_) => (UNIFORM, 0),
        Distribution::Normal(_) => (NORMAL, 0),
        // A multiple of 2^-24 is below p where the factor is below p · 2^24.
        Distribution::Bernoulli(p) => (BERNOULLI, (p * f64::from(1 << 24)).ceil() as i64),
    };
    let (examples, elements) = (query.inputs[1].shape.elements(), op.shape.elements());
    let quads = elements.div_ceil(4);
    let text = format!(
        "__device__ inline void draw(Y *y, const u32 *words, i64 threshold) {{\n    {draw}\n}}\n{}",
        include_str!("random.cu")
    );
    let mut builder = CallBuilder::default();
    let parameters = parameters![
        Operand::Read(0),
        Operand::Read(1),
        Operand::Write(0),
        Parameter::Integer(fnv1a(&op.stream) as i64),
        Parameter::Integer(threshold),
        elements,
        quads,
        examples,
    ];
    let y = query.outputs[0].dtype;
    builder.each(examples * quads, define(&[("Y", stored(y))], &text), parameters);
    Some(builder.finish())
}
