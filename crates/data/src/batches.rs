//! Batches in buffers that are used again.

use crate::{DataError, Permutation, Source, budget::zeroed};
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
    input_type: TensorType,
    label_type: TensorType,
    inputs: Vec<u8>,
    labels: Vec<u8>,
    input_bytes: usize,
    label_bytes: usize,
    examples: usize,
    first_example: u64,
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

    /// The inputs one after another, as native bytes.
    pub fn inputs(&self) -> &[u8] {
        &self.inputs[..self.examples * self.input_bytes]
    }

    /// The labels one after another, as native bytes.
    pub fn labels(&self) -> &[u8] {
        &self.labels[..self.examples * self.label_bytes]
    }

    /// Type of the inputs, the examples on the first axis.
    pub fn input_type(&self) -> TensorType {
        batched(&self.input_type, self.examples)
    }

    /// Type of the labels, the examples on the first axis.
    pub fn label_type(&self) -> TensorType {
        batched(&self.label_type, self.examples)
    }

    /// A copy of the inputs as a tensor. It allocates: the training loop copies [`Batch::inputs`] instead.
    pub fn input_tensor(&self) -> HostTensor {
        tensor(self.input_type(), self.inputs())
    }

    /// A copy of the labels as a tensor. It allocates, too.
    pub fn label_tensor(&self) -> HostTensor {
        tensor(self.label_type(), self.labels())
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
    input_bytes: usize,
    label_bytes: usize,
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
        let (input_bytes, label_bytes) = (source.input_type().bytes(), source.label_type().bytes());
        if source.is_empty() {
            return Err(DataError::Empty { what: "the source".into() });
        }
        if batch_size == 0 {
            return invalid("batch size", "must be at least 1".into());
        }
        // Past the length a batch can only be a remainder, so no buffer is longer than the source.
        let batch_size = batch_size.min(source.len());
        if input_bytes.checked_add(label_bytes).and_then(|bytes| bytes.checked_mul(batch_size)).is_none() {
            return invalid(
                "batch size",
                format!("{batch_size} examples of {input_bytes} bytes overflow; take fewer"),
            );
        }
        if start.example > source.len() as u64 {
            let reason = format!(
                "example {} is past the {} of an epoch; resume with the same data",
                start.example,
                source.len()
            );
            return invalid("cursor", reason);
        }
        Ok(Self { source, input_bytes, label_bytes, batch_size, order, cursor: start })
    }

    /// The buffers for one batch, allocated here and never again.
    pub fn batch(&self) -> Result<Batch, DataError> {
        let buffer = |what, bytes: usize| zeroed(what, (bytes * self.batch_size) as u64);
        Ok(Batch {
            input_type: self.source.input_type(),
            label_type: self.source.label_type(),
            inputs: buffer("the inputs of a batch", self.input_bytes)?,
            labels: buffer("the labels of a batch", self.label_bytes)?,
            input_bytes: self.input_bytes,
            label_bytes: self.label_bytes,
            examples: 0,
            first_example: 0,
        })
    }

    /// Heap bytes of one [`Batch`], known before it is made.
    pub fn resident_bytes(&self) -> usize {
        (self.input_bytes + self.label_bytes) * self.batch_size
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
            let input = &mut batch.inputs[i * self.input_bytes..][..self.input_bytes];
            let label = &mut batch.labels[i * self.label_bytes..][..self.label_bytes];
            self.source.read(index, input, label)?;
        }
        (batch.examples, batch.first_example) = (examples, self.cursor.example);
        self.cursor.example += examples as u64;
        Ok(true)
    }

    /// A batch of another size or another source would be filled wrongly, even where its buffers are as long.
    fn check_made_here(&self, batch: &Batch) -> Result<(), DataError> {
        let check = |what, expected, found| {
            if expected == found { Ok(()) } else { Err(DataError::Buffer { what, expected, found }) }
        };
        check("an input of the batch", self.input_bytes, batch.input_bytes)?;
        check("a label of the batch", self.label_bytes, batch.label_bytes)?;
        check("all inputs of the batch", self.input_bytes * self.batch_size, batch.inputs.len())?;
        check("all labels of the batch", self.label_bytes * self.batch_size, batch.labels.len())
    }
}

fn batched(one: &TensorType, examples: usize) -> TensorType {
    let extents: Vec<usize> = std::iter::once(examples).chain(one.shape.iter().copied()).collect();
    TensorType::new(one.dtype, extents)
}

fn tensor(ty: TensorType, bytes: &[u8]) -> HostTensor {
    let mut tensor = HostTensor::zeros(ty);
    tensor.copy_from_bytes(bytes);
    tensor
}
