//! Copies: transposes, broadcasts, slices, pads, concatenations and splits.

use crate::isa::Context;
use crate::kernels::math::Shared;
use plimsoll_graph::op::{Movement, Span};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::ops::Range;

/// Most axes that a copy can have once neighbours are joined and long rows are cut.
const MOST_AXES: usize = 9;

/// Bytes that one task copies, about.
const TASK_BYTES: usize = 64 * 1024;

/// The copies of a movement.
#[derive(Clone, Debug)]
pub struct Moves {
    boxes: Vec<StridedBox>,
    element_bytes: usize,
    /// Rows of a task, of one box or of several.
    task_rows: usize,
    /// For outputs that the boxes do not cover: the element that fills the rest, and the bytes to fill.
    fill: Option<([u8; 8], usize)>,
}

/// A box of elements with strides in source and destination.
#[derive(Clone, Debug)]
struct StridedBox {
    input: usize,
    output: usize,
    axes: Vec<Axis>,
    /// Its first element in source and destination.
    from: usize,
    to: usize,
    /// Rows of the boxes up to this one.
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    from: isize,
    to: isize,
}

fn signed(strides: Vec<usize>) -> Vec<isize> {
    strides.into_iter().map(|s| s as isize).collect()
}

/// Offset and strides of the elements at these spans of a tensor of this shape.
fn spread(shape: &Shape, spans: &[Span]) -> (usize, Vec<isize>) {
    let strides = shape.strides();
    let start = spans.iter().zip(&strides).map(|(span, stride)| span.start * stride).sum();
    (start, spans.iter().zip(&strides).map(|(span, &stride)| span.step * stride as isize).collect())
}

impl StridedBox {
    fn new(
        extents: &[usize],
        (from, from_strides): (usize, Vec<isize>),
        (to, to_strides): (usize, Vec<isize>),
    ) -> Self {
        let mut axes: Vec<Axis> = Vec::new();
        for (i, &extent) in extents.iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let axis = Axis { extent, from: from_strides[i], to: to_strides[i] };
            // Axes that are contiguous on both sides are merged.
            match axes.last_mut() {
                Some(outer)
                    if outer.from == axis.from * extent as isize && outer.to == axis.to * extent as isize =>
                {
                    *outer = Axis { extent: outer.extent * extent, ..axis };
                }
                _ => axes.push(axis),
            }
        }
        Self { input: 0, output: 0, axes, from, to, end: 0 }
    }

    /// The axes of its rows, and the axis along a row.
    fn split(&self) -> (&[Axis], Axis) {
        let unit = Axis { extent: 1, from: 1, to: 1 };
        self.axes.split_last().map_or((&[], unit), |(last, rest)| (rest, *last))
    }

    /// Halves its rows until they have at most so many elements, while they can be halved.
    fn halve_rows(&mut self, most: usize) {
        let Some(inner) = self.axes.last_mut() else { return };
        let mut halves = 1;
        while inner.extent > most && inner.extent.is_multiple_of(2) {
            inner.extent /= 2;
            halves *= 2;
        }
        let part = inner.extent as isize;
        let outer = Axis { extent: halves, from: inner.from * part, to: inner.to * part };
        if halves > 1 {
            self.axes.insert(self.axes.len() - 1, outer);
        }
    }

    /// Its rows.
    fn rows(&self) -> usize {
        self.split().0.iter().map(|axis| axis.extent).product()
    }
}

