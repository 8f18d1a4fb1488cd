//! One node made ready to run: which kernel, on which sizes, with how much scratch.
//!
//! Target and executor both ask here, so the workspace that is planned is the workspace that is used.

use crate::attention::AttentionSpec;
use crate::conv::{self, ConvShape};
use crate::elementwise::Program;
use crate::gemm::{self, Activation, GemmSpec, Mat};
use crate::isa::{Context, Isa};
use crate::loss::LinearSpec;
use crate::movement::StridedCopy;
use crate::norm::{self, Normalised};
use crate::pooling::{self, PoolShape};
use crate::{attention, index, loss, reduce};
use plimsoll_graph::Op;
use plimsoll_graph::op::{
    Attention, Conv, Epilogue, Geometry, Index, Loss, Norm, NormAxis, Pool, Reduce, Region,
};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, TensorType};

/// Output pixels that a block of a convolution's weight gradient should have.
const BLOCK_PIXELS: usize = 256;

/// A node's kernel with its sizes.
pub(crate) enum Call {
    Elementwise(Program),
    Copy(StridedCopy),
    Sum { outer: usize, reduce: usize, inner: usize },
    SumFold { rows: usize, inner: usize, block_rows: usize, accumulate: bool },
    Argmax { rows: usize, width: usize },
    MatMul { spec: GemmSpec, transpose: [bool; 2], epilogue: Epilogue },
    Conv { shape: ConvShape, epilogue: Epilogue },
    ConvInputGrad { shape: ConvShape },
    ConvWeightGrad { shape: ConvShape, block_examples: usize, accumulate: bool },
    MaxPool { shape: PoolShape },
    MaxPoolGrad { shape: PoolShape },
    RowStats { rows: usize, width: usize },
    ChannelStats { rows: usize, width: usize },
    RowSums { rows: usize, width: usize, axis: NormAxis },
    ChannelSums { rows: usize, width: usize, axis: NormAxis, block_rows: usize, accumulate: bool },
    Attention { spec: AttentionSpec },
    AttentionGrad { spec: AttentionSpec },
    Gather { rows: usize, row_bytes: usize, indices: usize },
    ScatterAdd { rows: usize, width: usize, indices: usize, accumulate: bool },
    CrossEntropy { rows: usize, classes: usize, block_rows: usize, accumulate: bool },
    CrossEntropyGrad { rows: usize, classes: usize },
    LinearCrossEntropy { spec: LinearSpec },
    LinearCrossEntropyGrad { spec: LinearSpec },
}

/// The memory of a step.
pub(crate) struct Operands<'a> {
    pub reads: &'a [*const u8],
    pub writes: &'a [*mut u8],
    pub workspace: *mut u8,
    pub workspace_bytes: usize,
}

impl Operands<'_> {
    /// # Safety
    /// The operand has that many elements of that type, and nothing writes to it meanwhile.
    unsafe fn read<T>(&self, i: usize, elements: usize) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.reads[i].cast(), elements) }
    }

    /// # Safety
    /// The operand has that many elements of that type, and nothing else uses it meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the plan keeps a step's outputs apart")]
    unsafe fn write<T>(&self, i: usize, elements: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.writes[i].cast(), elements) }
    }

    /// # Safety
    /// Nothing else uses the workspace meanwhile.
    #[allow(clippy::mut_from_ref, reason = "the plan gives each step its own workspace")]
    unsafe fn scratch(&self) -> &mut [f32] {
        if self.workspace_bytes == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; the arena is aligned and every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts_mut(self.workspace.cast(), self.workspace_bytes / 4) }
    }
}

fn all_f32(types: &[&TensorType]) -> bool {
    types.iter().all(|t| t.dtype == DType::F32)
}

fn conv_shape(geometry: &Geometry, x: &[usize], y: &[usize]) -> ConvShape {
    ConvShape {
        examples: x[0],
        in_h: x[1],
        in_w: x[2],
        in_c: x[3],
        out_h: y[1],
        out_w: y[2],
        out_c: y[3],
        kernel_h: geometry.window[0],
        kernel_w: geometry.window[1],
        stride_h: geometry.stride[0],
        stride_w: geometry.stride[1],
        pad_top: geometry.padding[0][0],
        pad_left: geometry.padding[1][0],
    }
}

