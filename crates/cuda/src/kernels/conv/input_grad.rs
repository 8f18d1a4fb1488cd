//! The gradient of a convolution's image: patches of the result's gradient times the kernels, transposed.
//!
//! Pixels of the image that lie equally far past a multiple of the strides see the same taps. Each such class is a product by
//! itself, so that no term is a zero between the windows. Windows that do not overlap need no patches: the product of a row of the
//! gradient is the whole window.

use super::gather::Gather;
use super::implicit::{Implicit, Out};
use super::{CHUNK_BYTES, CallBuilder, Shape, define, parameters};
use crate::kernels::builder::{copy_unit, index_type};
use crate::kernels::{Call, Matrix, Operand, Parameter, Pointer, Product};
use plimsoll_graph::op::Geometry;
use plimsoll_tensor::DType;

/// Along one axis, pixels of the image that see the same taps.
#[derive(Clone, Copy)]
struct Class {
    /// The first pixel; the others follow at multiples of the stride.
    first: usize,
    pixels: usize,
    first_tap: usize,
    /// From tap to tap.
    step: usize,
    taps: usize,
    /// The element of the gradient under the first pixel's first tap.
    offset: i64,
    /// The gradient's elements from tap to tap.
    tap_step: i64,
}

/// The classes of pixels along an axis.
fn classes(shape: &Shape, axis: usize) -> Vec<Class> {
    let (stride, dilation) = (shape.geometry.stride[axis], shape.geometry.dilation[axis]);
    let (window, before) = (shape.geometry.window[axis], shape.geometry.padding[axis][0]);
    let image = shape.image[axis];
    let step = stride / common_divisor(stride, dilation);
    let class = |first: usize| {
        // Where the pixel's windows start, for each tap: between two windows unless the stride divides it.
        let start = |tap: usize| (first + before) as i64 - tap as i64 * dilation as i64;
        let found = (0..window.min(step)).find(|&tap| start(tap) % stride as i64 == 0);
        let first_tap = found.unwrap_or(0);
        Class {
            first,
            pixels: (image - first).div_ceil(stride),
            first_tap,
            step,
            taps: if found.is_some() { (window - first_tap).div_ceil(step) } else { 0 },
            offset: start(first_tap) / stride as i64,
            tap_step: -((step * dilation / stride) as i64),
        }
    };
    (0..stride.min(image)).map(class).collect()
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

pub(super) fn call(shape: &Shape, result: DType) -> Call {
    let mut b = CallBuilder::default();
    let Geometry { window, stride, padding, dilation } = shape.geometry;
    let (rows, columns) = (classes(shape, 0), classes(shape, 1));
    let gathers = |row, column| Implicit::new(patches(shape, [row, column]), shape.inputs);
    let all = || rows.iter().flat_map(|&row| columns.iter().map(move |&column| (row, column)));
    let implicit =
        |(row, column): (Class, Class)| row.taps * column.taps == 0 || gathers(row, column).is_some();
    let implicit = result == shape.dtype && all().all(implicit);
    let apart = (0..2).all(|a| stride[a] >= window[a] && (dilation[a] == 1 || window[a] == 1));
    if !implicit && apart && padding == [[0; 2]; 2] && shape.groups == 1 && stride != [1; 2] {
        windows(&mut b, shape, result);
        return b.finish();
    }
    if rows.iter().chain(&columns).any(|class| class.taps == 0) {
        zero(&mut b, shape, result);
    }
    for &row in &rows {
        for &column in columns.iter().filter(|column| row.taps * column.taps > 0) {
            b.reuse_scratch();
            if implicit && let Some(product) = gathers(row, column) {
                let start = taps_start(shape, [row, column]);
                let tap = shape.group_inputs() * shape.outputs;
                let taps = [row.step * window[1] * tap, column.step * tap];
                let out = Out { size: shape.image, step: stride, offset: [row.first, column.first] };
                let kernels = Operand::Read(1).at(start);
                product.by_columns(&mut b, shape.examples, Operand::Read(0), kernels, taps, &out);
                continue;
            }
            pixels(&mut b, shape, result, [row, column]);
        }
    }
    b.finish()
}

fn zero(b: &mut CallBuilder, shape: &Shape, result: DType) {
    let pixels = shape.examples * shape.image[0] * shape.image[1];
    b.zero(Operand::Write(0), pixels * shape.inputs, result);
}

/// The gradient where no two windows overlap, nor reach over an edge.
fn windows(b: &mut CallBuilder, shape: &Shape, result: DType) {
    let Geometry { window, stride, .. } = shape.geometry;
    if (0..2).any(|a| shape.image[a] != shape.result[a].saturating_mul(window[a]) || stride[a] != window[a]) {
        zero(b, shape, result);
    }
    let (n, k, rows) = (shape.terms(), shape.outputs, shape.rows());
    let chunk = (CHUNK_BYTES / (n * result.bytes())).clamp(1, rows.max(1));
    let space = b.scratch(chunk * n * result.bytes());
    for first in (0..rows).step_by(chunk) {
        let m = chunk.min(rows - first);
        let matrix =
            |start, dtype, row_stride| Matrix { start, dtype, transposed: false, row_stride, stride: 0 };
        let kernels = matrix(Operand::Read(1).at(0), shape.dtype, k);
        b.product(Product {
            m,
            n,
            k,
            a: matrix(Operand::Read(0).at(first * k * shape.dtype.bytes()), shape.dtype, k),
            b: Matrix { transposed: true, ..kernels },
            c: matrix(space, result, n),
            accumulate: false,
            count: 1,
            bias: None,
            tf32: false,
        });
        let to = Places { grid: shape.result, offset: [0; 2], tile: window };
        place(b, shape, result, &to, [first, m], space);
    }
}

/// Bytes before the kernels of a class's first tap.
fn taps_start(shape: &Shape, classes: [Class; 2]) -> usize {
    let tap = classes[0].first_tap * shape.geometry.window[1] + classes[1].first_tap;
    tap * shape.group_inputs() * shape.outputs * shape.dtype.bytes()
}

/// The gradient's elements that a class of pixels sees.
fn patches(shape: &Shape, classes: [Class; 2]) -> Gather {
    Gather {
        dtype: shape.dtype,
        source: shape.result,
        channels: shape.outputs,
        groups: shape.groups,
        grid: classes.map(|class| class.pixels),
        taps: classes.map(|class| class.taps),
        window_step: [1; 2],
        tap_step: classes.map(|class| class.tap_step),
        offset: classes.map(|class| class.offset),
    }
}

/// The gradient at one class of pixels.
fn pixels(b: &mut CallBuilder, shape: &Shape, result: DType, classes: [Class; 2]) {
    let patches = patches(shape, classes);
    let (kernels, k) = kernels(b, shape, classes);
    // Where all pixels are of one class, the product's rows are those of the result.
    let in_order = shape.geometry.stride == [1; 2];
    let row_bytes = shape.inputs * result.bytes();
    let rows = shape.examples * patches.grid[0] * patches.grid[1];
    let chunk = patches.chunk_rows(if in_order { 0 } else { row_bytes }).min(rows.max(1));
    let space = b.scratch(patches.bytes(chunk));
    let apart = b.scratch(if in_order { 0 } else { chunk * row_bytes });
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        let start = if in_order { Operand::Write(0).at(first * row_bytes) } else { apart };
        let (row_stride, stride) = (shape.inputs, shape.group_inputs());
        let a = patches.gather(b, Operand::Read(0), first, count, space);
        b.product(Product {
            m: count,
            n: shape.group_inputs(),
            k,
            a,
            b: kernels,
            c: Matrix { start, dtype: result, transposed: false, row_stride, stride },
            accumulate: false,
            count: shape.groups,
            bias: None,
            tf32: false,
        });
        if !in_order {
            let offset = classes.map(|class| class.first);
            let to = Places { grid: patches.grid, offset, tile: [1; 2] };
            place(b, shape, result, &to, [first, count], apart);
        }
    }
}

