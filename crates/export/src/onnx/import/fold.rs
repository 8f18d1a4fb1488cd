//! Whole numbers that a file computes from shapes.

use super::super::read::FOLDED_ELEMENTS;

/// Whole numbers with a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ints {
    pub dims: Vec<usize>,
    pub values: Vec<i64>,
}

impl Ints {
    pub fn list(values: Vec<i64>) -> Self {
        Self { dims: vec![values.len()], values }
    }

    pub fn scalar(value: i64) -> Self {
        Self { dims: Vec::new(), values: vec![value] }
    }

    /// A function of two, element by element, where one of them may be a single number.
    pub fn zip(&self, other: &Self, of: impl Fn(i64, i64) -> Option<i64>) -> Option<Self> {
        let (long, count) = match (self.values.len(), other.values.len()) {
            (a, b) if a == b => (self, a),
            (1, b) => (other, b),
            (a, 1) => (self, a),
            _ => return None,
        };
        let dims = if self.dims.len() > other.dims.len() && long.values.len() == 1 {
            &self.dims
        } else {
            &long.dims
        };
        let at = |ints: &Self, i: usize| if ints.values.len() == 1 { ints.values[0] } else { ints.values[i] };
        let values = (0..count).map(|i| of(at(self, i), at(other, i))).collect::<Option<_>>()?;
        Some(Self { dims: dims.clone(), values })
    }

    /// Elements along the first axis by index.
    pub fn gather(&self, indices: &Self) -> Option<Self> {
        let rows = *self.dims.first()?;
        let width: usize = self.dims[1..].iter().product();
        let mut values = Vec::new();
        for &index in &indices.values {
            let index = if index < 0 { index.checked_add(rows as i64)? } else { index };
            let index = usize::try_from(index).ok().filter(|i| *i < rows)?;
            values.extend_from_slice(self.values.get(index * width..(index + 1) * width)?);
            if values.len() > FOLDED_ELEMENTS {
                return None;
            }
        }
        Some(Self { dims: [&indices.dims[..], &self.dims[1..]].concat(), values })
    }

    /// A list of lists one after another.
    pub fn concat(parts: &[Self]) -> Option<Self> {
        let values: Vec<i64> = parts.iter().flat_map(|part| part.values.iter().copied()).collect();
        let lists = parts.iter().all(|part| part.dims.len() == 1);
        (lists && values.len() <= FOLDED_ELEMENTS).then(|| Self::list(values))
    }

    /// Elements of a list from `start` to `end` in steps.
    pub fn slice(&self, start: i64, end: i64, step: i64) -> Option<Self> {
        let count = self.values.len() as i64;
        if self.dims.len() != 1 || step == 0 {
            return None;
        }
        let (start, end) = bounds(start, end, step, count);
        let mut values = Vec::new();
        let mut at = start;
        while (step > 0 && at < end) || (step < 0 && at > end) {
            values.push(*self.values.get(usize::try_from(at).ok()?)?);
            at = at.checked_add(step)?;
        }
        Some(Self::list(values))
    }

    /// The numbers 0 and 1 where ONNX has bools.
    pub fn reshaped(&self, dims: Vec<usize>) -> Option<Self> {
        (dims.iter().product::<usize>() == self.values.len())
            .then(|| Self { dims, values: self.values.clone() })
    }
}

/// The start and end of a slice along an axis of this extent, as ONNX counts them.
pub(super) fn bounds(start: i64, end: i64, step: i64, extent: i64) -> (i64, i64) {
    let from_end = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
    match step > 0 {
        true => (from_end(start).clamp(0, extent), from_end(end).clamp(0, extent)),
        false => (from_end(start).clamp(0, extent - 1), from_end(end).clamp(-1, extent - 1)),
    }
}
