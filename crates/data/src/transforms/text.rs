//! Stages on text.

use crate::{DataError, Record, Schema, Stage};
use plimsoll_tensor::{DType, Field, random::Stream};

/// Masks tokens of a text for a masked language model. Of each example 15 % of the positions are drawn, anew each epoch; 80 %
/// of them show the mask, 10 % a random token and 10 % their own. Only they have labels.
///
/// ```
/// use plimsoll_data::{Cursor, Field, Masked, Pipeline, Synthetic, SyntheticSpec};
/// let tokens = Field::below(256, [64]);
/// let text = Synthetic::new(SyntheticSpec { inputs: vec![tokens.clone()], label: tokens }, 10, 0, 0)?;
/// let masked = Pipeline::new(text).apply(Masked { tokens: 256, seed: 7 })?;
/// assert_eq!(masked.schema().classes(), Some(257)); // the mask is one token more
/// let mut batches = masked.start(Cursor::default())?;
/// let labels = batches.next()?.expect("a batch").label_tensor();
/// assert!(labels.as_i32().unwrap().iter().any(|&label| label < 0));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Masked {
    /// Vocabulary size; the mask is the token after it.
    pub tokens: u32,
    /// Seed of the drawn positions and tokens.
    pub seed: u64,
}

impl Stage for Masked {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let (inputs, label) = input.fields()?;
        let tokens = self.tokens as usize;
        let same_type = inputs.len() == 1 && inputs[0].ty == label.ty && label.ty.dtype == DType::I32;
        if !same_type || label.bound != Some(tokens) || tokens == 0 || tokens > (u32::MAX / 10) as usize {
            let reason = format!("needs one input of tokens below {tokens}, with a label for each");
            return Err(DataError::Option { option: "masked text", reason });
        }
        let field = Field { ty: label.ty.clone(), bound: Some(tokens + 1) };
        Ok(Schema::examples([field.clone()], field))
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let stream = Stream::new(self.seed, input.place.epoch, "mask");
        let example = input.place.number;
        output.put(0, input.bytes(0))?;
        for (i, token) in input.bytes(0).chunks_exact(4).enumerate() {
            let position = 4 * i..4 * i + 4;
            // Two random numbers for each position: whether it is masked, and what is shown.
            let (masked, shown) = (stream.uniform(example, 2 * i as u64), 2 * i as u64 + 1);
            if masked >= 0.15 {
                output.buffer_mut(1)[position].copy_from_slice(&(-1i32).to_ne_bytes());
                continue;
            }
            output.buffer_mut(1)[position.clone()].copy_from_slice(token);
            let other = stream.below(example, shown, 10 * self.tokens);
            let visible = match other / self.tokens {
                0 => Some(other % self.tokens),
                1 => None,
                _ => Some(self.tokens),
            };
            if let Some(visible) = visible {
                output.buffer_mut(0)[position].copy_from_slice(&visible.to_ne_bytes());
            }
        }
        Ok(())
    }
}
