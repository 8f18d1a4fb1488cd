//! Attention in tiles: scores exist for a tile of queries by a tile of keys at a time.
//!
//! Every pair of example and head is computed by itself, so bits depend on nothing else.

mod backward;
mod forward;
#[cfg(test)]
mod tests;
mod tile;

pub use backward::{attention_grad, attention_grad_workspace};
pub use forward::{attention, attention_workspace};

/// The sizes of q, k and v, `[examples, positions, heads, width]`, and who sees whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSpec {
    /// Examples.
    pub examples: usize,
    /// Positions.
    pub positions: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether a query sees keys up to its own position only.
    pub causal: bool,
}

impl AttentionSpec {
    fn elements(&self) -> usize {
        self.examples * self.positions * self.heads * self.width
    }

    /// Distance between the positions of a head.
    fn stride(&self) -> usize {
        self.heads * self.width
    }

    /// Where a position of an example and head starts.
    fn offset(&self, pair: usize, position: usize) -> usize {
        let (example, head) = (pair / self.heads, pair % self.heads);
        ((example * self.positions + position) * self.heads + head) * self.width
    }

    /// Where a position's entry in a `[examples, positions, heads]` tensor is.
    fn entry(&self, pair: usize, position: usize) -> usize {
        let (example, head) = (pair / self.heads, pair % self.heads);
        (example * self.positions + position) * self.heads + head
    }

    /// What scores are multiplied by.
    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }
}