impl Moves {
    /// The copies of a movement; `None` if it has too many axes.
    pub fn new(op: &Movement, inputs: &[&TensorType], outputs: &[&TensorType]) -> Option<Self> {
        let (x, y) = (&inputs[0].shape, &outputs[0].shape);
        let dense = |shape: &Shape| (0, signed(shape.strides()));
        let mut fill = None;
        let mut boxes = match op {
            Movement::Reshape(_) | Movement::Detach => vec![StridedBox::new(y, dense(y), dense(y))],
            Movement::Transpose(axes) => {
                let own = x.strides();
                let moved = axes.iter().map(|&a| own[a] as isize).collect();
                vec![StridedBox::new(y, (0, moved), dense(y))]
            }
            Movement::Broadcast(_) => vec![StridedBox::new(y, (0, signed(x.strides_in(y))), dense(y))],
            Movement::Slice(spans) => vec![StridedBox::new(y, spread(x, spans), dense(y))],
            Movement::Pad { spans, value, .. } => {
                fill = Some((element(*value, outputs[0].dtype), outputs[0].bytes()));
                vec![StridedBox::new(x, dense(x), spread(y, spans))]
            }
            Movement::Concat { axis } => {
                let mut start = 0;
                let mut strided = |(input, part): (usize, &&TensorType)| {
                    let to = (start * y.strides()[*axis], signed(y.strides()));
                    start += part.shape[*axis];
                    StridedBox { input, ..StridedBox::new(&part.shape, dense(&part.shape), to) }
                };
                inputs.iter().enumerate().map(&mut strided).collect()
            }
            Movement::Split { axis, .. } => {
                let mut start = 0;
                let mut strided = |(output, part): (usize, &&TensorType)| {
                    let from = (start * x.strides()[*axis], signed(x.strides()));
                    start += part.shape[*axis];
                    StridedBox { output, ..StridedBox::new(&part.shape, from, dense(&part.shape)) }
                };
                outputs.iter().enumerate().map(&mut strided).collect()
            }
        };
        let element_bytes = inputs[0].dtype.bytes();
        let (mut rows, mut elements) = (0, 0);
        for strided in &mut boxes {
            strided.halve_rows(TASK_BYTES / element_bytes);
            rows += strided.rows();
            elements += strided.rows() * strided.split().1.extent;
            strided.end = rows;
        }
        let row_bytes = elements * element_bytes / rows.max(1);
        let task_rows = (TASK_BYTES / row_bytes.max(1)).max(1);
        let few = boxes.iter().all(|strided: &StridedBox| strided.axes.len() <= MOST_AXES);
        few.then_some(Self { boxes, element_bytes, task_rows, fill })
    }

    /// Tasks of the copies.
    pub(crate) fn tasks(&self) -> usize {
        self.boxes.last().map_or(0, |strided| strided.end).div_ceil(self.task_rows)
    }

    /// Rows that are copied, and elements of rows that are not contiguous on both sides.
    pub(crate) fn rows(&self) -> (usize, usize) {
        self.boxes.iter().fold((0, 0), |(rows, apart), strided| {
            let (own, inner) = (strided.rows(), strided.split().1);
            let together = inner.to == 1 && inner.from <= 1 && inner.from >= 0;
            (rows + own, apart + if together { 0 } else { own * inner.extent })
        })
    }

    /// Copies.
    ///
    /// # Safety
    /// The pointers are aligned and good for the types that the moves were made for, and outputs overlap nothing.
    pub unsafe fn run(&self, ctx: Context<'_>, inputs: &[*const u8], outputs: &[*mut u8]) {
        // SAFETY: the caller's contract; the element size is the type's.
        unsafe {
            match self.element_bytes {
                1 => self.run_as::<u8>(ctx, inputs, outputs),
                2 => self.run_as::<u16>(ctx, inputs, outputs),
                4 => self.run_as::<u32>(ctx, inputs, outputs),
                _ => self.run_as::<u64>(ctx, inputs, outputs),
            }
        }
    }

    /// # Safety
    /// As for [`Moves::run`]; `T` has the size of an element.
    unsafe fn run_as<T: Copy + Send + Sync>(
        &self,
        ctx: Context<'_>,
        inputs: &[*const u8],
        outputs: &[*mut u8],
    ) {
        if let Some((value, bytes)) = self.fill {
            let target = Shared::from_ptr(outputs[0].cast::<T>());
            // SAFETY: eight bytes hold any element.
            let value = unsafe { value.as_ptr().cast::<T>().read_unaligned() };
            let (count, group) = (bytes / size_of::<T>(), TASK_BYTES / size_of::<T>());
            ctx.pool.run(count.div_ceil(group), &|task, _| {
                let start = task * group;
                // SAFETY: every task has its own part of the output.
                unsafe { target.part(start, group.min(count - start)) }.fill(value);
            });
        }
        let sides = Sides { inputs, outputs };
        ctx.pool.run(self.tasks(), &|task, _| {
            let sides = &sides;
            let mut row = task * self.task_rows;
            let end = row + self.task_rows;
            let mut start = 0;
            for strided in &self.boxes {
                if row < strided.end && row < end {
                    let rows = row - start..end.min(strided.end) - start;
                    let (from, to) = (sides.inputs[strided.input], sides.outputs[strided.output]);
                    // SAFETY: the caller's contract, and every row belongs to one task.
                    unsafe { strided.copy::<T>(rows, from.cast(), to.cast()) };
                    row = strided.end;
                }
                start = strided.end;
            }
        });
    }
}

/// An element as its bytes, in the first of eight.
fn element(value: f64, dtype: DType) -> [u8; 8] {
    let tensor =
        plimsoll_tensor::Tensor::from_f64(TensorType::scalar(dtype), &[plimsoll_tensor::round(value, dtype)]);
    let mut bytes = [0; 8];
    if let Ok(tensor) = tensor {
        bytes[..dtype.bytes()].copy_from_slice(tensor.as_bytes());
    }
    bytes
}

