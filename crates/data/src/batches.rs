//! Batches in buffers that are used again.

use crate::{DataError, MOST_INPUTS, Permutation, Source, budget::zeroed, source::check_types};
use plimsoll_tensor::{HostTensor, TensorType};

/// Where the loop is; small enough for a checkpoint.
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

/// In which order an epoch visits the examples.
///
/// ```
/// use plimsoll_data::Order;
/// let (training, evaluation) = (Order::Shuffled { seed: 7 }, Order::Sequential);
/// assert_ne!(training, evaluation);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By index.
    Sequential,
    /// By a [`Permutation`], another one each epoch.
    Shuffled {
        /// Seed of the run.
        seed: u64,
    },
}

/// One batch, in buffers that [`Batches::next_into`] fills again and again.
///
/// ```
/// use plimsoll_data::{Batches, Cursor, OpenOptions, Order, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// let mut batches = Batches::new(&*digits.test, 2, Order::Sequential, Cursor::default())?;
/// let mut batch = batches.batch()?;
/// assert_eq!(batch.examples(), 0);
/// batches.next_into(&mut batch)?;
/// assert_eq!(batch.labels().len(), 2 * 4);
/// assert_eq!(batch.label_tensor().as_i32(), Some(&[7, 4][..]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Batch {
    inputs: Vec<Column>,
    labels: Column,
    /// Examples that the buffers have room for.
    size: usize,
    examples: usize,
    first_example: u64,
}

/// One of the inputs, or the label, of all examples of a batch, one after another.
#[derive(Debug)]
struct Column {
    /// Of one example.
    ty: TensorType,
    /// Bytes of one example.
    each: usize,
    bytes: Vec<u8>,
}

impl Column {
    fn new(what: &str, ty: &TensorType, size: usize) -> Result<Self, DataError> {
        let each = ty.bytes();
        Ok(Self { ty: ty.clone(), each, bytes: zeroed(what, (each * size) as u64)? })
    }

    fn example(&mut self, i: usize) -> &mut [u8] {
        &mut self.bytes[i * self.each..][..self.each]
    }

    fn first(&self, examples: usize) -> &[u8] {
        &self.bytes[..examples * self.each]
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

impl Batch {
    /// Examples it holds: the batch size, fewer at the end of an epoch, none before it is filled.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Place of its first example in the order of the epoch; the others follow it. Random numbers addressed by place
    /// do not depend on how an epoch is cut into batches.
    pub fn first_example(&self) -> u64 {
        self.first_example
    }

    /// For each input of the source the bytes of all examples, one after another, in native order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.inputs.iter().map(|column| column.first(self.examples))
    }

    /// One of [`Batch::inputs`]; `None` where the source has not as many.
    pub fn input(&self, i: usize) -> Option<&[u8]> {
        Some(self.inputs.get(i)?.first(self.examples))
    }

    /// The labels one after another, as native bytes.
    pub fn labels(&self) -> &[u8] {
        self.labels.first(self.examples)
    }

    /// Types of the inputs, the examples on the first axis.
    pub fn input_types(&self) -> Vec<TensorType> {
        self.inputs.iter().map(|column| column.ty(self.examples)).collect()
    }

    /// Type of the labels, the examples on the first axis.
    pub fn label_type(&self) -> TensorType {
        self.labels.ty(self.examples)
    }

    /// Copies of the inputs as tensors. It allocates: the training loop copies [`Batch::inputs`] instead.
    pub fn input_tensors(&self) -> Vec<HostTensor> {
        self.inputs.iter().map(|column| column.tensor(self.examples)).collect()
    }

    /// A copy of the labels as a tensor. It allocates, too.
    pub fn label_tensor(&self) -> HostTensor {
        self.labels.tensor(self.examples)
    }
}

/// The batches of a source, epoch after epoch.
///
/// ```
/// use plimsoll_data::{Batches, Cursor, OpenOptions, Order, open};
/// let digits = open("mnist", &OpenOptions::default())?;
/// let mut batches = Batches::new(&*digits.test, 1000, Order::Shuffled { seed: 1 }, Cursor::default())?;
/// let mut batch = batches.batch()?;
/// let mut sizes = Vec::new();
/// while batches.next_into(&mut batch)? {
///     sizes.push(batch.examples());
/// }
/// assert_eq!(sizes, [1000, 1000, 500]);
/// assert_eq!(batches.cursor(), Cursor { epoch: 1, example: 0 });
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Batches<'a> {
    source: &'a dyn Source,
    /// Asked once: the source builds its types anew each time.
    inputs: Vec<TensorType>,
    labels: TensorType,
    /// Bytes of one example with its label.
    example_bytes: usize,
    batch_size: usize,
    order: Order,
    cursor: Cursor,
}

