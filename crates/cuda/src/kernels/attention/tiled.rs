//! Attention of 16-bit floats by tensor cores, without scores in memory: a block has some queries, and walks along the keys with its
//! softmax. Gradients are computed in two passes, one for blocks of queries and one for blocks of keys, so that no two blocks add to
//! one element.

use super::Shape;
use crate::kernels::builder::{CallBuilder, define, parameters};
use crate::kernels::{Call, Operand, Parameter};

/// How a kernel is cut: warps of a block, 16 rows that a warp computes at once, rows that it walks along at a time, and blocks that
/// a multiprocessor has room for by their registers.
struct Cut {
    warps: usize,
    tiles: usize,
    walk: usize,
    resident: usize,
}

const FORWARD: Cut = Cut { warps: 4, tiles: 1, walk: 64, resident: 3 };
const QUERIES: Cut = Cut { warps: 4, tiles: 2, walk: 32, resident: 2 };
const KEYS: Cut = Cut { warps: 4, tiles: 1, walk: 32, resident: 3 };
/// Where addresses of a mask take registers, too, or the compiler wants more of them.
const MASKED_QUERIES: Cut = Cut { tiles: 1, resident: 3, ..QUERIES };
const SPARING_KEYS: Cut = Cut { resident: 2, ..KEYS };
/// The widest heads whose sums a block's registers hold.
const MOST_WIDTH: usize = 64;
/// The most queries or keys, and elements of a position: places in a tile, and past the last block too, are 32-bit integers.
const MOST_POSITIONS: usize = 1 << 30;
const MOST_ELEMENTS: usize = 1 << 24;
/// Widths are a multiple of what one instruction multiplies.
const STEP: usize = 16;

const TENSOR: &str = include_str!("tensor.cu");

impl Shape {
    /// Whether these kernels compute it.
    pub(super) fn is_tiled(&self) -> bool {
        let some = self.examples * self.queries * self.keys * self.heads > 0;
        let positions =
            self.queries.max(self.keys) <= MOST_POSITIONS && self.heads * self.width <= MOST_ELEMENTS;
        let width = self.width.is_multiple_of(STEP) && self.width <= MOST_WIDTH;
        some && positions && width && self.dtype.is_low()
    }

    /// Whether single keys are hidden.
    fn hides(&self) -> bool {
        self.mask.is_some() || self.window.is_some()
    }

    /// The source of a kernel that is cut so.
    fn tiled_source(&self, text: &str, cut: &Cut) -> String {
        let product = format!("\"{}\"", self.dtype.name());
        let [width, warps, tiles, walk, resident] =
            [self.width, cut.warps, cut.tiles, cut.walk, cut.resident].map(|number| number.to_string());
        let (window, sees) = (
            self.window.unwrap_or(0).to_string(),
            self.sees("query", "allowed[(query) * mask_query + (key)]"),
        );
        let truth = |holds: bool| if holds { "true" } else { "false" };
        let macros = [
            ("T", self.dtype.name()),
            ("MMA", &*product),
            ("WIDTH", &*width),
            ("WARPS", &*warps),
            ("TILES", &*tiles),
            ("WALK", &*walk),
            ("RESIDENT", &*resident),
            ("CAUSAL", truth(self.causal)),
            ("WINDOW", &*window),
            ("MASKED", truth(self.hides())),
            ("SEES(query, key)", &*sees),
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
}

impl Cut {
    /// Rows of a block.
    fn rows(&self) -> usize {
        16 * self.tiles * self.warps
    }

    fn threads(&self) -> u32 {
        32 * self.warps as u32
    }
}

pub(super) fn forward(shape: &Shape) -> Call {
    let [q, k, v] = [0, 1, 2].map(Operand::Read);
    let parameters = parameters![q, k, v, Operand::Write(0), Operand::Write(1)];
    let mut b = CallBuilder::default();
    launch(
        &mut b,
        shape,
        include_str!("tiled_forward.cu"),
        &FORWARD,
        [shape.queries, shape.heads],
        parameters,
    );
    b.finish()
}

pub(super) fn grad(shape: &Shape) -> Call {
    let [q, k, v, y, lse, dy] = [0, 1, 2, 3, 4, 5].map(Operand::Read);
    let [dq, dk, dv] = [0, 1, 2].map(Operand::Write);
    let mut b = CallBuilder::default();
    let shared = b.scratch(shape.examples * shape.queries * shape.heads * size_of::<f32>());
    let parameters = parameters![q, k, v, y, lse, dy, shared, dq];
    let masked = shape.hides();
    let queries = if masked { MASKED_QUERIES } else { QUERIES };
    let keys = if masked || !shape.causal { SPARING_KEYS } else { KEYS };
    launch(
        &mut b,
        shape,
        include_str!("tiled_queries.cu"),
        &queries,
        [shape.queries, shape.heads],
        parameters,
    );
    let parameters = parameters![q, k, v, dy, lse, shared, dk, dv];
    launch(&mut b, shape, include_str!("tiled_keys.cu"), &keys, [shape.keys, shape.key_heads], parameters);
    b.finish()
}

/// A kernel over the rows of some heads of all examples.
fn launch(
    b: &mut CallBuilder,
    shape: &Shape,
    text: &str,
    cut: &Cut,
    [rows, heads]: [usize; 2],
    mut parameters: Vec<Parameter>,
) {
    parameters.extend(shape.tiled_parameters());
    let blocks = [shape.examples * heads * rows.div_ceil(cut.rows()), 1, 1];
    b.kernel(blocks, cut.threads(), shape.tiled_source(text, cut), parameters);
}
