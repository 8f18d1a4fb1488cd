//! A batch, in buffers that are reused.

use crate::core::shared_buffer::SharedBuffer;
use crate::source::memory::common_examples;
use crate::{DataError, MAX_COLUMNS, Record};
use plimsoll_tensor::{Field, Tensor, TensorType};
use std::fmt;
use std::sync::Arc;

/// The position of a loop over batches; small enough for a checkpoint.
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

/// The rows of a batch that one of several processes reads ([`crate::Pipeline::own_rows`]): of every `stride` rows, `rows` from
/// `first` on.
///
/// ```
/// use plimsoll_data::OwnRows;
/// let second = OwnRows { first: 2, rows: 2, stride: 4 }; // the second of two, in two micro-batches
/// assert_eq!((0..8).filter(|&place| second.has(place)).collect::<Vec<_>>(), [2, 3, 6, 7]);
/// assert_eq!((0..4).map(|row| second.place(row)).collect::<Vec<_>>(), [2, 3, 6, 7]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRows {
    /// The first.
    pub first: usize,
    /// How many there are, one after another.
    pub rows: usize,
    /// Rows from the first to the next ones' first.
    pub stride: usize,
}

impl OwnRows {
    /// Whether the row at a place of the batch is one of them.
    pub fn has(&self, place: usize) -> bool {
        (self.first..self.first + self.rows).contains(&(place % self.stride.max(1)))
    }

    /// The place in the batch of one of them.
    pub fn place(&self, row: usize) -> usize {
        let each = self.rows.max(1);
        row / each * self.stride + self.first + row % each
    }

    /// How many there are in a batch of so many examples.
    pub fn count(&self, examples: usize) -> usize {
        let stride = self.stride.max(1);
        examples / stride * self.rows + (examples % stride).saturating_sub(self.first).min(self.rows)
    }
}

/// One batch, in buffers that [`crate::Batches::next`] reuses, or of tensors ([`Batch::of`], [`Batch::unlabelled`]).
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
    /// For each bucket its columns, the label last; all buckets share the same buffers. One entry where there are no buckets.
    types: Vec<Vec<Rows>>,
    bucket: usize,
    /// Of the batch, and those among them that the buffers hold.
    examples: usize,
    held: usize,
    own: Option<OwnRows>,
    first_example: u64,
    epoch: u64,
    after: Cursor,
}

/// One column of a batch: its examples one after another.
#[derive(Clone)]
pub(crate) struct Rows {
    /// Of one example.
    ty: TensorType,
    /// Bytes of one example.
    each: usize,
    buffer: Arc<SharedBuffer>,
}

impl Rows {
    fn first(&self, examples: usize) -> &[u8] {
        // SAFETY: a batch is lent between the write of its last row and its release, and no thread writes then.
        unsafe { self.buffer.read(0, examples * self.each) }
    }

    fn ty(&self, examples: usize) -> TensorType {
        let extents: Vec<usize> = std::iter::once(examples).chain(self.ty.shape.iter().copied()).collect();
        TensorType::new(self.ty.dtype, extents)
    }

    fn tensor(&self, examples: usize) -> Tensor {
        let mut tensor = Tensor::zeros(self.ty(examples));
        tensor.copy_from_bytes(self.first(examples));
        tensor
    }
}

/// Row `row` of all columns.
///
/// # Safety
/// Until the record is dropped, no other thread reads or writes this row.
pub(crate) unsafe fn row(columns: &[Rows], row: usize) -> Record<'_> {
    // SAFETY: the caller has exclusive access to this row.
    Record::new(columns.iter().map(|rows| unsafe { rows.buffer.write(row * rows.each, rows.each) }))
}

