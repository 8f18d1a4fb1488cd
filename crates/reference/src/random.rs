//! Random numbers by counter.

use crate::evaluate::Values;
use plimsoll_graph::op::{Distribution, Random};
use plimsoll_tensor::{Tensor, random::Stream};

pub(crate) fn evaluate(op: &Random, inputs: &[&Tensor]) -> Values {
    // From the bytes: a seed may have more bits than an f64.
    let word = |i: usize| {
        let bytes = &inputs[0].as_bytes()[8 * i..8 * i + 8];
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    };
    let examples = inputs[1].to_f64();
    let stream = Stream::new(word(0), word(1), &op.stream);
    let elements = op.shape.elements() as u64;
    let draw = |example: u64, element: u64| match op.distribution {
        Distribution::Uniform(_) => f64::from(stream.uniform(example, element)),
        Distribution::Normal(_) => f64::from(stream.normal(example, element)),
        Distribution::Bernoulli(p) => f64::from(u8::from(f64::from(stream.uniform(example, element)) < p)),
    };
    let each = |example: &f64| {
        let example = *example as i32 as u32;
        (0..elements).map(move |element| (u64::from(example), element))
    };
    Ok(vec![examples.iter().flat_map(each).map(|(example, element)| draw(example, element)).collect()])
}
