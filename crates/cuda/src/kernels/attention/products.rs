//! Which products attention consists of: heads and examples lie side by side in memory, so several are one strided batch.

use super::{Shape, Tile};
use crate::kernels::{Matrix, Operand, Pointer};
use plimsoll_tensor::DType;

/// Examples and key heads that are computed at once.
pub(super) struct Part {
    pub example: usize,
    pub examples: usize,
    pub key_head: usize,
    pub key_heads: usize,
}

/// Products of one strided batch: over the key heads of an example, or over the examples of a key head. Of the heads that share a
/// key head it is one.
pub(super) struct Batch<'a> {
    part: &'a Part,
    /// Counted from the part's first.
    example: usize,
    /// Counted from the part's first.
    key_head: usize,
    pub member: usize,
    pub count: usize,
    over_examples: bool,
}

impl Part {
    /// The batches of products, as few as there can be.
    pub fn batches(&self, shape: &Shape) -> impl Iterator<Item = Batch<'_>> + use<'_> {
        let over_examples = self.examples > self.key_heads;
        let (outer, count) =
            if over_examples { (self.key_heads, self.examples) } else { (self.examples, self.key_heads) };
        let group = shape.group();
        (0..outer).flat_map(move |i| {
            (0..group).map(move |member| Batch {
                part: self,
                example: if over_examples { 0 } else { i },
                key_head: if over_examples { i } else { 0 },
                member,
                count,
                over_examples,
            })
        })
    }
}

impl Batch<'_> {
    fn stride(&self, of_key_heads: usize, of_examples: usize) -> usize {
        if self.over_examples { of_examples } else { of_key_heads }
    }

    /// A tile of q, or of a tensor of its shape.
    pub fn queries(&self, shape: &Shape, tile: &Tile, operand: Operand) -> Matrix {
        let Shape { dtype, queries, heads, width, .. } = *shape;
        let position = (self.part.example + self.example) * queries + tile.first;
        let head = (self.part.key_head + self.key_head) * shape.group() + self.member;
        Matrix {
            start: operand.at((position * heads + head) * width * dtype.bytes()),
            dtype,
            transposed: false,
            row_stride: heads * width,
            stride: self.stride(shape.group() * width, queries * heads * width),
        }
    }

    /// All keys, or what has their shape.
    pub fn keys(&self, shape: &Shape, operand: Operand) -> Matrix {
        let Shape { dtype, keys, key_heads, width, .. } = *shape;
        let position = (self.part.example + self.example) * keys;
        let head = self.part.key_head + self.key_head;
        Matrix {
            start: operand.at((position * key_heads + head) * width * dtype.bytes()),
            dtype,
            transposed: false,
            row_stride: key_heads * width,
            stride: self.stride(width, keys * key_heads * width),
        }
    }

    /// Sums of the keys' shape, `[examples, keys, key heads, width]` of the part.
    pub fn key_sums(&self, shape: &Shape, sums: Pointer) -> Matrix {
        let row_stride = self.part.key_heads * shape.width;
        let start = self.example * shape.keys * row_stride + self.key_head * shape.width;
        Matrix {
            start: sums.after(start * size_of::<f32>()),
            dtype: DType::F32,
            transposed: false,
            row_stride,
            stride: self.stride(shape.width, shape.keys * row_stride),
        }
    }

    /// Scores of a tile, or what has their shape: `[examples, heads, queries, keys]` of part and tile.
    pub fn scores(&self, shape: &Shape, tile: &Tile, scores: Pointer, dtype: DType) -> Matrix {
        let (row_stride, group) = (shape.score_stride(), shape.group());
        let (matrix, heads) = (tile.rows * row_stride, self.part.key_heads * group);
        let start = (self.example * heads + self.key_head * group + self.member) * matrix;
        Matrix {
            start: scores.after(start * dtype.bytes()),
            dtype,
            transposed: false,
            row_stride,
            stride: self.stride(group * matrix, heads * matrix),
        }
    }
}
