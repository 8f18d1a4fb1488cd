//! A batch in buffers that are used again.

use crate::{DataError, Record, block::Block};
use plimsoll_tensor::{Field, HostTensor, TensorType};
use std::fmt;
use std::sync::Arc;

/// Where a loop over batches is; small enough for a checkpoint.
///
/// ```
/// use plimsoll_data::Cursor;
/// assert_eq!(Cursor::default(), Cursor { epoch: 0, example: 0 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Epochs completed.
    pub epoch: u64,
    /// Examples of this epoch already given.
    pub example: u64,
}

/// One batch, in buffers that [`crate::Batches::next`] fills again and again.
///
/// ```
/// use plimsoll_data::{Cursor, OpenOptions, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// let mut batches = digits.test.batch(2).start(Cursor::default())?;
/// let batch = batches.next()?.expect("the first batch");
/// assert_eq!(batch.labels().len(), 2 * 4);
/// assert_eq!(batch.label_tensor().as_i32(), Some(&[7, 4][..]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Batch {
    inputs: Vec<Rows>,
    labels: Rows,
    examples: usize,
    first_example: u64,
    epoch: u64,
    after: Cursor,
}

/// One column of all examples of a batch, one after another.
#[derive(Clone)]
pub(crate) struct Rows {
    /// Of one example.
    ty: TensorType,
    /// Bytes of one example.
    each: usize,
    block: Arc<Block>,
}

impl Rows {
    fn new(what: &str, field: &Field, size: usize) -> Result<Self, DataError> {
        let each = field.ty.bytes();
        let block = Block::new(what, (each * size) as u64)?;
        Ok(Self { ty: field.ty.clone(), each, block: Arc::new(block) })
    }

    fn first(&self, examples: usize) -> &[u8] {
        // SAFETY: a batch is lent between the write of its last row and its release, and nobody writes then.
        unsafe { self.block.at(0, examples * self.each) }
    }

    fn ty(&self, examples: usize) -> TensorType {
        let extents: Vec<usize> = std::iter::once(examples).chain(self.ty.shape.iter().copied()).collect();
        TensorType::new(self.ty.dtype, extents)
    }

    fn tensor(&self, examples: usize) -> HostTensor {
        let mut tensor = HostTensor::zeros(self.ty(examples));
        tensor.copy_from_bytes(self.first(examples));
        tensor
    }
}

/// Row `row` of all columns.
///
/// # Safety
/// Until the record is dropped, nobody else reads or writes this row.
pub(crate) unsafe fn row(columns: &[Rows], row: usize) -> Record<'_> {
    // SAFETY: the caller has this row alone.
    Record::new(columns.iter().map(|rows| unsafe { rows.block.row(row * rows.each, rows.each) }))
}

impl Batch {
    /// Room for `size` examples.
    pub(crate) fn new(inputs: &[&Field], label: &Field, size: usize) -> Result<Self, DataError> {
        let inputs = inputs.iter().map(|field| Rows::new("the inputs of a batch", field, size));
        Ok(Self {
            inputs: inputs.collect::<Result<_, _>>()?,
            labels: Rows::new("the labels of a batch", label, size)?,
            examples: 0,
            first_example: 0,
            epoch: 0,
            after: Cursor::default(),
        })
    }

    /// The columns, for those who fill them.
    pub(crate) fn columns(&self) -> Vec<Rows> {
        self.inputs.iter().chain([&self.labels]).cloned().collect()
    }

    /// Says what it holds now.
    pub(crate) fn set(&mut self, examples: usize, first_example: u64, epoch: u64, after: Cursor) {
        (self.examples, self.first_example, self.epoch, self.after) = (examples, first_example, epoch, after);
    }

    /// Examples it holds: the batch size, fewer at the end of an epoch.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Place of its first example in the order of the epoch; the others follow it. Random numbers addressed by place
    /// do not depend on how an epoch is cut into batches.
    pub fn first_example(&self) -> u64 {
        self.first_example
    }

    /// The epoch it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where the next batch starts.
    pub fn after(&self) -> Cursor {
        self.after
    }

    /// For each input the bytes of all examples, one after another, in native order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.inputs.iter().map(|rows| rows.first(self.examples))
    }

    /// One of [`Batch::inputs`]; `None` where there are not as many.
    pub fn input(&self, i: usize) -> Option<&[u8]> {
        Some(self.inputs.get(i)?.first(self.examples))
    }

    /// The labels one after another, as native bytes.
    pub fn labels(&self) -> &[u8] {
        self.labels.first(self.examples)
    }

    /// Types of the inputs, the examples on the first axis.
    pub fn input_types(&self) -> Vec<TensorType> {
        self.inputs.iter().map(|rows| rows.ty(self.examples)).collect()
    }

    /// Type of the labels, the examples on the first axis.
    pub fn label_type(&self) -> TensorType {
        self.labels.ty(self.examples)
    }

    /// Copies of the inputs as tensors. It allocates: the training loop copies [`Batch::inputs`] instead.
    pub fn input_tensors(&self) -> Vec<HostTensor> {
        self.inputs.iter().map(|rows| rows.tensor(self.examples)).collect()
    }

    /// A copy of the labels as a tensor. It allocates, too.
    pub fn label_tensor(&self) -> HostTensor {
        self.labels.tensor(self.examples)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.input_types().iter().map(ToString::to_string).collect();
        write!(f, "Batch({} -> {})", inputs.join(", "), self.label_type())
    }
}
