//! Examples computed from their index: for measuring, and for models whose data is elsewhere.

use crate::{
    DataError, Source,
    source::{check_read, check_types, write_words},
};
use plimsoll_tensor::{DType, TensorType, random::Stream};

/// What synthetic examples look like.
///
/// ```
/// use plimsoll_data::{Field, SyntheticSpec};
/// let tokens = SyntheticSpec {
///     inputs: vec![Field { ty: "i32[256]".parse().unwrap(), bound: 256 }],
///     label: "i32[256]".parse().unwrap(),
///     classes: Some(256),
/// };
/// assert_eq!(tokens.inputs[0].ty.bytes(), 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticSpec {
    /// The inputs of one example.
    pub inputs: Vec<Field>,
    /// One label: i32, uniform in `0..classes`, or f32, standard normal.
    pub label: TensorType,
    /// Number of classes of i32 labels; `None` for f32 labels.
    pub classes: Option<usize>,
}

/// One input of synthetic examples.
///
/// ```
/// use plimsoll_data::Field;
/// let image = Field { ty: "f32[28,28,1]".parse().unwrap(), bound: 0 };
/// let token = Field { ty: "i32[]".parse().unwrap(), bound: 256 };
/// assert_ne!(image, token);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// f32, standard normal, or i32, uniform in `0..bound`.
    pub ty: TensorType,
    /// Bound of i32 values; f32 values do without.
    pub bound: usize,
}

/// Random examples that hold no memory: each is a function of seed, part and index.
///
/// ```
/// use plimsoll_data::{Field, Source, Synthetic, SyntheticSpec};
/// let spec = SyntheticSpec {
///     inputs: vec![Field { ty: "i32[4]".parse().unwrap(), bound: 50 }],
///     label: "f32[]".parse().unwrap(),
///     classes: None,
/// };
/// let source = Synthetic::new(spec, 1_000_000, 7, 0)?;
/// assert_eq!((source.len(), source.resident_bytes()), (1_000_000, 0));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    spec: SyntheticSpec,
    len: usize,
    inputs: Vec<Values>,
    input_bytes: Vec<usize>,
    labels: Values,
    label_bytes: usize,
}

impl Synthetic {
    /// `len` examples; `part` tells training (0) from test (1) examples of one seed.
    pub fn new(spec: SyntheticSpec, len: usize, seed: u64, part: u64) -> Result<Self, DataError> {
        check_types(spec.inputs.len(), &spec.label, spec.classes)?;
        let stream = |name: &str| Stream::new(seed, part, name);
        let mut inputs = Vec::with_capacity(spec.inputs.len());
        for (i, field) in spec.inputs.iter().enumerate() {
            let stream = match i {
                0 => stream("synthetic inputs"),
                _ => stream(&format!("synthetic inputs {i}")),
            };
            inputs.push(Values { stream, bound: field.bound()? });
        }
        let labels =
            Values { stream: stream("synthetic labels"), bound: spec.classes.map(|classes| classes as u32) };
        let input_bytes = spec.inputs.iter().map(|field| field.ty.bytes()).collect();
        Ok(Self { label_bytes: spec.label.bytes(), spec, len, inputs, input_bytes, labels })
    }
}

impl Field {
    /// The bound of integers, `None` for floats.
    fn bound(&self) -> Result<Option<u32>, DataError> {
        let invalid = |option, reason| Err(DataError::Option { option, reason });
        match self.ty.dtype {
            DType::F32 => Ok(None),
            DType::I32 if (1..=i32::MAX as usize).contains(&self.bound) => Ok(Some(self.bound as u32)),
            DType::I32 => invalid("synthetic input bound", format!("must be in 1..2^31, not {}", self.bound)),
            _ => invalid("synthetic input", format!("must be f32 or i32, not {}", self.ty)),
        }
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
    fn len(&self) -> usize {
        self.len
    }

    fn input_types(&self) -> Vec<TensorType> {
        self.spec.inputs.iter().map(|field| field.ty.clone()).collect()
    }

    fn label_type(&self) -> TensorType {
        self.spec.label.clone()
    }

    fn classes(&self) -> Option<usize> {
        self.spec.classes
    }

    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        check_read((index, self.len), (inputs, &self.input_bytes), (label, self.label_bytes))?;
        for (values, input) in self.inputs.iter().zip(inputs) {
            values.fill(index as u64, input);
        }
        self.labels.fill(index as u64, label);
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        0
    }
}
