//! Verbs that map one column by a typed closure.

use super::Pipeline;
use crate::DataError;
use crate::transforms::table::named;
use crate::transforms::typed::{ColumnMap, ElementMap};
use plimsoll_tensor::Element;

impl Pipeline {
    /// Maps every element of a column, on all workers; the result may have another element type. Inputs of tensors in
    /// memory are `input`, `input1`, …, and labels `label`.
    ///
    /// ```
    /// use plimsoll_data::{Memory, Pipeline};
    /// let pixels = Pipeline::new(Memory::classes(vec![[0u8; 4]; 10], vec![0; 10], 2)?);
    /// let floats = pixels.clone().map_elements("input", |pixel: u8| f32::from(pixel) / 255.0)?;
    /// assert_eq!(floats.schema().in_words(), "input f32[4], label i32[]");
    /// let error = pixels.map_elements("input", |x: f32| x).err().map(|error| error.to_string());
    /// assert_eq!(error.as_deref(), Some("map: `input` holds u8[4], the closure takes f32"));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn map_elements<A: Element, B: Element>(
        self,
        column: &str,
        work: impl Fn(A) -> B + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let (index, _) = named(self.schema(), column)?;
        self.apply(ElementMap::new(index, work))
    }

    /// Changes all elements of a column in place, on all workers: those of one record, in row-major order.
    ///
    /// ```
    /// use plimsoll_data::{Cursor, Memory, Pipeline};
    /// let points = Pipeline::new(Memory::values([[3.0f32, 4.0], [0.0, 2.0]], [[0.0f32], [1.0]])?);
    /// let unit = points.map_column("input", |x: &mut [f32]| {
    ///     let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
    ///     x.iter_mut().for_each(|x| *x /= norm);
    /// })?;
    /// let mut batches = unit.batch(2).start(Cursor::default())?;
    /// let batch = batches.next()?.expect("a batch");
    /// assert_eq!(batch.input_tensors()[0].as_f32(), Some(&[0.6, 0.8, 0.0, 1.0][..]));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn map_column<T: Element>(
        self,
        column: &str,
        work: impl Fn(&mut [T]) + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let (index, _) = named(self.schema(), column)?;
        self.apply(ColumnMap::new(index, work))
    }
}