impl Batch {
    /// A batch of tensors whose first axis is the examples': for a training loop by hand.
    ///
    /// ```
    /// use plimsoll_data::Batch;
    /// let batch = Batch::of([[[0.0f32, 0.1], [1.0, 1.1], [2.0, 2.1]]], [0, 1, 1])?;
    /// assert_eq!((batch.examples(), batch.input_types()[0].to_string().as_str()), (3, "f32[3,2]"));
    /// assert!(Batch::of([[[0.0f32, 0.1]]], [0, 1]).is_err()); // one example, two labels
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn of(
        inputs: impl IntoIterator<Item = impl Into<Tensor>>,
        labels: impl Into<Tensor>,
    ) -> Result<Self, DataError> {
        let inputs: Vec<Tensor> = inputs.into_iter().map(Into::into).collect();
        let (count, labels) = (inputs.len(), labels.into());
        if !(1..MAX_COLUMNS).contains(&count) {
            return Err(DataError::InputCount { found: count, most: MAX_COLUMNS - 1 });
        }
        let examples = common_examples(&inputs, Some(&labels))?;
        let rows = |tensor: Tensor| {
            let ty = TensorType::new(tensor.ty().dtype, &tensor.ty().shape[1..]);
            let each = ty.bytes();
            Rows { ty, each, buffer: Arc::new(SharedBuffer::of(tensor.as_bytes().to_vec())) }
        };
        let types = vec![inputs.into_iter().chain([labels]).map(rows).collect()];
        let after = Cursor { epoch: 0, example: examples as u64 };
        let (held, own) = (examples, None);
        Ok(Self { types, bucket: 0, examples, held, own, first_example: 0, epoch: 0, after })
    }

    /// A batch of inputs alone, for a prediction: its labels are zeros of the model's target.
    ///
    /// ```
    /// use plimsoll_data::{Batch, Field};
    /// let batch = Batch::unlabelled([[[0.0f32, 0.1], [1.0, 1.1]]], &Field::below(10, []))?;
    /// assert_eq!(batch.label_type().to_string(), "i32[2]");
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn unlabelled(
        inputs: impl IntoIterator<Item = impl Into<Tensor>>,
        target: &Field,
    ) -> Result<Self, DataError> {
        let inputs: Vec<Tensor> = inputs.into_iter().map(Into::into).collect();
        let examples = common_examples(&inputs, None)?;
        let labels = TensorType::new(target.ty.dtype, [&[examples], &target.ty.shape[..]].concat());
        Self::of(inputs, Tensor::zeros(labels))
    }

