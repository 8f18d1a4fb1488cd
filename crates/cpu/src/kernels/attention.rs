//! Attention in tiles: scores exist for a tile of queries by a tile of keys at a time. Rotary positions.
//!
//! Every (example, head) pair is computed by itself, gradients every (example, key head) pair, so their bits depend on
//! nothing else.

mod backward;
mod forward;
mod rotary;
#[cfg(test)]
mod tests;
mod tile;

pub use backward::{attention_grad, attention_grad_workspace};
pub use forward::{attention, attention_workspace};
pub use rotary::{RotarySpec, rotary, rotary_workspace};

use std::ops::Range;

/// The sizes of q, `[examples, queries, heads, width]`, and of k and v, `[examples, keys, key_heads, width]`, and the
/// mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSpec {
    /// Examples.
    pub examples: usize,
    /// Positions of q.
    pub queries: usize,
    /// Positions of k and v.
    pub keys: usize,
    /// Heads of q, a multiple of `key_heads`.
    pub heads: usize,
    /// Heads of k and v.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether a query attends only to keys up to its own position.
    pub causal: bool,
    /// Keys that a query of causal attention attends to at most: the last up to its own position.
    pub window: Option<usize>,
    /// The extents of a mask, `[examples or 1, heads or 1, queries or 1, keys]`: a query attends to keys whose byte is
    /// not zero. Without one, the kernels take an empty mask.
    pub mask: Option<[usize; 4]>,
}

impl AttentionSpec {
    /// Queries of all heads.
    pub fn rows(&self) -> usize {
        self.examples * self.queries * self.heads
    }

    /// Elements of q.
    pub fn query_elements(&self) -> usize {
        self.rows() * self.width
    }

    /// Elements of k, and of v.
    pub fn key_elements(&self) -> usize {
        self.examples * self.keys * self.key_heads * self.width
    }

    /// Elements of the mask.
    pub fn mask_elements(&self) -> usize {
        self.mask.map_or(0, |extents| extents.iter().product())
    }

    /// Pairs of query and key whose scores a head computes: causal attention skips tiles that are masked as a whole.
    pub(crate) fn scored_pairs(&self) -> f64 {
        let level = if self.causal { self.queries.min(self.keys) } else { 0 };
        let below = (level as f64) * (level + tile::TILE) as f64 / 2.0;
        let pairs = below + (self.queries - level) as f64 * self.keys as f64;
        let most = self.window.map_or(f64::INFINITY, |window| (window + tile::TILE) as f64);
        pairs.min(self.queries as f64 * most)
    }

    /// The first key that a query sees.
    fn first_key(&self, query: usize) -> usize {
        self.window.map_or(0, |window| (query + 1).saturating_sub(window))
    }

    /// The keys of a tile that a query sees, without a mask: from here to there in the tile.
    fn sight(&self, query: usize, keys: &Range<usize>) -> Range<usize> {
        let end = if self.causal { keys.end.min(query + 1) } else { keys.end };
        let start = self.first_key(query).clamp(keys.start, keys.end);
        start - keys.start..end.max(start) - keys.start
    }

    /// Whether some query of a tile may see some key of another.
    fn tiles_meet(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        (!self.causal || keys.start < queries.end) && self.first_key(queries.start) < keys.end
    }

    /// Heads that share a key head.
    fn group(&self) -> usize {
        self.heads.checked_div(self.key_heads).unwrap_or(0)
    }

    /// A head of q.
    fn query_head(&self, example: usize, head: usize) -> Head {
        Head::new(example * self.queries, [self.heads, head], self.width)
    }

    /// A head of a `[examples, queries, heads]` tensor.
    fn entries(&self, example: usize, head: usize) -> Head {
        Head::new(example * self.queries, [self.heads, head], 1)
    }

    /// A head of k and v.
    fn key_head(&self, example: usize, key_head: usize) -> Head {
        Head::new(example * self.keys, [self.key_heads, key_head], self.width)
    }

    /// A head's mask, if there is one.
    fn mask_of<'a>(&self, mask: &'a [u8], example: usize, head: usize) -> Option<Mask<'a>> {
        let [examples, heads, queries, keys] = self.mask?;
        let along = |extent: usize, index: usize| if extent == 1 { 0 } else { index };
        let start = (along(examples, example) * heads + along(heads, head)) * queries * keys;
        Some(Mask { bytes: &mask[start..], stride: along(queries, keys) })
    }

    /// The factor of the scores.
    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    fn check<T>(&self, queries: &[&[T]], keys: &[&[T]], rows: &[f32], mask: &[u8]) {
        let long = |operands: &[&[T]], elements: usize| operands.iter().all(|x| x.len() >= elements);
        let floats = long(queries, self.query_elements()) && long(keys, self.key_elements());
        let rest = rows.len() >= self.rows() && mask.len() >= self.mask_elements();
        assert!(floats && rest, "operands are too short");
    }
}

/// One head of one example: where its first position is, and how far from one to the next.
#[derive(Clone, Copy)]
struct Head {
    start: usize,
    stride: usize,
}

impl Head {
    fn new(position: usize, [heads, head]: [usize; 2], width: usize) -> Self {
        Self { start: (position * heads + head) * width, stride: heads * width }
    }

    fn at(&self, position: usize) -> usize {
        self.start + position * self.stride
    }
}

/// The mask of one head of one example: a row of keys for each query, or the same row for all.
#[derive(Clone, Copy)]
struct Mask<'a> {
    bytes: &'a [u8],
    stride: usize,
}
