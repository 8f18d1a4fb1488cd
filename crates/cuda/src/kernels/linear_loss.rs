//! The loss of a linear layer and its gradients: the logits exist for a chunk of rows at a time. Chunks are cut where blocks of
//! the fold over the batch begin, so that a sum does not depend on how many rows there are.

use super::builder::{CallBuilder, define, flag, parameters};
use super::{Call, Fault, Matrix, Operand, Parameter, Pointer, Product};
use plimsoll_graph::op::Loss;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const ROWS: &str = include_str!("linear_loss.cu");
const ROUND: &str = include_str!("linear_loss_cast.cu");
const FOLD: &str = include_str!("linear_loss_fold.cu");
const ADD: &str = include_str!("conv/fold.cu");

/// Bytes of a chunk's logits at most, unless it has [`LEAST_ROWS`]: 4096 rows of 50,257 classes in 16-bit floats. Every chunk adds to
/// the kernel's gradient in memory, so short ones take longer.
const LOGITS_BYTES: usize = 512 << 20;
const LEAST_ROWS: usize = 128;
/// Classes in the workspace are padded to multiples of this: products of 16-bit floats whose extents are odd are several times
/// slower.
const PADDING: usize = 64;
/// Rows of a part of the gradient of those classes that do not fill a tile.
const REST_ROWS: usize = 256;
/// Threads of the block that folds.
const THREADS: u32 = 512;
/// Threads of a row's block at most: with two of them on a multiprocessor the second pass over a row finds it in the cache.
const MOST_ROW_THREADS: usize = 1024;
/// Elements of the kernel that a thread rounds.
const CAST: usize = 8;

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

/// A product of few rows and columns: of parts of its terms side by side, which are then added in order. One after the other, so many
/// terms take as long as a large product.
fn rest(builder: &mut CallBuilder, product: &Product, parts: Pointer) {
    let Product { m, n, k, a, b, c, .. } = *product;
    let count = k / REST_ROWS;
    builder.product(Product {
        k: REST_ROWS,
        a: Matrix { stride: REST_ROWS * a.row_stride, ..a },
        b: Matrix { stride: REST_ROWS * b.row_stride, ..b },
        c: Matrix { start: parts, stride: m * n, ..c },
        accumulate: false,
        count,
        bias: None,
        ..*product
    });
    let accumulate = usize::from(product.accumulate);
    builder.each(m * n, define(&[], ADD), parameters![parts, c.start, m * n, count, accumulate]);
    let terms = |matrix: Matrix| Matrix {
        start: matrix.start.after(count * REST_ROWS * matrix.row_stride * matrix.dtype.bytes()),
        ..matrix
    };
    if k > count * REST_ROWS {
        let k = k - count * REST_ROWS;
        builder.product(Product { k, a: terms(a), b: terms(b), accumulate: true, ..*product });
    }
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
    /// In the features' type; then their gradients.
    logits: Pointer,
    /// The kernel in the features' type and with padded classes, if that is not f32.
    kernel: Option<Pointer>,
    /// Each row's part of the loss.
    parts: Pointer,
    /// Parts of the gradient of the classes that do not fill a tile, where these lie side by side.
    rest: Option<Pointer>,
}

impl Chunks {
    /// Rows of a chunk: a function of the number of classes.
    fn chunk_rows(&self) -> usize {
        let fitting = LOGITS_BYTES / (self.padded() * self.dtype.bytes());
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
        let logits = builder.scratch(element * elements);
        let kernel = low.then(|| builder.scratch(element * self.width * self.padded()));
        let parts = builder.scratch(if operands.loss.is_some() { 4 * self.rows } else { 0 });
        let rest = (self.classes % PADDING) * self.width * (self.chunk_rows().min(self.rows) / REST_ROWS);
        let rest = (operands.gradients.is_some() && operands.transposed).then(|| builder.scratch(4 * rest));
        Workspace { logits, kernel, parts, rest }
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
        Call { fault: Some(Fault::Index { what: "label", bound: self.classes }), ..builder.finish() }
    }

    /// The kernel rounded to the features' type, with zeros for the classes that it is padded with.
    fn cast_kernel(&self, builder: &mut CallBuilder, at: Pointer, transposed: bool) {
        let [rows, columns] = self.stored(self.classes, transposed);
        let [padded_rows, padded_columns] = self.stored(self.padded(), transposed);
        let elements = padded_rows * padded_columns;
        // Vectors do not reach over the end of a row.
        let v = if padded_columns.is_multiple_of(CAST) { CAST } else { 1 };
        let parameters = parameters![Operand::Read(1), at, elements / v, rows, columns, padded_columns];
        let macros = [("T", self.dtype.name()), ("V", &*v.to_string())];
        builder.each(elements / v, define(&macros, ROUND), parameters);
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
        let logits = |transposed| plain(workspace.logits, dtype, transposed, padded);
        let product = |[m, n, k]: [usize; 3], a, b, c, accumulate| Product {
            m,
            n,
            k,
            a,
            b,
            c,
            accumulate,
            count: 1,
            bias: None,
            tf32: false,
        };
        let empty = self.classes == 0 || width == 0;
        if empty {
            builder.zero(workspace.logits.operand, rows * padded, dtype);
        } else {
            builder.product(product([rows, classes, width], x(false), kernel(false), logits(false), false));
        }
        self.rows_kernel(builder, start, rows, operands, workspace);
        let Some([dx, dkernel]) = operands.gradients.filter(|_| !empty) else { return };
        let into = plain(rows_at(Operand::Write(dx)), dtype, false, width);
        builder.product(product([rows, width, classes], logits(false), kernel(true), into, false));
        // The classes that fill whole tiles apart from the rest: an odd extent makes all of a product slow.
        let [_, columns] = self.stored(self.classes, operands.transposed);
        let accumulate = self.accumulate || start > 0;
        let whole = self.classes / PADDING * PADDING;
        let own = |matrix: Matrix, elements: usize| Matrix {
            start: matrix.start.after(elements * matrix.dtype.bytes()),
            ..matrix
        };
        for (first, classes) in [(0, whole), (whole, self.classes - whole)] {
            let first_stored = if operands.transposed { first * width } else { first };
            let into = own(plain(Operand::Write(dkernel).at(0), DType::F32, false, columns), first_stored);
            let product = if operands.transposed {
                product([classes, width, rows], own(logits(true), first), x(false), into, accumulate)
            } else {
                product([width, classes, rows], x(true), own(logits(false), first), into, accumulate)
            };
            match workspace.rest {
                Some(parts) if first > 0 && rows > REST_ROWS => rest(builder, &product, parts),
                _ => builder.product(product),
            }
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
        let vector = 16 / self.dtype.bytes();
        let threads = self.padded().div_ceil(vector).next_power_of_two().clamp(32, MOST_ROW_THREADS);
        let macros = [
            ("T", self.dtype.name()),
            ("LOW", flag(self.dtype.is_low())),
            ("THREADS", &*threads.to_string()),
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
            Operand::Fault,
            self.classes,
            self.padded(),
            start,
        ];
        builder.kernel([rows, 1, 1], threads as u32, define(&macros, ROWS), parameters);
    }
}
