//! The loss of a linear layer and its gradients: the logits exist for a chunk of rows at a time. Chunks are cut where blocks of
//! the fold over the batch begin, so that a sum does not depend on how many rows there are.

use super::matmul::zero;
use super::{Call, Fault, Kernel, Launch, Matrix, Operand, Parameter, Pointer, Product};
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
/// Everything in the workspace starts at such a multiple.
const ALIGNMENT: usize = 256;
/// Threads of a block: one block for each row, and one that folds.
const THREADS: usize = 512;

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
    logits: usize,
    /// Of the logits, in the features' type; in place of them if that is f32.
    gradients: usize,
    /// The kernel in the features' type and with padded classes, if that is not f32.
    kernel: Option<usize>,
    /// Each row's part of the loss.
    parts: usize,
    bytes: usize,
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

    fn workspace(&self, operands: &Operands) -> Workspace {
        let mut bytes = 0;
        let mut take = |wanted: usize| {
            let start = bytes;
            bytes += wanted.next_multiple_of(ALIGNMENT);
            start
        };
        let (element, low) = (self.dtype.bytes(), self.dtype != DType::F32);
        let elements = self.chunk_rows().min(self.rows) * self.padded();
        let logits = take(4 * elements);
        let gradients = if low && operands.gradients.is_some() { take(element * elements) } else { logits };
        let kernel = low.then(|| take(element * self.width * self.padded()));
        let parts = if operands.loss.is_some() { take(4 * self.rows) } else { 0 };
        Workspace { logits, gradients, kernel, parts, bytes }
    }

    fn call(&self, operands: &Operands) -> Call {
        let workspace = self.workspace(operands);
        let mut launches = Vec::new();
        if let (Some([_, kernel]), false) = (operands.gradients, self.accumulate)
            && self.rows == 0
            && self.width * self.classes > 0
        {
            launches.push(zero(Operand::Write(kernel), DType::F32, self.width * self.classes));
        }
        if self.rows > 0 {
            launches.extend(workspace.kernel.map(|at| self.cast_kernel(at, operands.transposed)));
        }
        for block in (0..self.rows).step_by(self.block_rows) {
            let end = self.rows.min(block + self.block_rows);
            for start in (block..end).step_by(self.chunk_rows()) {
                let rows = self.chunk_rows().min(end - start);
                self.chunk(start, rows, operands, &workspace, &mut launches);
            }
        }
        launches.extend(operands.loss.map(|loss| self.fold(loss, workspace.parts)));
        let fault = Some(Fault { what: "label", bound: self.classes });
        Call { launches, workspace: workspace.bytes, fault }
    }

    /// The kernel rounded to the features' type, with zeros for the classes that it is padded with.
    fn cast_kernel(&self, at: usize, transposed: bool) -> Launch {
        let [rows, columns] = self.stored(self.classes, transposed);
        let [padded_rows, padded_columns] = self.stored(self.padded(), transposed);
        let elements = padded_rows * padded_columns;
        let parameters = vec![
            Operand::Read(1).into(),
            Operand::Workspace.at(at).into(),
            elements.into(),
            rows.into(),
            columns.into(),
            padded_columns.into(),
        ];
        let source = format!("#define T {}\n{CAST}", self.dtype);
        let blocks = elements.div_ceil(THREADS).max(1);
        Launch::Kernel(Kernel { source, blocks: [blocks as u32, 1, 1], threads: THREADS as u32, parameters })
    }

    /// The logits of some rows, what is to be known of each row, and the gradients.
    fn chunk(
        &self,
        start: usize,
        rows: usize,
        operands: &Operands,
        workspace: &Workspace,
        launches: &mut Vec<Launch>,
    ) {
        let plain = |operand: Operand, offset, dtype, transposed, row_stride| Matrix {
            start: operand.at(offset),
            dtype,
            transposed,
            row_stride,
            stride: 0,
        };
        let (dtype, width, padded) = (self.dtype, self.width, self.padded());
        // A kernel that is read where it is has no padding.
        let classes = if workspace.kernel.is_some() { padded } else { self.classes };
        let x = |transposed| plain(Operand::Read(0), start * width * dtype.bytes(), dtype, transposed, width);
        let [_, columns] = self.stored(classes, operands.transposed);
        // As `[width, classes]`, or transposed.
        let kernel = |transposed: bool| {
            let (operand, at) = workspace.kernel.map_or((Operand::Read(1), 0), |at| (Operand::Workspace, at));
            plain(operand, at, dtype, transposed != operands.transposed, columns)
        };
        let logits = plain(Operand::Workspace, workspace.logits, DType::F32, false, padded);
        let gradients =
            |transposed| plain(Operand::Workspace, workspace.gradients, dtype, transposed, padded);
        let product = |[m, n, k]: [usize; 3], a, b, c, accumulate| {
            Launch::Product(Product { m, n, k, a, b, c, accumulate, count: 1 })
        };
        let empty = self.classes == 0 || width == 0;
        launches.push(match empty {
            true => zero(Operand::Workspace, DType::F32, rows * padded),
            false => product([rows, classes, width], x(false), kernel(false), logits, false),
        });
        launches.push(self.rows_kernel(start, rows, operands, workspace));
        let Some([dx, dkernel]) = operands.gradients.filter(|_| !empty) else { return };
        let into = plain(Operand::Write(dx), start * width * dtype.bytes(), dtype, false, width);
        launches.push(product([rows, width, classes], gradients(false), kernel(true), into, false));
        // The classes that fill whole tiles apart from the rest: an odd extent makes all of a product slow.
        let [_, columns] = self.stored(self.classes, operands.transposed);
        let accumulate = self.accumulate || start > 0;
        let whole = self.classes / PADDING * PADDING;
        for (first, classes) in [(0, whole), (whole, self.classes - whole)] {
            if classes == 0 {
                continue;
            }
            let own = |matrix: Matrix, elements: usize| {
                let Pointer { operand, offset } = matrix.start;
                Matrix { start: operand.at(offset + elements * matrix.dtype.bytes()), ..matrix }
            };
            let first_stored = if operands.transposed { first * width } else { first };
            let into = own(plain(Operand::Write(dkernel), 0, DType::F32, false, columns), first_stored);
            launches.push(if operands.transposed {
                product([classes, width, rows], own(gradients(true), first), x(false), into, accumulate)
            } else {
                product([width, classes, rows], x(true), own(gradients(false), first), into, accumulate)
            });
        }
    }

    /// For each row its sum of exponentials, its part of the loss, and the gradient of its logits.
    fn rows_kernel(&self, start: usize, rows: usize, operands: &Operands, workspace: &Workspace) -> Launch {
        let flag = |yes: bool| u8::from(yes);
        let source = format!(
            "#define T {}\n#define LOSS {}\n#define GRADIENT {}\n#define SUM_IN {}\n#define SUM_OUT {}\n{ROWS}",
            self.dtype,
            flag(operands.loss.is_some()),
            flag(operands.gradients.is_some()),
            flag(operands.logsumexp_in.is_some()),
            flag(operands.logsumexp_out.is_some()),
        );
        let at = |operand: Operand| -> Parameter { operand.at(4 * start).into() };
        // What a kernel does not use is any address.
        let unused: Parameter = Operand::Workspace.into();
        let part = if operands.loss.is_some() { workspace.parts + 4 * start } else { 0 };
        let parameters = vec![
            Operand::Workspace.at(workspace.logits).into(),
            at(Operand::Read(2)),
            at(Operand::Read(3)),
            operands.logsumexp_in.map_or(unused, |i| at(Operand::Read(i))),
            operands.gradient_of_loss.map_or(unused, |i| Operand::Read(i).into()),
            operands.logsumexp_out.map_or(unused, |i| at(Operand::Write(i))),
            Operand::Workspace.at(part).into(),
            Operand::Workspace.at(workspace.gradients).into(),
            Operand::Fault.into(),
            self.classes.into(),
            self.padded().into(),
            start.into(),
        ];
        Launch::Kernel(Kernel { source, blocks: [rows as u32, 1, 1], threads: THREADS as u32, parameters })
    }

    /// The sum of all rows' parts, block by block.
    fn fold(&self, loss: usize, parts: usize) -> Launch {
        let source = format!("#define ACCUMULATE {}\n{FOLD}", u8::from(self.accumulate));
        let parameters = vec![
            Operand::Workspace.at(parts).into(),
            Operand::Write(loss).into(),
            self.rows.into(),
            self.block_rows.into(),
        ];
        Launch::Kernel(Kernel { source, blocks: [1, 1, 1], threads: THREADS as u32, parameters })
    }
}
