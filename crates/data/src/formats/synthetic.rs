//! `synthetic`: random examples computed from their index, for benchmarks and tests.

use crate::core::record::write_words;
use crate::core::schema::check_types;
use crate::source::check_read;
use crate::{DataError, Dataset, OpenOptions, Record, Schema, Source};
use plimsoll_tensor::{DType, Field, random::Stream};

pub(super) fn open(spec: &str, _: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let Some(types) = &options.synthetic else {
        let reason = "needs the types of inputs and labels, which a model has: give one".into();
        return Err(DataError::Option { option: "synthetic", reason });
    };
    if options.examples == 0 {
        return Err(DataError::Option { option: "examples", reason: "must be at least 1".into() });
    }
    let part = |len, part| Synthetic::new(types.clone(), len, options.seed, part);
    Ok(Dataset::new(spec, part(options.examples, 0)?, part((options.examples / 10).max(1), 1)?))
}

/// The types of synthetic examples: i32 values are uniform below their bounds, f32 values standard normal.
///
/// ```
/// use plimsoll_data::SyntheticSpec;
/// use plimsoll_tensor::Field;
/// let tokens = SyntheticSpec { inputs: vec![Field::below(256, [64])], label: Field::below(256, [64]) };
/// assert_eq!(tokens.inputs[0].ty.bytes(), 256);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticSpec {
    /// The inputs of one example.
    pub inputs: Vec<Field>,
    /// One label.
    pub label: Field,
}

/// Random examples without memory: each is a function of seed, part and index.
///
/// ```
/// use plimsoll_data::{Source, Synthetic, SyntheticSpec};
/// use plimsoll_tensor::Field;
/// let spec = SyntheticSpec { inputs: vec![Field::below(50, [4])], label: Field::floats([]) };
/// let source = Synthetic::new(spec, 1_000_000, 7, 0)?;
/// assert_eq!((source.len(), source.resident_bytes()), (1_000_000, 0));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    schema: Schema,
    len: usize,
    /// The distribution of each column.
    values: Vec<Values>,
}

impl Synthetic {
    /// `len` examples; `part` distinguishes training (0) from test (1) examples of one seed.
    pub fn new(spec: SyntheticSpec, len: usize, seed: u64, part: u64) -> Result<Self, DataError> {
        check_types(spec.inputs.len(), &spec.label.ty, spec.label.bound)?;
        let stream = |name: &str| Stream::new(seed, part, name);
        let mut values = Vec::with_capacity(spec.inputs.len() + 1);
        for (i, field) in spec.inputs.iter().enumerate() {
            let stream = match i {
                0 => stream("synthetic inputs"),
                _ => stream(&format!("synthetic inputs {i}")),
            };
            values.push(Values { stream, bound: bound(field)? });
        }
        values.push(Values { stream: stream("synthetic labels"), bound: bound(&spec.label)? });
        Ok(Self { schema: Schema::examples(spec.inputs, spec.label), len, values })
    }
}

/// The bound of integers, `None` for floats.
fn bound(field: &Field) -> Result<Option<u32>, DataError> {
    let invalid = |option, reason| Err(DataError::Option { option, reason });
    match (field.ty.dtype, field.bound.unwrap_or(0)) {
        (DType::F32, _) => Ok(None),
        (DType::I32, bound) if (1..=i32::MAX as usize).contains(&bound) => Ok(Some(bound as u32)),
        (DType::I32, bound) => invalid("synthetic input bound", format!("must be in 1..2^31, not {bound}")),
        _ => invalid("synthetic input", format!("must be f32 or i32, not {}", field.ty)),
    }
}

/// Random values: integers below a bound, or standard normals.
#[derive(Clone, Copy, Debug)]
struct Values {
    stream: Stream,
    bound: Option<u32>,
}

impl Values {
    fn fill(&self, example: u64, bytes: &mut [u8]) {
        match self.bound {
            Some(bound) => {
                let integers = (0..).map(|element| self.stream.below(example, element, bound));
                write_words(bytes, integers.map(u32::to_ne_bytes));
            }
            None => {
                let normals = (0..).flat_map(|block| self.stream.normal_block(example, block));
                write_words(bytes, normals.map(f32::to_ne_bytes));
            }
        }
    }
}

impl Source for Synthetic {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        for (column, values) in self.values.iter().enumerate() {
            values.fill(index as u64, record.buffer_mut(column));
        }
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        0
    }
}