fn pool_shape(geometry: &Geometry, x: &[usize], y: &[usize]) -> PoolShape {
    PoolShape {
        examples: x[0],
        in_h: x[1],
        in_w: x[2],
        channels: x[3],
        out_h: y[1],
        out_w: y[2],
        window_h: geometry.window[0],
        window_w: geometry.window[1],
        stride_h: geometry.stride[0],
        stride_w: geometry.stride[1],
        pad_top: geometry.padding[0][0],
        pad_left: geometry.padding[1][0],
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Call {
    /// The kernel for a node, if there is one.
    pub fn new(query: &KernelQuery<'_>) -> Option<Self> {
        let (x, y) = (&query.inputs[..], &query.outputs[..]);
        let accumulate = query.accumulate;
        match query.op {
            Op::Elementwise(op) => {
                let inputs: Vec<TensorType> = x.iter().map(|t| (*t).clone()).collect();
                return Program::single(*op, &inputs, y[0]).ok().map(Self::Elementwise);
            }
            Op::Fused(region) => return Self::fused(region, x, y),
            Op::Movement(op) => {
                let copy = StridedCopy::new(op, &x[0].shape, &y[0].shape, x[0].dtype.bytes());
                return copy.map(Self::Copy);
            }
            _ => {}
        }
        // Sums fold in blocks of the first operand's rows; an op over no examples is one block.
        let block = |inside: usize, rows: usize| {
            if query.fold_rows == 0 { rows.max(1) } else { query.fold_rows * inside }
        };
        let call = match query.op {
            Op::Reduce(Reduce::Sum { start, end }) if all_f32(x) => {
                let shape = &x[0].shape;
                let product = |range: &[usize]| range.iter().product::<usize>();
                let (outer, reduce, inner) =
                    (product(&shape[..*start]), product(&shape[*start..*end]), product(&shape[*end..]));
                if *start == 0 && query.fold_rows > 0 {
                    let block_rows = block(product(&shape[1..*end]), reduce);
                    Self::SumFold { rows: reduce, inner, block_rows, accumulate }
                } else {
                    Self::Sum { outer, reduce, inner }
                }
            }
            Op::Reduce(Reduce::Argmax) if all_f32(x) => {
                let width = *x[0].shape.last()?;
                Self::Argmax { rows: x[0].shape.elements() / width, width }
            }
            Op::MatMul(op) if all_f32(x) => {
                let (m, n, k) = op.extents(x).ok()?;
                let fold = if query.fold_rows > 0 { query.fold_rows } else { usize::MAX };
                let spec = GemmSpec { m, n, k, fold, accumulate };
                Self::MatMul { spec, transpose: [op.transpose_a, op.transpose_b], epilogue: op.epilogue }
            }
            Op::Conv(op) if all_f32(x) => match op {
                Conv::Forward { geometry, epilogue } => {
                    Self::Conv { shape: conv_shape(geometry, &x[0].shape, &y[0].shape), epilogue: *epilogue }
                }
                Conv::InputGrad { geometry, .. } => {
                    Self::ConvInputGrad { shape: conv_shape(geometry, &y[0].shape, &x[0].shape) }
                }
                Conv::WeightGrad { geometry } => {
                    let shape = conv_shape(geometry, &x[0].shape, &x[1].shape);
                    let pixels = (shape.out_h * shape.out_w).max(1);
                    let wanted = (BLOCK_PIXELS / pixels).max(1).next_power_of_two();
                    // A divisor of the block of examples, so that splits at blocks fall between these, too.
                    let block_examples = greatest_common_divisor(query.fold_rows, wanted).max(1);
                    Self::ConvWeightGrad { shape, block_examples, accumulate }
                }
            },
            Op::Pool(Pool::Max { geometry }) if all_f32(x) => {
                Self::MaxPool { shape: pool_shape(geometry, &x[0].shape, &y[0].shape) }
            }
            Op::Pool(Pool::MaxGrad { geometry, .. }) if all_f32(y) => {
                Self::MaxPoolGrad { shape: pool_shape(geometry, &y[0].shape, &x[0].shape) }
            }
            Op::Norm(op) if all_f32(x) => {
                let shape = &x[0].shape;
                let width = *shape.last()?;
                let rows = shape[..shape.rank() - 1].iter().product();
                let inside = shape.get(1..shape.rank() - 1).map_or(1, |inner| inner.iter().product());
                match op {
                    Norm::Stats { axis: NormAxis::Row } => Self::RowStats { rows, width },
                    Norm::Stats { axis: NormAxis::Channel } => Self::ChannelStats { rows, width },
                    Norm::Sums { axis } => {
                        // Whose statistics they are shows in their shape; `[1]` of one row of one channel is both.
                        let statistics =
                            if x[2].shape[..] == [width] { NormAxis::Channel } else { NormAxis::Row };
                        match axis {
                            NormAxis::Row => Self::RowSums { rows, width, axis: statistics },
                            NormAxis::Channel => {
                                let block_rows = block(inside, rows);
                                Self::ChannelSums { rows, width, axis: statistics, block_rows, accumulate }
                            }
                        }
                    }
                    Norm::Layer { .. } | Norm::Batch { .. } => return None,
                }
            }
            Op::Attention(op) if all_f32(x) => {
                let &[examples, positions, heads, width] = &x[0].shape[..] else { return None };
                let spec = AttentionSpec { examples, positions, heads, width, causal: op.causal() };
                match op {
                    Attention::Forward { .. } => Self::Attention { spec },
                    Attention::Grad { .. } => Self::AttentionGrad { spec },
                }
            }
            Op::Index(Index::Gather) => {
                let (rows, row_bytes) = (x[0].shape[0], x[0].shape[1] * x[0].dtype.bytes());
                Self::Gather { rows, row_bytes, indices: x[1].shape.elements() }
            }
            Op::Index(Index::ScatterAdd { rows }) if x[1].dtype == DType::F32 => Self::ScatterAdd {
                rows: *rows,
                width: y[0].shape[1],
                indices: x[0].shape.elements(),
                accumulate,
            },
            Op::Loss(op) if x[0].dtype == DType::F32 => {
                let (rows, columns) = (x[0].shape[0], x[0].shape[1]);
                let block_rows = block(1, rows);
                let spec =
                    || LinearSpec { rows, width: columns, classes: x[1].shape[1], block_rows, accumulate };
                match op {
                    Loss::CrossEntropy => {
                        Self::CrossEntropy { rows, classes: columns, block_rows, accumulate }
                    }
                    Loss::CrossEntropyGrad => Self::CrossEntropyGrad { rows, classes: columns },
                    Loss::LinearCrossEntropy => Self::LinearCrossEntropy { spec: spec() },
                    Loss::LinearCrossEntropyGrad => Self::LinearCrossEntropyGrad { spec: spec() },
                }
            }
            _ => return None,
        };
        Some(call)
    }

    fn fused(region: &Region, x: &[&TensorType], y: &[&TensorType]) -> Option<Self> {
        let own = |types: &[&TensorType]| types.iter().map(|t| (*t).clone()).collect::<Vec<_>>();
        Program::new(region, &own(x), &own(y)).ok().map(Self::Elementwise)
    }

    /// Bytes of scratch.
    pub fn workspace(&self, isa: Isa, threads: usize) -> usize {
        match self {
            Self::Elementwise(program) => program.workspace(threads),
            Self::SumFold { rows, inner, block_rows, .. } => {
                reduce::sum_fold_workspace(*rows, *inner, *block_rows)
            }
            Self::MatMul { spec, .. } => gemm::gemm_workspace(isa, threads, spec),
            Self::Conv { shape, .. } => conv::conv2d_workspace(isa, threads, shape),
            Self::ConvInputGrad { shape } => conv::conv2d_input_grad_workspace(isa, threads, shape),
            Self::ConvWeightGrad { shape, block_examples, .. } => {
                conv::conv2d_weight_grad_workspace(isa, threads, shape, *block_examples)
            }
            Self::ChannelStats { rows, width } => norm::channel_stats_workspace(*rows, *width),
            Self::ChannelSums { rows, width, block_rows, .. } => {
                norm::channel_sums_workspace(*rows, *width, *block_rows)
            }
            Self::Attention { spec } => attention::attention_workspace(isa, threads, spec),
            Self::AttentionGrad { spec } => attention::attention_grad_workspace(isa, threads, spec),
            Self::CrossEntropy { rows, .. } => loss::cross_entropy_workspace(*rows),
            Self::LinearCrossEntropy { spec } => loss::linear_cross_entropy_workspace(isa, threads, spec),
            Self::LinearCrossEntropyGrad { spec } => {
                loss::linear_cross_entropy_grad_workspace(isa, threads, spec)
            }
            _ => 0,
        }
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// The operands are those of the node this call was made for, each valid for its type and apart from the others
    /// but for what the target allows in place; the workspace has [`Call::workspace`] bytes.
    pub unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY (for every block below): lengths follow from the node's types, which the plan gave the operands.
        macro_rules! read {
            ($i:expr, $n:expr) => {
                // SAFETY: as above.
                unsafe { o.read($i, $n) }
            };
        }
        macro_rules! write {
            ($i:expr, $n:expr) => {
                // SAFETY: as above.
                unsafe { o.write($i, $n) }
            };
        }
        // SAFETY: the plan gives each step its own workspace.
        let scratch = unsafe { o.scratch() };
        match self {
            Self::Elementwise(program) => {
                // SAFETY: the pointers are the operands'; overlaps are as the target allows.
                unsafe { program.run(ctx, o.reads, o.writes, o.workspace) };
            }
            Self::Copy(copy) => {
                // SAFETY: input and output of the node, apart from each other.
                unsafe { copy.run(o.reads[0], o.writes[0]) };
            }
            &Self::Sum { outer, reduce, inner } => {
                reduce::sum(
                    ctx,
                    outer,
                    reduce,
                    inner,
                    read!(0, outer * reduce * inner),
                    write!(0, outer * inner),
                );
            }
            &Self::SumFold { rows, inner, block_rows, accumulate } => {
                let (x, y) = (read!(0, rows * inner), write!(0, inner));
                reduce::sum_fold(ctx, rows, inner, block_rows, accumulate, x, y, scratch);
            }
            &Self::Argmax { rows, width } => {
                reduce::argmax(ctx, rows, width, read!(0, rows * width), write!(0, rows));
            }
            Self::MatMul { spec, transpose, epilogue } => {
                let matrix = |data, transposed: bool, rows: usize, columns: usize| {
                    let (row_stride, col_stride) = if transposed { (1, rows) } else { (columns, 1) };
                    Mat { data, row_stride, col_stride }
                };
                let a = matrix(read!(0, spec.m * spec.k), transpose[0], spec.m, spec.k);
                let b = matrix(read!(1, spec.k * spec.n), transpose[1], spec.k, spec.n);
                let bias = if epilogue.bias { Some(read!(2, spec.n)) } else { None };
                gemm::gemm(ctx, spec, a, b, write!(0, spec.m * spec.n), finish(*epilogue, bias), scratch);
            }
            Self::Conv { shape, epilogue } => {
                let [x, w, y] = conv_sizes(shape);
                let bias = if epilogue.bias { Some(read!(2, shape.out_c)) } else { None };
                conv::conv2d(
                    ctx,
                    shape,
                    read!(0, x),
                    read!(1, w),
                    write!(0, y),
                    finish(*epilogue, bias),
                    scratch,
                );
            }
            Self::ConvInputGrad { shape } => {
                let [x, w, y] = conv_sizes(shape);
                conv::conv2d_input_grad(ctx, shape, read!(0, y), read!(1, w), write!(0, x), scratch);
            }
            Self::ConvWeightGrad { shape, block_examples, accumulate } => {
                let [x, w, y] = conv_sizes(shape);
                let (x, dy, dw) = (read!(0, x), read!(1, y), write!(0, w));
                conv::conv2d_weight_grad(ctx, shape, x, dy, dw, *accumulate, *block_examples, scratch);
            }
            Self::MaxPool { shape } => {
                let [x, y] = pool_sizes(shape);
                pooling::max_pool(ctx, shape, read!(0, x), write!(0, y), write!(1, y));
            }
            Self::MaxPoolGrad { shape } => {
                let [x, y] = pool_sizes(shape);
                pooling::max_pool_grad(ctx, shape, read!(0, y), read!(1, y), write!(0, x));
            }
            &Self::RowStats { rows, width } => {
                norm::row_stats(ctx, rows, width, read!(0, rows * width), write!(0, rows), write!(1, rows));
            }
            &Self::ChannelStats { rows, width } => {
                let x = read!(0, rows * width);
                norm::channel_stats(ctx, rows, width, x, write!(0, width), write!(1, width), scratch);
            }
            &Self::RowSums { rows, width, axis } => {
                let n = if axis == NormAxis::Row { rows } else { width };
                let normalised =
                    Normalised { x: read!(1, rows * width), axis, mean: read!(2, n), rstd: read!(3, n) };
                norm::row_sums(
                    ctx,
                    rows,
                    width,
                    read!(0, rows * width),
                    normalised,
                    write!(0, rows),
                    write!(1, rows),
                );
            }
            &Self::ChannelSums { rows, width, axis, block_rows, accumulate } => {
                let n = if axis == NormAxis::Row { rows } else { width };
                let normalised =
                    Normalised { x: read!(1, rows * width), axis, mean: read!(2, n), rstd: read!(3, n) };
                let (dy, sum, with_x) = (read!(0, rows * width), write!(0, width), write!(1, width));
                norm::channel_sums(
                    ctx, rows, width, block_rows, accumulate, dy, normalised, sum, with_x, scratch,
                );
            }
            Self::Attention { spec } => {
                let (n, rows) = (attention_rows(spec) * spec.width, attention_rows(spec));
                let (q, k, v) = (read!(0, n), read!(1, n), read!(2, n));
                attention::attention(ctx, spec, q, k, v, write!(0, n), write!(1, rows), scratch);
            }
            Self::AttentionGrad { spec } => {
                let (n, rows) = (attention_rows(spec) * spec.width, attention_rows(spec));
                let (q, k, v, y, lse, dy) =
                    (read!(0, n), read!(1, n), read!(2, n), read!(3, n), read!(4, rows), read!(5, n));
                let (dq, dk, dv) = (write!(0, n), write!(1, n), write!(2, n));
                attention::attention_grad(ctx, spec, q, k, v, y, lse, dy, dq, dk, dv, scratch);
            }
            &Self::Gather { rows, row_bytes, indices } => {
                let (table, index, y) =
                    (read!(0, rows * row_bytes), read!(1, indices), write!(0, indices * row_bytes));
                index::gather(ctx, rows, row_bytes, table, index, y).map_err(|e| e.to_string())?;
            }
            &Self::ScatterAdd { rows, width, indices, accumulate } => {
                let (index, dy, y) = (read!(0, indices), read!(1, indices * width), write!(0, rows * width));
                index::scatter_add(ctx, rows, width, index, dy, accumulate, y).map_err(|e| e.to_string())?;
            }
            &Self::CrossEntropy { rows, classes, block_rows, accumulate } => {
                let (logits, labels, weights) = (read!(0, rows * classes), read!(1, rows), read!(2, rows));
                let (total, lse): (&mut [f32], _) = (write!(0, 1), write!(1, rows));
                let total = &mut total[0];
                loss::cross_entropy(
                    ctx, rows, classes, block_rows, accumulate, logits, labels, weights, total, lse, scratch,
                )
                .map_err(|e| format!("label: {e}"))?;
            }
            &Self::CrossEntropyGrad { rows, classes } => {
                let (logits, labels, weights) = (read!(0, rows * classes), read!(1, rows), read!(2, rows));
                let (lse, dloss): (_, &[f32]) = (read!(3, rows), read!(4, 1));
                let dlogits = write!(0, rows * classes);
                loss::cross_entropy_grad(ctx, rows, classes, logits, labels, weights, lse, dloss[0], dlogits)
                    .map_err(|e| format!("label: {e}"))?;
            }
            Self::LinearCrossEntropy { spec } => {
                let (x, kernel) = (read!(0, spec.rows * spec.width), read!(1, spec.width * spec.classes));
                let (labels, weights) = (read!(2, spec.rows), read!(3, spec.rows));
                let (total, lse): (&mut [f32], _) = (write!(0, 1), write!(1, spec.rows));
                loss::linear_cross_entropy(
                    ctx,
                    spec,
                    x,
                    kernel,
                    labels,
                    weights,
                    &mut total[0],
                    lse,
                    scratch,
                )
                .map_err(|e| format!("label: {e}"))?;
            }
            Self::LinearCrossEntropyGrad { spec } => {
                let (inputs, weights) = (spec.rows * spec.width, spec.width * spec.classes);
                let (x, kernel, labels) = (read!(0, inputs), read!(1, weights), read!(2, spec.rows));
                let (row_weights, lse, dloss): (_, _, &[f32]) =
                    (read!(3, spec.rows), read!(4, spec.rows), read!(5, 1));
                let (dx, dkernel) = (write!(0, inputs), write!(1, weights));
                loss::linear_cross_entropy_grad(
                    ctx,
                    spec,
                    x,
                    kernel,
                    labels,
                    row_weights,
                    lse,
                    dloss[0],
                    dx,
                    dkernel,
                    scratch,
                )
                .map_err(|e| format!("label: {e}"))?;
            }
        }
        Ok(())
    }
}

/// Queries of all heads.
fn attention_rows(spec: &AttentionSpec) -> usize {
    spec.examples * spec.positions * spec.heads
}

fn finish(epilogue: Epilogue, bias: Option<&[f32]>) -> gemm::Epilogue<'_> {
    gemm::Epilogue { bias, activation: if epilogue.relu { Activation::Relu } else { Activation::None } }
}

/// Elements of image, kernel and result.
fn conv_sizes(s: &ConvShape) -> [usize; 3] {
    [
        s.examples * s.in_h * s.in_w * s.in_c,
        s.kernel_h * s.kernel_w * s.in_c * s.out_c,
        s.examples * s.out_h * s.out_w * s.out_c,
    ]
}

/// Elements of image and result.
fn pool_sizes(s: &PoolShape) -> [usize; 2] {
    [s.examples * s.in_h * s.in_w * s.channels, s.examples * s.out_h * s.out_w * s.channels]
}
