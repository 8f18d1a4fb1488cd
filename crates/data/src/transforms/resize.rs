//! Images of floats in memory at another size.

use super::table::{named, once};
use crate::{DataError, Kind, Record, Schema, Stage};
use bytemuck::{bytes_of, pod_read_unaligned};
use plimsoll_tensor::{DType, Field, TensorType};
use std::sync::OnceLock;

/// Resizes images `[height, width, channels]` of f32 in a column, bilinearly; an image that shrinks is smoothed, so that
/// every pixel counts. Encoded files are resized by [`crate::Decode`] as they are decoded.
///
/// ```
/// use plimsoll_data::{Memory, Pipeline, Resize};
/// let images = Memory::classes(vec![[[[0u8; 3]; 32]; 32]; 10], vec![0; 10], 2)?;
/// let images = Pipeline::new(images).map_elements("input", |pixel: u8| f32::from(pixel) / 255.0)?;
/// let small = images.apply(Resize::new("input", [8, 16]))?;
/// assert_eq!(small.schema().in_words(), "input f32[8,16,3], label i32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Resize {
    column: String,
    size: [usize; 2],
    layout: OnceLock<Layout>,
}

/// What the columns of a record decide.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    index: usize,
    /// Width of the source.
    width: usize,
    channels: usize,
    rows: Vec<Taps>,
    columns: Vec<Taps>,
}

/// The source's elements that one element of the result is the weighted mean of.
#[derive(Clone, Debug, PartialEq)]
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

impl Resize {
    /// Images of a column at this height and width.
    pub fn new(column: impl Into<String>, size: [usize; 2]) -> Self {
        Self { column: column.into(), size, layout: OnceLock::new() }
    }
}

/// The taps of every element along an axis: a triangle as wide as two elements of the coarser side.
fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let radius = scale.max(1.0);
    let one = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let first = (centre - radius).floor().max(0.0) as usize;
        let end = ((centre + radius).ceil() as usize).min(from);
        let weight = |j: usize| (1.0 - (j as f64 + 0.5 - centre).abs() / radius).max(0.0);
        let total: f64 = (first..end).map(weight).sum();
        Taps { first, weights: (first..end).map(|j| (weight(j) / total) as f32).collect() }
    };
    (0..to).map(one).collect()
}

impl Stage for Resize {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let (index, column) = named(input, &self.column)?;
        let invalid = |reason: String| Err(DataError::Option { option: "resize", reason });
        let Kind::Tensor(field) = &column.kind else {
            return Err(DataError::NotATensor { column: column.name.clone() });
        };
        let (&[height, width, channels], DType::F32) = (&field.ty.shape[..], field.ty.dtype) else {
            return invalid(format!(
                "`{}` holds {}; it takes f32[height,width,channels]: convert with `map_elements`, reshape with `Shaped`",
                column.name, field.ty
            ));
        };
        let extents = [height, width, self.size[0], self.size[1]];
        if extents.contains(&0) || extents.iter().any(|&extent| extent > 1 << 16) {
            return invalid(format!("sides must be in 1..=65536: {} to {:?}", field.ty, self.size));
        }
        let (rows, columns) = (taps(height, self.size[0]), taps(width, self.size[1]));
        once(&self.layout, Layout { index, width, channels, rows, columns })?;
        let ty = TensorType::new(DType::F32, [self.size[0], self.size[1], channels]);
        Ok(input.replaced(index, Kind::Tensor(Field { ty, bound: None })))
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let Some(layout) = self.layout.get() else { return output.copy_from(input) };
        let Layout { index, width, channels, rows, columns } = layout;
        output.copy_all_but(*index, input)?;
        let source = input.bytes(*index);
        let pixel = |row: usize, column: usize, channel: usize| -> f32 {
            let start = 4 * ((row * width + column) * channels + channel);
            pod_read_unaligned(&source[start..start + 4])
        };
        let mut places = output.buffer_mut(*index).chunks_exact_mut(4);
        for row in rows {
            for column in columns {
                for (channel, place) in (0..*channels).zip(&mut places) {
                    let mut sum = 0.0f32;
                    for (i, down) in row.weights.iter().enumerate() {
                        for (j, across) in column.weights.iter().enumerate() {
                            sum += down * across * pixel(row.first + i, column.first + j, channel);
                        }
                    }
                    place.copy_from_slice(bytes_of(&sum));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cursor, Memory, Pipeline};

    fn resized(image: Vec<f32>, shape: [usize; 3], size: [usize; 2]) -> Vec<f32> {
        let image = plimsoll_tensor::Tensor::new([1, shape[0], shape[1], shape[2]], image).unwrap();
        let stage = Resize::new("input", size);
        let pipeline = Pipeline::new(Memory::classes(image, [0], 1).unwrap()).apply(stage).unwrap();
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        let batch = batches.next().unwrap().unwrap();
        batch.input_tensors()[0].as_f32().unwrap().to_vec()
    }

    #[test]
    fn the_same_size_is_the_same_image() {
        let image: Vec<f32> = (0..24).map(|i| i as f32 / 3.0).collect();
        assert_eq!(resized(image.clone(), [3, 4, 2], [3, 4]), image);
    }

    /// Half the size: each element has the weights 1/8, 3/8, 3/8, 1/8 of its four neighbours, fewer at the edge.
    #[test]
    fn a_smaller_image_is_smoothed() {
        let found = resized(vec![0.0, 0.0, 8.0, 0.0, 0.0, 0.0], [1, 6, 1], [1, 3]);
        let wanted = [8.0 / 7.0, 3.0, 0.0];
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        }
        assert_eq!(found.len(), 3);
    }

    /// Twice the size, at half pixels: as PyTorch and Keras have it.
    #[test]
    fn a_larger_image_is_interpolated() {
        assert_eq!(resized(vec![0.0, 4.0], [2, 1, 1], [4, 1]), [0.0, 1.0, 3.0, 4.0]);
        assert_eq!(resized(vec![0.0, 4.0, 10.0, 20.0], [1, 2, 2], [1, 1]), [5.0, 12.0]);
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let refused = |x: plimsoll_tensor::Tensor, stage: Resize| {
            let pipeline = Pipeline::new(Memory::classes(x, [0], 1).unwrap());
            pipeline.apply(stage).err().unwrap().to_string()
        };
        let bytes = refused([[[[1u8; 3]; 2]; 2]].into(), Resize::new("input", [4, 4]));
        assert!(bytes.contains("holds u8[2,2,3]") && bytes.contains("map_elements"), "{bytes}");
        assert!(refused([[1.0f32; 4]].into(), Resize::new("input", [4, 4])).contains("f32[4]"));
        assert!(refused([[[[1.0f32; 3]; 2]; 2]].into(), Resize::new("input", [0, 4])).contains("1..=65536"));
        assert!(refused([[1.0f32; 4]].into(), Resize::new("image", [4, 4])).contains("there is no `image`"));
    }
}
