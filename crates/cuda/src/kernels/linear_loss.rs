//! The loss of a linear layer and its gradients: the logits exist for a chunk of rows at a time. Chunks are cut where blocks of
//! the fold over the batch begin, so that a sum does not depend on how many rows there are.

use super::builder::{CallBuilder, define, flag, parameters};
use super::{Call, Fault, Matrix, Operand, Parameter, Pointer, Product};
use plimsoll_graph::op::Loss;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const ROWS: &str = include_str!("linear_loss.cu");
const CAST: &str = include_str!("linear_loss_cast.cu");
const FOLD: &str = include_str!("linear_loss_fold.cu");

/// Bytes of a chunk's logits at most, unless it has [`LEAST_ROWS`]: 1024 rows of 50,257 classes.
const LOGITS_BYTES: usize = 256 << 20;
const LEAST_ROWS: usize = 128;
/// Classes in the workspace are padded to multiples of this: products of 16-bit floats whose extents are odd are several times
/// slower.
const PADDING: usize = 64;
/// Threads of a block: one block for each row, and one that folds.
const THREADS: u32 = 512;

/// Which inputs and outputs a loss has, by position.
struct Operands {
    logsumexp_in: Option<usize>,
    gradient_of_loss: Option<usize>,
    loss: Option<usize>,
    logsumexp_out: Option<usize>,
    gradients: Option<[usize; 2]>,
    transposed: bool,
}

pub(super) fn find(op: &Loss, query: &KernelQuery<'_>) -> Option<Call> {
    let operands = match *op {
        Loss::CrossEntropy | Loss::CrossEntropyGrad => return None,
        Loss::LinearCrossEntropy { transposed } => Operands {
            logsumexp_in: None,
            gradient_of_loss: None,
            loss: Some(0),
            logsumexp_out: Some(1),
            gradients: None,
            transposed,
        },
        Loss::LinearCrossEntropyGrad { transposed } => Operands {
            logsumexp_in: Some(4),
            gradient_of_loss: Some(5),
            loss: None,
            logsumexp_out: None,
            gradients: Some([0, 1]),
            transposed,
        },
        Loss::LinearCrossEntropyWithGrad { transposed } => Operands {
            logsumexp_in: None,
            gradient_of_loss: Some(4),
            loss: Some(0),
            logsumexp_out: None,
            gradients: Some([1, 2]),
            transposed,
        },
    };
    let (x, kernel) = (query.inputs[0], query.inputs[1]);
    if kernel.dtype != DType::F32 || !(x.dtype == DType::F32 || x.dtype.is_low()) {
        return None;
    }
    let (rows, width, classes) = (x.shape[0], x.shape[1], op.classes(kernel));
    let block_rows = if query.fold_rows == 0 { rows.max(1) } else { query.fold_rows };
    let chunks = Chunks { rows, width, classes, block_rows, dtype: x.dtype, accumulate: query.accumulate };
    Some(chunks.call(&operands))
}

struct Chunks {
    rows: usize,
    width: usize,
    classes: usize,
    block_rows: usize,
    dtype: DType,
    accumulate: bool,
}

/// Where things are in the workspace.
struct Workspace {
    /// In f32: rounded to 16 bits, they would be off by several percent of a class's probability.
    logits: Pointer,
    /// Of the logits, in the features' type; in place of them if that is f32.
    gradients: Pointer,
    /// The kernel in the features' type and with padded classes, if that is not f32.
    kernel: Option<Pointer>,
    /// Each row's part of the loss.
    parts: Pointer,
}

impl Chunks {
    /// Rows of a chunk: a function of the number of classes.
    fn chunk_rows(&self) -> usize {
        let fitting = LOGITS_BYTES / (self.padded() * DType::F32.bytes());
        let power = if fitting == 0 { 0 } else { 1 << fitting.ilog2() };
        power.max(LEAST_ROWS).min(self.block_rows)
    }

    /// Classes in the workspace.
    fn padded(&self) -> usize {
        self.classes.max(1).next_multiple_of(PADDING)
    }

    /// A kernel of so many classes as it is stored: rows and columns.
    fn stored(&self, classes: usize, transposed: bool) -> [usize; 2] {
        if transposed { [classes, self.width] } else { [self.width, classes] }
    }

    fn workspace(&self, builder: &mut CallBuilder, operands: &Operands) -> Workspace {
        let (element, low) = (self.dtype.bytes(), self.dtype != DType::F32);
        let elements = self.chunk_rows().min(self.rows) * self.padded();
        let logits = builder.scratch(4 * elements);
        let own = low && operands.gradients.is_some();
        let gradients = if own { builder.scratch(element * elements) } else { logits };
        let kernel = low.then(|| builder.scratch(element * self.width * self.padded()));
        let parts = builder.scratch(if operands.loss.is_some() { 4 * self.rows } else { 0 });
        Workspace { logits, gradients, kernel, parts }
    }

    fn call(&self, operands: &Operands) -> Call {
        let mut builder = CallBuilder::default();
        let workspace = self.workspace(&mut builder, operands);
        if let (Some([_, kernel]), 0, false) = (operands.gradients, self.rows, self.accumulate) {
            builder.zero(Operand::Write(kernel), self.width * self.classes, DType::F32);
        }
        if let (Some(at), 1..) = (workspace.kernel, self.rows) {
            self.cast_kernel(&mut builder, at, operands.transposed);
        }
        for block in (0..self.rows).step_by(self.block_rows) {
            let end = self.rows.min(block + self.block_rows);
            for start in (block..end).step_by(self.chunk_rows()) {
                let rows = self.chunk_rows().min(end - start);
                self.chunk(&mut builder, start, rows, operands, &workspace);
            }
        }
        if let Some(loss) = operands.loss {
            let macros = [("ACCUMULATE", flag(self.accumulate))];
            let parameters = parameters![workspace.parts, Operand::Write(loss), self.rows, self.block_rows];
            builder.kernel([1, 1, 1], THREADS, define(&macros, FOLD), parameters);
        }
        Call { fault: Some(Fault { what: "label", bound: self.classes }), ..builder.finish() }
    }