    /// A copy of the `examples` examples from `start` on; past the batch's last one, that is repeated.
    ///
    /// ```
    /// use plimsoll_data::Batch;
    /// let part = Batch::of([[[1.0f32], [2.0], [3.0]]], [0, 1, 1])?.part(2, 2);
    /// assert_eq!(part.input_tensors()[0].as_f32(), Some(&[3.0, 3.0][..]));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn part(&self, start: usize, examples: usize) -> Self {
        let rows = |rows: &Rows| {
            let (each, all) = (rows.each, rows.first(self.held));
            let first = (start * each).min(all.len());
            let mut bytes = Vec::with_capacity(examples * each);
            bytes.extend_from_slice(&all[first..(first + examples * each).min(all.len())]);
            while bytes.len() < examples * each && all.len() >= each {
                bytes.extend_from_slice(&all[all.len() - each..]);
            }
            Rows { ty: rows.ty.clone(), each, buffer: Arc::new(SharedBuffer::of(bytes)) }
        };
        let types = vec![self.types[self.bucket].iter().map(rows).collect()];
        let first_example = self.first_example + start as u64;
        let (held, own) = (examples, None);
        Self { types, bucket: 0, examples, held, own, first_example, epoch: self.epoch, after: self.after }
    }

    /// Buffers for `size` examples of any of these types, which have the same number of columns.
    pub(crate) fn buffers(types: &[Vec<&Field>], size: usize) -> Result<Self, DataError> {
        let buffer = |column: usize| {
            let each = types.iter().map(|fields| fields[column].ty.bytes()).max().unwrap_or(0);
            SharedBuffer::new("a column of a batch", (each * size) as u64).map(Arc::new)
        };
        let columns = types.first().map_or(0, Vec::len);
        let buffers: Vec<Arc<SharedBuffer>> = (0..columns).map(buffer).collect::<Result<_, _>>()?;
        let rows = |(field, buffer): (&&Field, &Arc<SharedBuffer>)| Rows {
            ty: field.ty.clone(),
            each: field.ty.bytes(),
            buffer: buffer.clone(),
        };
        let types = types.iter().map(|fields| fields.iter().zip(&buffers).map(rows).collect());
        let (types, after) = (types.collect(), Cursor::default());
        Ok(Self { types, bucket: 0, examples: 0, held: 0, own: None, first_example: 0, epoch: 0, after })
    }

    /// The columns of each bucket, for the workers that fill them.
    pub(crate) fn columns(&self) -> Vec<Vec<Rows>> {
        self.types.clone()
    }

    /// Sets what the buffers hold now: all examples, or of those of several processes this one's.
    pub(crate) fn set(
        &mut self,
        bucket: usize,
        (examples, own): (usize, Option<OwnRows>),
        first: Cursor,
        after: Cursor,
    ) {
        (self.bucket, self.examples, self.after) = (bucket, examples, after);
        (self.held, self.own) = (own.map_or(examples, |own| own.count(examples)), own);
        (self.first_example, self.epoch) = (first.example, first.epoch);
    }

    fn rows(&self) -> (&[Rows], &Rows) {
        let columns = &self.types[self.bucket];
        let label = columns.len() - 1;
        (&columns[..label], &columns[label])
    }

    /// Number of examples: the batch size, or fewer at the end of an epoch. Where each of several processes reads its own rows, those of
    /// all.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Number of examples that it holds: all, or of those of several processes this one's.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The rows that it holds, where it is one process's part of a batch.
    pub fn own_rows(&self) -> Option<OwnRows> {
        self.own
    }

    /// The place in the whole batch of one of the examples that it holds.
    pub fn place(&self, row: usize) -> usize {
        self.own.map_or(row, |own| own.place(row))
    }

    /// Position of its first example in the order of the epoch, whichever process holds it; the others follow it. Random numbers
    /// addressed by position do not depend on how an epoch is split into batches.
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
        self.rows().0.iter().map(|rows| rows.first(self.held))
    }

    /// One of [`Batch::inputs`]; `None` past the last.
    pub fn input(&self, i: usize) -> Option<&[u8]> {
        Some(self.rows().0.get(i)?.first(self.held))
    }

    /// The labels one after another, as native bytes.
    pub fn labels(&self) -> &[u8] {
        self.rows().1.first(self.held)
    }

    /// Types of one example's inputs, and of its label after them.
    pub fn example_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.types[self.bucket].iter().map(|rows| &rows.ty)
    }

    /// Types of the inputs; axis 0 is the batch.
    pub fn input_types(&self) -> Vec<TensorType> {
        self.rows().0.iter().map(|rows| rows.ty(self.held)).collect()
    }

    /// Type of the labels; axis 0 is the batch.
    pub fn label_type(&self) -> TensorType {
        self.rows().1.ty(self.held)
    }

    /// Copies of the inputs as tensors. It allocates: the training loop copies [`Batch::inputs`] instead.
    pub fn input_tensors(&self) -> Vec<Tensor> {
        self.rows().0.iter().map(|rows| rows.tensor(self.held)).collect()
    }

    /// A copy of the first input as a tensor: of models with one input, all of it.
    ///
    /// ```
    /// use plimsoll_data::Batch;
    /// let batch = Batch::of([[[3.0f32, 120.0]]], [[250.0f32]])?;
    /// assert_eq!(batch.input_tensor().as_f32(), Some(&[3.0, 120.0][..]));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn input_tensor(&self) -> Tensor {
        self.rows().0.first().map_or_else(|| Vec::<f32>::new().into(), |rows| rows.tensor(self.held))
    }

    /// A copy of the labels as a tensor; it allocates as well.
    pub fn label_tensor(&self) -> Tensor {
        self.rows().1.tensor(self.held)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.input_types().iter().map(ToString::to_string).collect();
        write!(f, "Batch({} -> {})", inputs.join(", "), self.label_type())
    }
}
