//! Pooling: a thread computes an element of the result, or gathers an element of the image's gradient, for several channels at once.

use super::builder::{CallBuilder, define, index_type, parameters};
use super::{Call, Operand, Parameter};
use plimsoll_graph::op::{Geometry, Pool, Windows};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, Shape};

const WINDOWS: &str = include_str!("pool/windows.cu");

pub(super) fn find(op: &Pool, query: &KernelQuery<'_>) -> Option<Call> {
    let (x, y) = (&query.inputs[..], &query.outputs[..]);
    let dtype = x[0].dtype;
    if !dtype.is_low() && dtype != DType::F32 {
        return None;
    }
    let [input, output] = [&x[0].shape, &y[0].shape];
    let (read, write) = (Operand::Read, Operand::Write);
    Some(match *op {
        Pool::Max { windows } => {
            let pool = Pooling { dtype, windows, image: input, result: output, count_padding: false };
            pool.call(output, include_str!("pool/max.cu"), &[read(0), write(0), write(1)])
        }
        Pool::MaxGrad { windows, .. } => {
            let pool = Pooling { dtype, windows, image: output, result: input, count_padding: false };
            pool.call(output, include_str!("pool/max_grad.cu"), &[read(0), read(1), write(0)])
        }
        Pool::Average { windows, count_padding } => {
            let pool = Pooling { dtype, windows, image: input, result: output, count_padding };
            pool.call(output, include_str!("pool/average.cu"), &[read(0), write(0)])
        }
        Pool::AverageGrad { windows, count_padding, .. } => {
            let pool = Pooling { dtype, windows, image: output, result: input, count_padding };
            pool.call(output, include_str!("pool/average_grad.cu"), &[read(0), write(0)])
        }
    })
}

struct Pooling<'a> {
    dtype: DType,
    windows: Windows,
    /// The shape of the image.
    image: &'a Shape,
    /// The shape of the pooled image.
    result: &'a Shape,
    count_padding: bool,
}

impl Pooling<'_> {
    /// A kernel with a thread for every few elements of this shape.
    fn call(&self, over: &Shape, text: &str, operands: &[Operand]) -> Call {
        let axes = [0, 1].map(|axis| self.axis(axis));
        let adaptive = matches!(self.windows, Windows::Adaptive { .. });
        let coordinates = axes.iter().map(|[input, output, places, stride, before, dilation]| {
            let place = input.saturating_add(*before).max(places.saturating_mul(*dilation));
            let product = if adaptive { input.saturating_add(1).saturating_mul(output + 1) } else { 0 };
            place.saturating_mul(2).max(product).max(stride.saturating_mul(2))
        });
        let narrow = coordinates.max().is_some_and(|largest| largest < 1 << 31);
        let vector = 1_usize << self.image[3].trailing_zeros().min(3);
        let (width, threads) = (vector.to_string(), over.elements() / vector);
        let geometry = axes.map(|axis| [2, 3, 4, 5].map(|i: usize| axis[i].to_string()));
        let names = [
            ["PLACES_H", "STRIDE_H", "BEFORE_H", "DILATION_H"],
            ["PLACES_W", "STRIDE_W", "BEFORE_W", "DILATION_W"],
        ];
        let mut macros = vec![
            ("T", self.dtype.name()),
            ("V", &width),
            ("INDEX", index_type(over.elements())),
            ("COORDINATE", if narrow { "i32" } else { "i64" }),
            ("ADAPTIVE", if adaptive { "1" } else { "0" }),
            ("COUNT_PADDING", if self.count_padding && !adaptive { "1" } else { "0" }),
        ];
        for (name, number) in names.iter().flatten().zip(geometry.iter().flatten()) {
            macros.push((name, number));
        }
        let mut all: Vec<Parameter> = operands.iter().map(|&operand| operand.into()).collect();
        all.extend(parameters![threads, self.image[3]]);
        all.extend(axes.iter().flat_map(|axis| [axis[0], axis[1]]).map(Parameter::from));
        let mut b = CallBuilder::default();
        b.each(threads, define(&macros, &[WINDOWS, text].concat()), all);
        b.finish()
    }

    /// Elements, windows, places of the largest window, stride, padding before and dilation along an axis.
    fn axis(&self, axis: usize) -> [usize; 6] {
        let (input, output) = (self.image[axis + 1], self.result[axis + 1]);
        let places = self.windows.largest([self.image[1], self.image[2]])[axis];
        match self.windows {
            Windows::Sliding(Geometry { stride, padding, dilation, .. }) => {
                [input, output, places, stride[axis], padding[axis][0], dilation[axis]]
            }
            Windows::Adaptive { .. } => [input, output, places, 1, 0, 1],
        }
    }
}
