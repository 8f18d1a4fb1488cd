//! The order in which elements are visited, and where each input's elements are in that order.

use plimsoll_tensor::Shape;

/// Rows shorter than this are processed several at a time; longer ones in parts.
const SHORT_ROW: usize = 512;

/// The iteration space: axes merged as far as all inputs allow, the last one being the row.
#[derive(Debug)]
pub(super) struct Layout {
    elements: usize,
    /// Extents of the axes before the row.
    outer: Vec<usize>,
    /// Elements of a row.
    pub row: usize,
    pub inputs: Vec<Access>,
    walk: Walk,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Walk {
    /// A chunk is part of a row (of all elements, if there is one row), of at most `len` elements: a row has `count`.
    Pieces { len: usize, count: usize },
    /// A chunk is so many whole rows.
    Rows(usize),
}

/// How the iteration space maps to an input.
#[derive(Debug)]
pub(super) struct Access {
    pub kind: Kind,
    /// Element strides along the outer axes.
    outer: Vec<usize>,
    /// Element stride along the row: zero or one, because operands are dense.
    pub along_row: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// One element.
    Scalar,
    /// As many elements as the iteration space has, in its order.
    Dense,
    /// The same row for every row.
    Tiled,
    /// Anything else: rows at other offsets, or one element for each row.
    Strided,
}

/// A range of the iteration space.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// Index of the first element, and how many there are.
    pub start: usize,
    pub len: usize,
    /// The row of the first element, and its place in it.
    pub row: usize,
    pub column: usize,
}

impl Layout {
    pub(super) fn new(shape: &Shape, inputs: &[&Shape]) -> Self {
        let strides: Vec<Vec<usize>> = inputs.iter().map(|input| input.strides_in(shape)).collect();
        // Axes of the iteration space: extent, and the stride of every input.
        let mut axes: Vec<(usize, Vec<usize>)> = Vec::new();
        for (axis, &extent) in shape.iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let here: Vec<usize> = strides.iter().map(|s| s[axis]).collect();
            match axes.last_mut() {
                Some((before, above)) if above.iter().zip(&here).all(|(a, h)| *a == h * extent) => {
                    *before *= extent;
                    *above = here;
                }
                _ => axes.push((extent, here)),
            }
        }
        let (row, along_row) = axes.pop().unwrap_or_else(|| (1, vec![0; inputs.len()]));
        let outer: Vec<usize> = axes.iter().map(|(extent, _)| *extent).collect();
        let elements = shape.elements();
        let access = |k: usize, input: &&Shape| {
            let strides: Vec<usize> = axes.iter().map(|(_, strides)| strides[k]).collect();
            let kind = match (input.elements(), strides.iter().all(|s| *s == 0)) {
                (1, _) => Kind::Scalar,
                (n, _) if n == elements => Kind::Dense,
                (_, true) => Kind::Tiled,
                _ => Kind::Strided,
            };
            Access { kind, outer: strides, along_row: along_row[k] }
        };
        let inputs = inputs.iter().enumerate().map(|(k, input)| access(k, input)).collect();
        Self { elements, outer, row, inputs, walk: Walk::Pieces { len: row, count: 1 } }
    }

    /// Fixes the length of chunks: about `wanted` elements.
    pub(super) fn cut(&mut self, wanted: usize) {
        self.walk = if self.has_long_rows() {
            let pieces = self.row.div_ceil(wanted).max(1);
            // Even parts, in whole vectors.
            let len = self.row.div_ceil(pieces).next_multiple_of(64).max(64);
            Walk::Pieces { len, count: self.row.div_ceil(len) }
        } else {
            Walk::Rows((wanted / self.row.max(1)).max(1))
        };
    }

    /// Whether a chunk is inside one row: an input with one element for each row is then a scalar.
    pub(super) fn has_long_rows(&self) -> bool {
        self.outer.is_empty() || self.row >= SHORT_ROW
    }

    fn rows(&self) -> usize {
        self.outer.iter().product()
    }

    pub(super) fn chunks(&self) -> usize {
        match self.walk {
            _ if self.elements == 0 => 0,
            Walk::Pieces { count, .. } => self.rows() * count,
            Walk::Rows(rows) => self.rows().div_ceil(rows),
        }
    }

    /// Elements of the longest chunk.
    pub(super) fn chunk_elements(&self) -> usize {
        match self.walk {
            Walk::Pieces { len, .. } => len,
            Walk::Rows(rows) => rows * self.row,
        }
    }

    #[inline(always)]
    pub(super) fn chunk(&self, chunk: usize) -> Chunk {
        match self.walk {
            Walk::Pieces { len, count } => {
                // Most often there is one row: a division takes longer than a chunk of few elements.
                let (row, piece) = if chunk < count { (0, chunk) } else { (chunk / count, chunk % count) };
                let column = piece * len;
                Chunk { start: row * self.row + column, len: len.min(self.row - column), row, column }
            }
            Walk::Rows(rows) => {
                let row = chunk * rows;
                let rows = rows.min(self.rows() - row);
                Chunk { start: row * self.row, len: rows * self.row, row, column: 0 }
            }
        }
    }

    /// Where in an input's memory a row starts, in elements.
    #[inline(always)]
    pub(super) fn row_offset(&self, input: usize, mut row: usize) -> usize {
        let strides = &self.inputs[input].outer;
        if let [stride] = strides[..] {
            return row * stride;
        }
        let mut offset = 0;
        for (extent, stride) in self.outer.iter().zip(strides).rev() {
            offset += row % extent * stride;
            row /= extent;
        }
        offset
    }

    /// Where in an input's memory a chunk starts, in elements.
    #[inline(always)]
    pub(super) fn offset(&self, input: usize, chunk: &Chunk) -> usize {
        let access = &self.inputs[input];
        match access.kind {
            Kind::Scalar => 0,
            Kind::Dense => chunk.start,
            Kind::Tiled => chunk.column * access.along_row,
            Kind::Strided => self.row_offset(input, chunk.row) + chunk.column * access.along_row,
        }
    }
}
