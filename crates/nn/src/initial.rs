//! First values of states. Counter-based: they depend on the state's name and the seed alone.

use plimsoll_graph::Init;
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, bf16, f16};
use std::ops::Range;

/// Appends some elements of a state's first values as bytes. `name` is the state's, or of a running average its parameter's;
/// `elements` begin at a multiple of four.
///
/// ```
/// use plimsoll_graph::Init;
/// use plimsoll_nn::first_values;
/// use plimsoll_tensor::DType;
/// let (mut whole, mut rest) = (Vec::new(), Vec::new());
/// first_values(Init::Normal(0.02), "dense/kernel", 7, DType::F32, 0..10, &mut whole);
/// first_values(Init::Normal(0.02), "dense/kernel", 7, DType::F32, 4..10, &mut rest);
/// assert_eq!(whole[16..], rest);
/// ```
pub fn first_values(
    init: Init,
    name: &str,
    seed: u64,
    dtype: DType,
    elements: Range<usize>,
    bytes: &mut Vec<u8>,
) {
    let stream = Stream::new(seed, 0, name);
    // Random numbers come four at a time.
    for block in elements.clone().step_by(4) {
        let index = (block / 4) as u32;
        let values: [f64; 4] = match init {
            Init::Zeros => [0.0; 4],
            Init::Ones => [1.0; 4],
            Init::Constant(value) => [value; 4],
            Init::Normal(deviation) => stream.normal_block(0, index).map(|x| f64::from(x) * deviation),
            Init::Uniform(bound) => {
                stream.uniform_block(0, index).map(|x| (f64::from(x) * 2.0 - 1.0) * bound)
            }
        };
        values[..4.min(elements.end - block)].iter().for_each(|&value| push_number(bytes, dtype, value));
    }
}

/// Appends a number as an element of a type.
pub fn push_number(bytes: &mut Vec<u8>, dtype: DType, value: f64) {
    match dtype {
        DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
        DType::F64 => bytes.extend(value.to_ne_bytes()),
        DType::BF16 => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
        DType::F16 => bytes.extend(f16::from_f64(value).to_ne_bytes()),
        DType::I32 => bytes.extend((value as i32).to_ne_bytes()),
        DType::I64 => bytes.extend((value as i64).to_ne_bytes()),
        DType::U8 => bytes.push(value as u8),
        DType::Bool => bytes.push(u8::from(value != 0.0)),
    }
}