/// The kernels' part for one class of pixels, a row for each of a group's input channels; and the length of a row.
fn kernels(b: &mut CallBuilder, shape: &Shape, classes: [Class; 2]) -> (Matrix, usize) {
    let (taps, outputs) = (classes[0].taps * classes[1].taps, shape.group_outputs());
    let window_width = shape.geometry.window[1];
    let k = taps * outputs;
    let matrix = |start, row_stride, stride| Matrix {
        start,
        dtype: shape.dtype,
        transposed: true,
        row_stride,
        stride,
    };
    if taps == 1 {
        let start = Operand::Read(1).at(taps_start(shape, classes));
        return (matrix(start, shape.outputs, outputs), k);
    }
    let elements = k * shape.inputs;
    let to = b.scratch(elements * shape.dtype.bytes());
    let (unit, size) = copy_unit(outputs, shape.dtype);
    let source = define(&[("UNIT", unit)], include_str!("kernels.cu"));
    let mut parameters = parameters![Operand::Read(1), to, elements / size, window_width];
    parameters.extend(classes.map(|class| Parameter::from(class.taps)));
    parameters.extend(classes.map(|class| Parameter::from(class.first_tap)));
    parameters.extend(classes.map(|class| Parameter::from(class.step)));
    parameters.extend([shape.groups, shape.group_inputs(), outputs / size].map(Parameter::from));
    b.each(elements / size, source, parameters);
    (matrix(to, k, k * shape.group_inputs()), k)
}

/// Where rows belong in the images: tiles of pixels on a grid, as far apart as the strides.
struct Places {
    grid: [usize; 2],
    offset: [usize; 2],
    tile: [usize; 2],
}

/// Writes some rows, counted from the first, to their pixels.
fn place(
    b: &mut CallBuilder,
    shape: &Shape,
    result: DType,
    to: &Places,
    [first, count]: [usize; 2],
    rows: Pointer,
) {
    let (unit, size) = copy_unit(shape.inputs, result);
    let places = to.grid[0] * to.grid[1];
    let macros = [("UNIT", unit), ("INDEX", index_type(2 * places))];
    let source = define(&macros, include_str!("place.cu"));
    let total = count * to.tile[0] * to.tile[1] * shape.inputs / size;
    let mut parameters = parameters![rows, Operand::Write(0), total, first / places, first % places];
    parameters.extend(to.grid.map(Parameter::from));
    parameters.extend(shape.image.map(Parameter::from));
    parameters.push((shape.inputs / size).into());
    for extents in [shape.geometry.stride, to.offset, to.tile] {
        parameters.extend(extents.map(Parameter::from));
    }
    b.each(total, source, parameters);
}
