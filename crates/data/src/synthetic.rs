//! Examples computed from their index: for measuring, and for models whose data is elsewhere.

use crate::{
    DataError, Source,
    source::{check_read, write_words},
};
use plimsoll_tensor::{DType, TensorType, random::Stream};

/// What synthetic examples look like.
///
/// ```
/// use plimsoll_data::SyntheticSpec;
/// let tokens = SyntheticSpec {
///     input: "i32[256]".parse().unwrap(),
///     label: "i32[256]".parse().unwrap(),
///     classes: 256,
///     input_bound: 256,
/// };
/// assert_eq!(tokens.input.bytes(), 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticSpec {
    /// One input: f32 (standard normal) or i32 (uniform in `0..input_bound`).
    pub input: TensorType,
    /// One label: i32, uniform in `0..classes`.
    pub label: TensorType,
    /// Number of classes.
    pub classes: usize,
    /// Bound of i32 inputs; f32 inputs do without.
    pub input_bound: usize,
}

/// Random examples that hold no memory: each is a function of seed, part and index.
///
/// ```
/// use plimsoll_data::{Source, Synthetic, SyntheticSpec};
/// let spec = SyntheticSpec {
///     input: "i32[4]".parse().unwrap(),
///     label: "i32[]".parse().unwrap(),
///     classes: 10,
///     input_bound: 50,
/// };
/// let source = Synthetic::new(spec, 1_000_000, 7, 0)?;
/// assert_eq!((source.len(), source.resident_bytes()), (1_000_000, 0));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    spec: SyntheticSpec,
    input_bytes: usize,
    label_bytes: usize,
    len: usize,
    inputs: Stream,
    labels: Stream,
}

impl Synthetic {
    /// `len` examples; `part` tells training (0) from test (1) examples of one seed.
    pub fn new(spec: SyntheticSpec, len: usize, seed: u64, part: u64) -> Result<Self, DataError> {
        let invalid = |option, reason: &str, found: &dyn std::fmt::Display| {
            Err(DataError::Option { option, reason: format!("{reason}, not {found}") })
        };
        let fits_i32 = |bound: usize| (1..=i32::MAX as usize).contains(&bound);
        if !matches!(spec.input.dtype, DType::F32 | DType::I32) {
            return invalid("synthetic input", "must be f32 or i32", &spec.input);
        }
        if spec.label.dtype != DType::I32 {
            return invalid("synthetic label", "must be i32", &spec.label);
        }
        if !fits_i32(spec.classes) {
            return invalid("synthetic classes", "must be in 1..2^31", &spec.classes);
        }
        if spec.input.dtype == DType::I32 && !fits_i32(spec.input_bound) {
            return invalid("synthetic input bound", "must be in 1..2^31", &spec.input_bound);
        }
        Ok(Self {
            input_bytes: spec.input.bytes(),
            label_bytes: spec.label.bytes(),
            spec,
            len,
            inputs: Stream::new(seed, part, "synthetic inputs"),
            labels: Stream::new(seed, part, "synthetic labels"),
        })
    }
}

impl Source for Synthetic {
    fn len(&self) -> usize {
        self.len
    }

    fn input_type(&self) -> TensorType {
        self.spec.input.clone()
    }

    fn label_type(&self) -> TensorType {
        self.spec.label.clone()
    }

    fn classes(&self) -> usize {
        self.spec.classes
    }

    fn read(&self, index: usize, input: &mut [u8], label: &mut [u8]) -> Result<(), DataError> {
        check_read((index, self.len), (input, self.input_bytes), (label, self.label_bytes))?;
        let example = index as u64;
        if self.spec.input.dtype == DType::F32 {
            let normals = (0..).flat_map(|block| self.inputs.normal_block(example, block));
            write_words(input, normals.map(f32::to_ne_bytes));
        } else {
            let bound = self.spec.input_bound as u32;
            write_words(input, (0..).map(|element| self.inputs.below(example, element, bound).to_ne_bytes()));
        }
        let classes = self.spec.classes as u32;
        write_words(label, (0..).map(|element| self.labels.below(example, element, classes).to_ne_bytes()));
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        0
    }
}