impl<'a> Batches<'a> {
    /// Batches of `batch_size` examples from `start` on. A cursor taken from [`Batches::cursor`] continues with exactly
    /// the batches that would have come.
    pub fn new(
        source: &'a dyn Source,
        batch_size: usize,
        order: Order,
        start: Cursor,
    ) -> Result<Self, DataError> {
        let invalid = |option, reason| Err(DataError::Option { option, reason });
        if source.is_empty() {
            return Err(DataError::Empty { what: "the source".into() });
        }
        let (inputs, labels) = (source.input_types(), source.label_type());
        check_types(inputs.len(), &labels, source.classes())?;
        if batch_size == 0 {
            return invalid("batch size", "must be at least 1".into());
        }
        // Past the length a batch can only be a remainder, so no buffer is longer than the source.
        let batch_size = batch_size.min(source.len());
        let example_bytes = inputs.iter().try_fold(labels.bytes(), |sum, ty| sum.checked_add(ty.bytes()));
        let Some(example_bytes) = example_bytes.filter(|bytes| bytes.checked_mul(batch_size).is_some())
        else {
            let what = listed(batch_size, inputs.iter(), &labels);
            return invalid("batch size", format!("the bytes of {what} overflow; take fewer"));
        };
        if start.example > source.len() as u64 {
            let reason = format!(
                "example {} is past the {} of an epoch; resume with the same data",
                start.example,
                source.len()
            );
            return invalid("cursor", reason);
        }
        Ok(Self { source, inputs, labels, example_bytes, batch_size, order, cursor: start })
    }

    /// The buffers for one batch, allocated here and never again.
    pub fn batch(&self) -> Result<Batch, DataError> {
        let column = |what, ty| Column::new(what, ty, self.batch_size);
        let inputs = self.inputs.iter().map(|ty| column("the inputs of a batch", ty));
        Ok(Batch {
            inputs: inputs.collect::<Result<_, _>>()?,
            labels: column("the labels of a batch", &self.labels)?,
            size: self.batch_size,
            examples: 0,
            first_example: 0,
        })
    }

    /// Heap bytes of one [`Batch`], known before it is made.
    pub fn resident_bytes(&self) -> usize {
        self.example_bytes * self.batch_size
    }

    /// Batches in a whole epoch.
    pub fn per_epoch(&self) -> usize {
        self.source.len().div_ceil(self.batch_size)
    }

    /// Where the next batch starts.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Fills `batch` with what comes next. At the end of the epoch it returns `false`, leaves the batch empty and goes
    /// to the next epoch. If an example cannot be read, the batch is empty and the cursor stays.
    pub fn next_into(&mut self, batch: &mut Batch) -> Result<bool, DataError> {
        batch.examples = 0;
        self.check_made_here(batch)?;
        let left = (self.source.len() as u64).saturating_sub(self.cursor.example);
        if left == 0 {
            self.cursor = Cursor { epoch: self.cursor.epoch.wrapping_add(1), example: 0 };
            return Ok(false);
        }
        let examples = (self.batch_size as u64).min(left) as usize;
        let permutation = match self.order {
            Order::Sequential => None,
            Order::Shuffled { seed } => {
                Some(Permutation::new(self.source.len() as u64, seed, self.cursor.epoch))
            }
        };
        for i in 0..examples {
            let place = self.cursor.example + i as u64;
            let index = permutation.map_or(place, |order| order.at(place)) as usize;
            // A fixed array, because nothing is allocated here.
            let mut inputs: [&mut [u8]; MOST_INPUTS] = Default::default();
            for (slot, column) in inputs.iter_mut().zip(&mut batch.inputs) {
                *slot = column.example(i);
            }
            self.source.read(index, &mut inputs[..self.inputs.len()], batch.labels.example(i))?;
        }
        (batch.examples, batch.first_example) = (examples, self.cursor.example);
        self.cursor.example += examples as u64;
        Ok(true)
    }

    /// A batch of another size or another source would be filled wrongly, even where its buffers are as long.
    fn check_made_here(&self, batch: &Batch) -> Result<(), DataError> {
        let made_here = batch.size == self.batch_size
            && batch.inputs.iter().map(|column| &column.ty).eq(&self.inputs)
            && batch.labels.ty == self.labels;
        if made_here {
            return Ok(());
        }
        Err(DataError::OtherBatch {
            expected: listed(self.batch_size, self.inputs.iter(), &self.labels),
            found: listed(batch.size, batch.inputs.iter().map(|column| &column.ty), &batch.labels.ty),
        })
    }
}

/// A batch in words.
fn listed<'t>(size: usize, inputs: impl Iterator<Item = &'t TensorType>, labels: &TensorType) -> String {
    let inputs: Vec<String> = inputs.map(ToString::to_string).collect();
    format!("{size} examples of {} with labels {labels}", inputs.join(", "))
}
