//! Attention of 16-bit floats by tensor cores, without scores in memory: a block has 64 queries, and walks along the keys with its
//! softmax. Gradients are computed in two passes, one for blocks of queries and one for blocks of keys, so that no two blocks add to
//! one element.

use super::Shape;
use crate::kernels::builder::{CallBuilder, define, parameters};
use crate::kernels::{Call, Operand, Parameter};

/// Queries, or keys, of a block.
const ROWS: usize = 64;
const THREADS: u32 = 128;
/// Rows that a block of queries walks along at a time: as many as registers hold the scores of.
const WALK: usize = 64;
/// The same of queries' gradients, which have twice as many scores.
const QUERY_GRAD_WALK: usize = 32;
/// The same of keys' gradients, which have twice as many sums, too.
const KEY_GRAD_WALK: usize = 16;
/// The widest heads whose sums a block's registers hold.
const MOST_WIDTH: usize = 64;
/// The most queries or keys: their indices, past the last block too, are 32-bit integers.
const MOST_POSITIONS: usize = 1 << 30;
/// Widths are a multiple of what one instruction multiplies.
const STEP: usize = 16;

const TENSOR: &str = include_str!("tensor.cu");

impl Shape {
    /// Whether these kernels compute it.
    pub(super) fn is_tiled(&self) -> bool {
        let some = self.examples * self.queries * self.keys * self.heads > 0;
        let positions = self.queries.max(self.keys) <= MOST_POSITIONS;
        let width = self.width.is_multiple_of(STEP) && self.width <= MOST_WIDTH;
        some && positions && width && self.dtype.is_low()
    }

    /// The source of a kernel that walks along so many rows at a time.
    fn tiled_source(&self, text: &str, walk: usize) -> String {
        let (width, walk, product) =
            (self.width.to_string(), walk.to_string(), format!("\"{}\"", self.dtype.name()));
        let mask = ["true", "(allowed[(query) * mask_query + (key)] != 0)"];
        let truth = |holds: bool| if holds { "true" } else { "false" };
        let macros = [
            ("T", self.dtype.name()),
            ("MMA", &*product),
            ("WIDTH", &*width),
            ("WALK", &*walk),
            ("CAUSAL", truth(self.causal)),
            ("MASKED", truth(self.mask.is_some())),
            ("SEES(query, key)", mask[usize::from(self.mask.is_some())]),
        ];
        define(&macros, &[TENSOR, text].concat())
    }

    /// The sizes, in the kernels' order.
    fn tiled_parameters(&self) -> Vec<Parameter> {
        let mut all =
            parameters![self.mask(), self.scale(), self.queries, self.keys, self.heads, self.key_heads];
        all.extend(self.mask.map_or([0; 3], |(_, strides)| strides).map(Parameter::from));
        all
    }

    /// Blocks of queries of all heads.
    fn query_blocks(&self) -> [usize; 3] {
        [self.examples * self.heads * self.queries.div_ceil(ROWS), 1, 1]
    }
}

pub(super) fn forward(shape: &Shape) -> Call {
    let [q, k, v] = [0, 1, 2].map(Operand::Read);
    let mut all = parameters![q, k, v, Operand::Write(0), Operand::Write(1)];
    all.extend(shape.tiled_parameters());
    let source = shape.tiled_source(include_str!("tiled_forward.cu"), WALK);
    let mut b = CallBuilder::default();
    b.kernel(shape.query_blocks(), THREADS, source, all);
    b.finish()
}

pub(super) fn grad(shape: &Shape) -> Call {
    let [q, k, v, y, lse, dy] = [0, 1, 2, 3, 4, 5].map(Operand::Read);
    let [dq, dk, dv] = [0, 1, 2].map(Operand::Write);
    let rows = shape.examples * shape.queries * shape.heads;
    let mut b = CallBuilder::default();
    let shared = b.scratch(rows * size_of::<f32>());
    let (dtype, width) = (shape.dtype.name(), shape.width.to_string());
    let source = define(&[("T", dtype), ("WIDTH", &*width)], include_str!("tiled_shared.cu"));
    b.each(rows, source, parameters![y, dy, shared, rows]);
    let mut all = parameters![q, k, v, dy, lse, shared, dq];
    all.extend(shape.tiled_parameters());
    let source = shape.tiled_source(include_str!("tiled_queries.cu"), QUERY_GRAD_WALK);
    b.kernel(shape.query_blocks(), THREADS, source, all);
    let mut all = parameters![q, k, v, dy, lse, shared, dk, dv];
    all.extend(shape.tiled_parameters());
    let blocks = [shape.examples * shape.key_heads * shape.keys.div_ceil(ROWS), 1, 1];
    b.kernel(blocks, THREADS, shape.tiled_source(include_str!("tiled_keys.cu"), KEY_GRAD_WALK), all);
    b.finish()
}