/// The operands of a movement, which its tasks share.
struct Sides<'a> {
    inputs: &'a [*const u8],
    outputs: &'a [*mut u8],
}

// SAFETY: inputs are only read, and tasks write disjoint rows.
unsafe impl Sync for Sides<'_> {}

impl StridedBox {
    /// Copies some of its rows.
    ///
    /// # Safety
    /// As for [`Moves::run`].
    unsafe fn copy<T: Copy>(&self, rows: Range<usize>, from: *const T, to: *mut T) {
        let (outer, inner) = self.split();
        let (from, to) = (from.wrapping_add(self.from), to.wrapping_add(self.to));
        let mut index = [0; MOST_AXES];
        let (mut source, mut target) = (0isize, 0isize);
        let mut rest = rows.start;
        for (axis, place) in outer.iter().zip(&mut index).rev() {
            *place = rest % axis.extent;
            rest /= axis.extent;
            source += *place as isize * axis.from;
            target += *place as isize * axis.to;
        }
        for _ in rows {
            // SAFETY: inside the tensors, by the strides of their shapes; rows of the target are disjoint.
            unsafe { copy_row(inner, from.wrapping_offset(source), to.wrapping_offset(target)) };
            for (axis, place) in outer.iter().zip(&mut index).rev() {
                *place += 1;
                source += axis.from;
                target += axis.to;
                if *place < axis.extent {
                    break;
                }
                source -= axis.from * axis.extent as isize;
                target -= axis.to * axis.extent as isize;
                *place = 0;
            }
        }
    }
}

/// Copies one row.
///
/// # Safety
/// Both pointers are good for the axis, and do not overlap.
#[inline(always)]
unsafe fn copy_row<T: Copy>(axis: Axis, from: *const T, to: *mut T) {
    // SAFETY: the caller's contract.
    unsafe {
        match (axis.from, axis.to) {
            (1, 1) => std::ptr::copy_nonoverlapping(from, to, axis.extent),
            (0, 1) => {
                let value = *from;
                std::slice::from_raw_parts_mut(to.cast::<std::mem::MaybeUninit<T>>(), axis.extent)
                    .fill(std::mem::MaybeUninit::new(value));
            }
            _ => {
                for i in 0..axis.extent as isize {
                    to.offset(i * axis.to).write(*from.offset(i * axis.from));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::on_all;

    /// Tasks that end inside a box or cover several, rows that are cut: every element has its place.
    #[test]
    fn joining_and_splitting_large_tensors_puts_every_element_in_its_place() {
        let parts = |rows: usize, widths: &[usize]| -> Vec<TensorType> {
            widths.iter().map(|width| format!("f32[{rows},{width}]").parse().unwrap()).collect()
        };
        for (rows, widths) in
            [(100, &[7, 256, 1, 40, 300][..]), (9, &[8192, 3, 5000]), (2, &[40_000, 33_333]), (3, &[1, 2])]
        {
            let (parts, width) = (parts(rows, widths), widths.iter().sum::<usize>());
            let whole: TensorType = format!("f32[{rows},{width}]").parse().unwrap();
            let types: Vec<&TensorType> = parts.iter().collect();
            let join = Moves::new(&Movement::Concat { axis: 1 }, &types, &[&whole]).unwrap();
            let split = Movement::Split { axis: 1, extents: widths.to_vec() };
            let split = Moves::new(&split, &[&whole], &types).unwrap();
            assert!(rows < 9 || join.tasks() > 1, "{rows} × {width}");
            let wanted: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
            let found = on_all(|ctx| {
                let mut apart: Vec<Vec<f32>> = parts.iter().map(|t| vec![-1.0; t.shape.elements()]).collect();
                let outputs: Vec<*mut u8> = apart.iter_mut().map(|part| part.as_mut_ptr().cast()).collect();
                // SAFETY: the operands are those that the moves were made for.
                unsafe { split.run(ctx, &[wanted.as_ptr().cast()], &outputs) };
                let mut start = 0;
                for (part, &wide) in apart.iter().zip(widths) {
                    let of = |i: usize| (i / wide * width + start + i % wide) as f32;
                    assert!(part.iter().enumerate().all(|(i, &x)| x == of(i)), "{rows} × {wide}");
                    start += wide;
                }
                let inputs: Vec<*const u8> = apart.iter().map(|part| part.as_ptr().cast()).collect();
                let mut joined = vec![-1.0_f32; rows * width];
                // SAFETY: as above.
                unsafe { join.run(ctx, &inputs, &[joined.as_mut_ptr().cast()]) };
                joined
            });
            assert!(found.iter().all(|joined| *joined == wanted), "{rows} × {width}");
        }
    }
}
