//! Sources made of other sources: other labels for the same examples.

use crate::{DataError, Source};
use plimsoll_tensor::{DType, TensorType, random::Stream};

/// Examples whose label is their input: what an autoencoder learns from.
///
/// ```
/// use plimsoll_data::{Itself, OpenOptions, Source, open};
/// let digits = Itself::new(open("mnist", &OpenOptions::default())?.train)?;
/// assert_eq!(digits.label_type(), digits.input_types()[0]);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Itself {
    source: Box<dyn Source>,
    input: TensorType,
    own_label_bytes: usize,
}

/// Labels of one example that fit on the stack: what is not wanted has to go somewhere.
const MOST_LABEL_BYTES: usize = 64;

impl Itself {
    /// The examples of a source of one float input. Its own labels are small, or the source is refused.
    pub fn new(source: Box<dyn Source>) -> Result<Self, DataError> {
        let (types, own_label_bytes) = (source.input_types(), source.label_type().bytes());
        let input = match &types[..] {
            [input] if input.dtype == DType::F32 && own_label_bytes <= MOST_LABEL_BYTES => input.clone(),
            _ => {
                let reason = "needs examples of one float input and small labels".to_string();
                return Err(DataError::Option { option: "the input as its own label", reason });
            }
        };
        Ok(Self { source, input, own_label_bytes })
    }
}

impl Source for Itself {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn input_types(&self) -> Vec<TensorType> {
        vec![self.input.clone()]
    }

    fn label_type(&self) -> TensorType {
        self.input.clone()
    }

    fn classes(&self) -> Option<usize> {
        None
    }

    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        let mut own = [0; MOST_LABEL_BYTES];
        self.source.read(index, inputs, &mut own[..self.own_label_bytes])?;
        let (found, expected) = (label.len(), inputs[0].len());
        if found != expected {
            return Err(DataError::Buffer { what: "the label".into(), expected, found });
        }
        label.copy_from_slice(inputs[0]);
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.source.resident_bytes()
    }
}

/// Text with some of its tokens hidden: what a masked language model learns from. Of 15 % of the positions, drawn once
/// for each example, 80 % show the mask, 10 % another token and 10 % their own; only they have labels.
///
/// ```
/// use plimsoll_data::{Field, Masked, Source, Synthetic, SyntheticSpec};
/// let tokens = Field::below(256, [64]);
/// let text = Synthetic::new(SyntheticSpec { inputs: vec![tokens.clone()], label: tokens }, 10, 0, 0)?;
/// let masked = Masked::new(Box::new(text), 7)?;
/// assert_eq!(masked.classes(), Some(257)); // the mask is one token more
/// let (mut tokens, mut labels) = ([0; 256], [0; 256]);
/// masked.read(3, &mut [&mut tokens], &mut labels)?;
/// assert!(labels.chunks(4).any(|l| i32::from_ne_bytes(l.try_into().unwrap()) < 0));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Masked {
    source: Box<dyn Source>,
    tokens: u32,
    stream: Stream,
}

impl Masked {
    /// The examples of a source of one input of tokens with as many labels.
    pub fn new(source: Box<dyn Source>, seed: u64) -> Result<Self, DataError> {
        let label = source.label_type();
        match source.classes() {
            Some(classes) if label.dtype == DType::I32 && source.input_types()[..] == [label] => {
                Ok(Self { source, tokens: classes as u32, stream: Stream::new(seed, 0, "mask") })
            }
            _ => {
                let reason = "needs examples of one input of tokens, with a label for each".to_string();
                Err(DataError::Option { option: "masked text", reason })
            }
        }
    }
}

impl Source for Masked {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn input_types(&self) -> Vec<TensorType> {
        self.source.input_types()
    }

    fn label_type(&self) -> TensorType {
        self.source.label_type()
    }

    fn classes(&self) -> Option<usize> {
        Some(self.tokens as usize + 1)
    }

    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        self.source.read(index, inputs, label)?;
        let example = index as u64;
        for (i, (token, label)) in inputs[0].chunks_exact_mut(4).zip(label.chunks_exact_mut(4)).enumerate() {
            // Two numbers for a position: whether it is hidden, and what is shown.
            let (hidden, shown) = (self.stream.uniform(example, 2 * i as u64), 2 * i as u64 + 1);
            if hidden >= 0.15 {
                label.copy_from_slice(&(-1i32).to_ne_bytes());
                continue;
            }
            label.copy_from_slice(token);
            let other = self.stream.below(example, shown, 10 * self.tokens);
            let visible = match other / self.tokens {
                0 => Some(other % self.tokens),
                1 => None,
                _ => Some(self.tokens),
            };
            if let Some(visible) = visible {
                token.copy_from_slice(&visible.to_ne_bytes());
            }
        }
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.source.resident_bytes()
    }
}