    /// The kernel rounded to the features' type, with zeros for the classes that it is padded with.
    fn cast_kernel(&self, builder: &mut CallBuilder, at: Pointer, transposed: bool) {
        let [rows, columns] = self.stored(self.classes, transposed);
        let [padded_rows, padded_columns] = self.stored(self.padded(), transposed);
        let elements = padded_rows * padded_columns;
        let parameters = parameters![Operand::Read(1), at, elements, rows, columns, padded_columns];
        builder.each(elements, define(&[("T", self.dtype.name())], CAST), parameters);
    }

    /// The logits of some rows, what is to be known of each row, and the gradients.
    fn chunk(
        &self,
        builder: &mut CallBuilder,
        start: usize,
        rows: usize,
        operands: &Operands,
        workspace: &Workspace,
    ) {
        let plain = |start: Pointer, dtype, transposed, row_stride| Matrix {
            start,
            dtype,
            transposed,
            row_stride,
            stride: 0,
        };
        let (dtype, width, padded) = (self.dtype, self.width, self.padded());
        // A kernel that is read where it is has no padding.
        let classes = if workspace.kernel.is_some() { padded } else { self.classes };
        let rows_at = |operand: Operand| operand.at(start * width * dtype.bytes());
        let x = |transposed| plain(rows_at(Operand::Read(0)), dtype, transposed, width);
        let [_, columns] = self.stored(classes, operands.transposed);
        // As `[width, classes]`, or transposed.
        let kernel = |transposed: bool| {
            let at = workspace.kernel.unwrap_or(Operand::Read(1).at(0));
            plain(at, dtype, transposed != operands.transposed, columns)
        };
        let logits = plain(workspace.logits, DType::F32, false, padded);
        let gradients = |transposed| plain(workspace.gradients, dtype, transposed, padded);
        let product =
            |[m, n, k]: [usize; 3], a, b, c, accumulate| Product { m, n, k, a, b, c, accumulate, count: 1 };
        let empty = self.classes == 0 || width == 0;
        if empty {
            builder.zero(workspace.logits.operand, rows * padded, DType::F32);
        } else {
            builder.product(product([rows, classes, width], x(false), kernel(false), logits, false));
        }
        self.rows_kernel(builder, start, rows, operands, workspace);
        let Some([dx, dkernel]) = operands.gradients.filter(|_| !empty) else { return };
        let into = plain(rows_at(Operand::Write(dx)), dtype, false, width);
        builder.product(product([rows, width, classes], gradients(false), kernel(true), into, false));
        // The classes that fill whole tiles apart from the rest: an odd extent makes all of a product slow.
        let [_, columns] = self.stored(self.classes, operands.transposed);
        let accumulate = self.accumulate || start > 0;
        let whole = self.classes / PADDING * PADDING;
        for (first, classes) in [(0, whole), (whole, self.classes - whole)] {
            let own = |matrix: Matrix, elements: usize| Matrix {
                start: matrix.start.after(elements * matrix.dtype.bytes()),
                ..matrix
            };
            let first_stored = if operands.transposed { first * width } else { first };
            let into = own(plain(Operand::Write(dkernel).at(0), DType::F32, false, columns), first_stored);
            builder.product(if operands.transposed {
                product([classes, width, rows], own(gradients(true), first), x(false), into, accumulate)
            } else {
                product([width, classes, rows], x(true), own(gradients(false), first), into, accumulate)
            });
        }
    }

    /// For each row its sum of exponentials, its part of the loss, and the gradient of its logits.
    fn rows_kernel(
        &self,
        builder: &mut CallBuilder,
        start: usize,
        rows: usize,
        operands: &Operands,
        workspace: &Workspace,
    ) {
        let macros = [
            ("T", self.dtype.name()),
            ("LOSS", flag(operands.loss.is_some())),
            ("GRADIENT", flag(operands.gradients.is_some())),
            ("SUM_IN", flag(operands.logsumexp_in.is_some())),
            ("SUM_OUT", flag(operands.logsumexp_out.is_some())),
        ];
        let at = |operand: Operand| -> Parameter { operand.at(4 * start).into() };
        // What a kernel does not use is any address.
        let unused: Parameter = workspace.logits.into();
        let part = if operands.loss.is_some() { workspace.parts.after(4 * start) } else { workspace.parts };
        let parameters = parameters![
            workspace.logits,
            at(Operand::Read(2)),
            at(Operand::Read(3)),
            operands.logsumexp_in.map_or(unused, |i| at(Operand::Read(i))),
            operands.gradient_of_loss.map_or(unused, |i| Operand::Read(i).into()),
            operands.logsumexp_out.map_or(unused, |i| at(Operand::Write(i))),
            part,
            workspace.gradients,
            Operand::Fault,
            self.classes,
            self.padded(),
            start,
        ];
        builder.kernel([rows, 1, 1], THREADS, define(&macros, ROWS), parameters);
    }
}
