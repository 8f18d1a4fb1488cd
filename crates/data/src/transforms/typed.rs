//! Stages of closures over the elements of one column.

use crate::{DataError, Kind, Record, Schema, Stage};
use bytemuck::{bytes_of, cast_slice_mut, pod_read_unaligned, try_cast_slice_mut};
use plimsoll_tensor::{DType, Element, Field, TensorType};
use std::marker::PhantomData;

/// The field of a column whose elements are of this type.
fn typed(schema: &Schema, index: usize, dtype: DType) -> Result<&Field, DataError> {
    let column = &schema.columns()[index];
    match &column.kind {
        Kind::Tensor(field) if field.ty.dtype == dtype => Ok(field),
        Kind::Tensor(field) => {
            let reason = format!("`{}` holds {}, the closure takes {dtype}", column.name, field.ty);
            Err(DataError::Option { option: "map", reason })
        }
        Kind::Bytes { .. } => Err(DataError::NotATensor { column: column.name.clone() }),
    }
}

/// Maps every element by itself.
pub(crate) struct ElementMap<A, B, F> {
    index: usize,
    work: F,
    types: PhantomData<fn(A) -> B>,
}

impl<A: Element, B: Element, F: Fn(A) -> B> ElementMap<A, B, F> {
    pub fn new(index: usize, work: F) -> Self {
        Self { index, work, types: PhantomData }
    }
}

impl<A: Element, B: Element, F: Fn(A) -> B + Send + Sync> Stage for ElementMap<A, B, F> {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        let field = typed(input, self.index, A::DTYPE)?;
        // Integers of the same type are taken to have the same bound; a run checks it.
        let bound = field.bound.filter(|_| A::DTYPE == B::DTYPE);
        let ty = TensorType::new(B::DTYPE, field.ty.shape.clone());
        Ok(input.replaced(self.index, Kind::Tensor(Field { ty, bound })))
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        output.copy_all_but(self.index, input)?;
        // Rows lie at any address, so elements are moved as bytes.
        let from = input.bytes(self.index).chunks_exact(size_of::<A>());
        let to = output.buffer_mut(self.index).chunks_exact_mut(size_of::<B>());
        for (from, to) in from.zip(to) {
            to.copy_from_slice(bytes_of(&(self.work)(pod_read_unaligned(from))));
        }
        Ok(())
    }
}

/// Changes all elements of a record's column at once, in place.
pub(crate) struct ColumnMap<T, F> {
    index: usize,
    work: F,
    element: PhantomData<fn(T)>,
}

impl<T: Element, F: Fn(&mut [T])> ColumnMap<T, F> {
    pub fn new(index: usize, work: F) -> Self {
        Self { index, work, element: PhantomData }
    }
}

impl<T: Element, F: Fn(&mut [T]) + Send + Sync> Stage for ColumnMap<T, F> {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        typed(input, self.index, T::DTYPE)?;
        Ok(input.clone())
    }

    fn scratch_bytes(&self, input: &Schema) -> usize {
        input.columns()[self.index].kind.capacity().saturating_add(align_of::<T>())
    }

    fn apply(
        &self,
        input: &mut Record<'_>,
        output: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<(), DataError> {
        output.copy_from(input)?;
        let row = output.buffer_mut(self.index);
        if let Ok(elements) = try_cast_slice_mut(row) {
            (self.work)(elements);
            return Ok(());
        }
        // The row is not aligned: the scratch has room for a copy that is.
        let start = scratch.as_ptr().align_offset(align_of::<T>());
        let aligned = start.checked_add(row.len()).and_then(|end| scratch.get_mut(start..end));
        let Some(aligned) = aligned else {
            let (expected, found) = (row.len().saturating_add(align_of::<T>()), scratch.len());
            return Err(DataError::Buffer { what: "the scratch of a map".into(), expected, found });
        };
        aligned.copy_from_slice(row);
        (self.work)(cast_slice_mut(aligned));
        row.copy_from_slice(aligned);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows at every address around an aligned one: the closure sees aligned elements, and nothing else changes.
    #[test]
    fn a_column_at_any_address_is_mapped() {
        let schema = Schema::new().tensor("x", Field::floats([3])).tensor("label", Field::below(2, []));
        let stage = ColumnMap::new(0, |x: &mut [f32]| x.iter_mut().for_each(|x| *x *= 2.0));
        for start in 0..8 {
            let (mut from, mut to) = (vec![0; 16], vec![0; 16 + start]);
            let mut input = Record::over(&schema, &mut from);
            input.put_f32(0, &[1.0, 2.0, -3.0]).unwrap();
            input.put_i32(1, 1).unwrap();
            let mut output = Record::over(&schema, &mut to[start..]);
            let mut scratch = vec![7; stage.scratch_bytes(&schema)];
            stage.apply(&mut input, &mut output, &mut scratch).unwrap();
            let wanted: Vec<u8> = [2.0f32, 4.0, -6.0].into_iter().flat_map(f32::to_ne_bytes).collect();
            assert_eq!((output.bytes(0), output.i32(1)), (&wanted[..], Some(1)), "from byte {start}");
        }
    }

    #[test]
    fn bounds_stay_where_types_do() {
        let schema = Schema::new().tensor("x", Field::below(5, [2])).tensor("label", Field::floats([]));
        let same = ElementMap::new(0, |x: i32| 4 - x).schema(&schema).unwrap();
        assert_eq!(same, schema);
        let floats = ElementMap::new(0, |x: i32| x as f32).schema(&schema).unwrap();
        assert_eq!(floats.in_words(), "x f32[2], label f32[]");
        let bytes = Schema::new().bytes("x", 8).tensor("label", Field::floats([]));
        let error = ColumnMap::new(0, |_: &mut [u8]| {}).schema(&bytes).unwrap_err().to_string();
        assert!(error.contains("a stage must make a tensor of it first"), "{error}");
    }
}
