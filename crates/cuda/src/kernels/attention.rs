//! Attention: products over the heads, with the scores of some heads of some examples in scratch memory at a time; of 16-bit floats
//! and usual widths by kernels that keep scores in registers.
//!
//! Queries are cut into tiles, whose length is a function of an example's sizes. So how many heads and examples are computed at once
//! changes no bit.

mod products;
mod rotary;
mod tiled;

use super::builder::{CallBuilder, define, parameters};
use super::{Call, Operand, Parameter, Pointer, Product};
use plimsoll_graph::op::Attention;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;
use products::{Batch, Part};

/// Bytes of scores that are computed at once at most, where a query of a key head's heads does not take more.
const SCORE_BYTES: usize = 64 << 20;
/// Queries of a tile of causal attention: keys that none of its queries sees are left out.
const CAUSAL_TILE: usize = 512;
/// Elements that a row of scores starts at a multiple of, so that products read them in vectors.
const ROW_ALIGNMENT: usize = 8;

/// The sizes of q `[examples, queries, heads, width]` and of k and v `[examples, keys, key_heads, width]`.
#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    examples: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    key_heads: usize,
    width: usize,
    causal: bool,
    /// Keys that a query of causal attention sees at most.
    window: Option<usize>,
    /// The input that is the mask, and elements from example to example, head to head and query to query.
    mask: Option<(usize, [usize; 3])>,
}

/// A tile of queries.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    rows: usize,
    /// Keys that some query of it may see.
    keys: usize,
}

pub(super) fn find(op: &Attention, query: &KernelQuery<'_>) -> Option<Call> {
    let dtype = query.inputs[0].dtype;
    if !dtype.is_low() && dtype != DType::F32 {
        return None;
    }
    Some(match *op {
        Attention::Forward { causal, window, masked } => {
            let shape = Shape::new(query, causal, window, masked)?;
            if shape.is_tiled() { tiled::forward(&shape) } else { forward(&shape) }
        }
        Attention::Grad { causal, window, masked } => {
            let shape = Shape::new(query, causal, window, masked)?;
            if shape.is_tiled() { tiled::grad(&shape) } else { grad(&shape) }
        }
        Attention::Rotary { base, inverse, start } => rotary::call(query.inputs[0], base, inverse, start),
    })
}

impl Shape {
    /// None if heads have no width: scores are quotients of zeros.
    fn new(query: &KernelQuery<'_>, causal: bool, window: Option<usize>, masked: bool) -> Option<Self> {
        let (q, k) = (&query.inputs[0].shape, &query.inputs[1].shape);
        let mask = query.inputs.last().filter(|_| masked).map(|mask| {
            let extents = &mask.shape;
            let along = |axis: usize| {
                let stride = extents[axis + 1..].iter().product();
                if extents[axis] == 1 { 0 } else { stride }
            };
            (query.inputs.len() - 1, [along(0), along(1), along(2)])
        });
        let shape = Self {
            dtype: query.inputs[0].dtype,
            examples: q[0],
            queries: q[1],
            keys: k[1],
            heads: q[2],
            key_heads: k[2],
            width: q[3],
            causal,
            // A wider one hides nothing, and its number is a 32-bit integer of a kernel.
            window: window.filter(|&window| window < q[1]),
            mask,
        };
        (shape.width > 0).then_some(shape)
    }

    /// Heads that share a key head.
    fn group(&self) -> usize {
        self.heads.checked_div(self.key_heads).unwrap_or(0)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// Elements from one query's scores to the next's.
    fn score_stride(&self) -> usize {
        self.keys.next_multiple_of(ROW_ALIGNMENT)
    }

    /// The tiles of queries, where a score takes so many bytes.
    fn tiles(&self, score_bytes: usize) -> Vec<Tile> {
        let fit = SCORE_BYTES / (self.group() * self.score_stride() * score_bytes).max(1);
        let rows = fit.min(if self.causal { CAUSAL_TILE } else { usize::MAX }).clamp(1, self.queries.max(1));
        let tile = |first: usize| {
            let end = (first + rows).min(self.queries);
            Tile { first, rows: end - first, keys: if self.causal { end.min(self.keys) } else { self.keys } }
        };
        (0..self.queries).step_by(rows).map(tile).collect()
    }

    /// Parts of the examples and key heads that are computed at once with these tiles.
    fn parts(&self, tiles: &[Tile], score_bytes: usize) -> Vec<Part> {
        let rows = longest(tiles);
        let fit = SCORE_BYTES / (self.group() * rows * self.score_stride() * score_bytes).max(1);
        let (examples, heads) = if fit < self.key_heads {
            (1, self.key_heads.div_ceil(self.key_heads.div_ceil(fit.max(1))))
        } else {
            (fit / self.key_heads.max(1), self.key_heads)
        };
        let mut all = Vec::new();
        for example in (0..self.examples).step_by(examples.max(1)) {
            for key_head in (0..self.key_heads).step_by(heads.max(1)) {
                all.push(Part {
                    example,
                    examples: examples.min(self.examples - example),
                    key_head,
                    key_heads: heads.min(self.key_heads - key_head),
                });
            }
        }
        all
    }

    /// Bytes of the scores of a part, where one takes so many.
    fn score_bytes(&self, part: &Part, tiles: &[Tile], bytes: usize) -> usize {
        let rows = longest(tiles);
        part.examples * part.key_heads * self.group() * rows * self.score_stride() * bytes
    }

    /// The source of a kernel over the scores' rows.
    fn rows_source(&self, text: &str) -> String {
        let sees = self.sees("query", "allowed[key]");
        let causal = if self.causal { "true" } else { "false" };
        define(&[("T", self.dtype.name()), ("CAUSAL", causal), ("SEES(key)", &sees)], text)
    }

    /// What the kernels ask of a query and a key besides causality.
    fn sees(&self, query: &str, allowed: &str) -> String {
        let window = self.window.map(|window| format!("(key) + {window} > ({query})"));
        let mask = self.mask.map(|_| format!("{allowed} != 0"));
        let both: Vec<String> = window.into_iter().chain(mask).collect();
        if both.is_empty() { "true".into() } else { format!("({})", both.join(" && ")) }
    }

    /// The mask, or any address where there is none.
    fn mask(&self) -> Operand {
        Operand::Read(self.mask.map_or(0, |(input, _)| input))
    }

    /// What a kernel over the scores' rows is told of them.
    fn row_parameters(&self, part: &Part, tile: &Tile) -> Vec<Parameter> {
        let heads = part.key_heads * self.group();
        let mut all = parameters![
            self.scale(),
            tile.rows,
            tile.keys,
            self.score_stride(),
            tile.first,
            self.queries,
            heads,
            part.key_head * self.group(),
            self.heads,
            part.example,
        ];
        all.extend(self.mask.map_or([0; 3], |(_, strides)| strides).map(Parameter::from));
        all
    }

    /// Rows of the scores of a part.
    fn rows(&self, part: &Part, tile: &Tile) -> usize {
        part.examples * part.key_heads * self.group() * tile.rows
    }
}

/// Rows of the longest tile.
fn longest(tiles: &[Tile]) -> usize {
    tiles.iter().map(|tile| tile.rows).max().unwrap_or(0)
}

/// Threads that work on a row of so many keys.
fn row_threads(keys: usize) -> u32 {
    keys.next_power_of_two().clamp(32, 256) as u32
}

fn forward(shape: &Shape) -> Call {
    let Shape { dtype, width, .. } = *shape;
    let mut b = CallBuilder::default();
    // Weights take the place of the scores where they are of one type.
    let bytes = if dtype.is_low() { size_of::<f32>() + dtype.bytes() } else { size_of::<f32>() };
    let tiles = shape.tiles(bytes);
    let source = shape.rows_source(include_str!("attention/softmax.cu"));
    if shape.keys == 0 {
        b.zero(Operand::Write(0), shape.examples * shape.queries * shape.heads * width, dtype);
    }
    for part in &shape.parts(&tiles, bytes) {
        b.reuse_scratch();
        let scores = b.scratch(shape.score_bytes(part, &tiles, size_of::<f32>()));
        let weights = weights(&mut b, shape, part, &tiles, scores);
        for tile in &tiles {
            for batch in part.batches(shape) {
                b.product(scored(shape, &batch, tile, [Operand::Read(0), Operand::Read(1)], scores));
            }
            let mut all = parameters![scores, weights, Operand::Write(1), shape.mask()];
            all.extend(shape.row_parameters(part, tile));
            b.kernel([shape.rows(part, tile), 1, 1], row_threads(tile.keys), source.clone(), all);
            for batch in part.batches(shape).filter(|_| tile.keys > 0) {
                b.product(Product {
                    m: tile.rows,
                    n: width,
                    k: tile.keys,
                    a: batch.scores(shape, tile, weights, dtype),
                    b: batch.keys(shape, Operand::Read(2)),
                    c: batch.queries(shape, tile, Operand::Write(0)),
                    accumulate: false,
                    count: batch.count,
                    bias: None,
                    tf32: false,
                });
            }
        }
    }
    b.finish()
}

/// Where weights go whose scores are here.
fn weights(b: &mut CallBuilder, shape: &Shape, part: &Part, tiles: &[Tile], scores: Pointer) -> Pointer {
    let apart = shape.score_bytes(part, tiles, shape.dtype.bytes());
    if shape.dtype.is_low() { b.scratch(apart) } else { scores }
}

/// The product of queries and keys, or of what has their shapes.
fn scored(
    shape: &Shape,
    batch: &Batch<'_>,
    tile: &Tile,
    [queries, keys]: [Operand; 2],
    scores: Pointer,
) -> Product {
    Product {
        m: tile.rows,
        n: tile.keys,
        k: shape.width,
        a: batch.queries(shape, tile, queries),
        b: batch.keys(shape, keys).transposed(),
        c: batch.scores(shape, tile, scores, DType::F32),
        accumulate: false,
        count: batch.count,
        bias: None,
        tf32: false,
    }
}

fn grad(shape: &Shape) -> Call {
    let Shape { dtype, width, .. } = *shape;
    let mut b = CallBuilder::default();
    let bytes = 2 * if dtype.is_low() { size_of::<f32>() + dtype.bytes() } else { size_of::<f32>() };
    let mut tiles = shape.tiles(bytes);
    // The last tile is the first, and reaches over all keys, so that it sets every element that the others add to.
    tiles.reverse();
    if let Some(first) = tiles.first_mut() {
        first.keys = shape.keys;
    }
    let [query_elements, key_elements] =
        [shape.queries * shape.heads, shape.keys * shape.key_heads].map(|e| shape.examples * e * width);
    if shape.keys == 0 {
        b.zero(Operand::Write(0), query_elements, dtype);
    }
    if shape.queries * shape.heads == 0 {
        b.zero(Operand::Write(1), key_elements, dtype);
        b.zero(Operand::Write(2), key_elements, dtype);
    }
    if query_elements * key_elements == 0 {
        return b.finish();
    }
    // Sums of several products are rounded once.
    let sums_apart = dtype.is_low() && (tiles.len() > 1 || shape.group() > 1);
    for part in &shape.parts(&tiles, bytes) {
        b.reuse_scratch();
        grad_part(&mut b, shape, part, &tiles, sums_apart);
    }
    b.finish()
}

/// The gradients of some key heads of some examples.
fn grad_part(b: &mut CallBuilder, shape: &Shape, part: &Part, tiles: &[Tile], sums_apart: bool) {
    let Shape { dtype, width, .. } = *shape;
    let [q, k, v, y, lse, dy] = [0, 1, 2, 3, 4, 5].map(Operand::Read);
    let [scores, dweights] = [(); 2].map(|()| b.scratch(shape.score_bytes(part, tiles, size_of::<f32>())));
    let [weights, dscores] = [scores, dweights].map(|at| weights(b, shape, part, tiles, at));
    let key_elements = part.examples * shape.keys * part.key_heads * width;
    let sums = [(); 2].map(|()| b.scratch(if sums_apart { key_elements * size_of::<f32>() } else { 0 }));
    for (i, tile) in tiles.iter().enumerate() {
        for batch in part.batches(shape) {
            b.product(scored(shape, &batch, tile, [q, k], scores));
            b.product(scored(shape, &batch, tile, [dy, v], dweights));
        }
        let mut all = parameters![scores, dweights, weights, dscores, y, dy, lse, shape.mask()];
        all.extend(shape.row_parameters(part, tile));
        all.push(width.into());
        let source = shape.rows_source(include_str!("attention/softmax_grad.cu"));
        b.kernel([shape.rows(part, tile), 1, 1], row_threads(tile.keys), source, all);
        for batch in part.batches(shape) {
            b.product(Product {
                m: tile.rows,
                n: width,
                k: tile.keys,
                a: batch.scores(shape, tile, dscores, dtype),
                b: batch.keys(shape, k),
                c: batch.queries(shape, tile, Operand::Write(0)),
                accumulate: false,
                count: batch.count,
                bias: None,
                tf32: false,
            });
            for (of, with, output, sums) in [(dscores, q, 1, sums[0]), (weights, dy, 2, sums[1])] {
                let result = Operand::Write(output);
                b.product(Product {
                    m: tile.keys,
                    n: width,
                    k: tile.rows,
                    a: batch.scores(shape, tile, of, dtype).transposed(),
                    b: batch.queries(shape, tile, with),
                    c: if sums_apart { batch.key_sums(shape, sums) } else { batch.keys(shape, result) },
                    accumulate: i > 0 || batch.member > 0,
                    count: batch.count,
                    bias: None,
                    tf32: false,
                });
            }
        }
    }
    for (output, sums) in [(1, sums[0]), (2, sums[1])].into_iter().filter(|_| sums_apart) {
        let source = define(&[("T", dtype.name())], include_str!("attention/round.cu"));
        let start = (part.example * shape.keys * shape.key_heads + part.key_head) * width * dtype.bytes();
        let result = Operand::Write(output).at(start);
        let all = parameters![sums, result, key_elements, part.key_heads, width, shape.key_heads];
        b.each(key_elements, source, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(examples: usize, queries: usize, keys: usize, heads: usize, key_heads: usize) -> Shape {
        let (dtype, width, causal, window, mask) = (DType::F32, 8, true, None, None);
        Shape { dtype, examples, queries, keys, heads, key_heads, width, causal, window, mask }
    }

    #[test]
    fn parts_have_every_head_of_every_example_once_and_fit() {
        for shape in [
            shape(3, 1024, 1024, 12, 12),
            shape(5, 2000, 60_000, 12, 4),
            shape(300, 40, 40, 6, 2),
            shape(2, 1, 40_000_000, 3, 3),
        ] {
            let tiles = shape.tiles(4);
            assert_eq!(tiles.iter().map(|tile| tile.rows).sum::<usize>(), shape.queries);
            let mut times = vec![0; shape.examples * shape.key_heads];
            for part in shape.parts(&tiles, 4) {
                let least = part.examples * part.key_heads == 1 && longest(&tiles) == 1;
                assert!(shape.score_bytes(&part, &tiles, 4) <= SCORE_BYTES || least);
                for example in part.example..part.example + part.examples {
                    for head in part.key_head..part.key_head + part.key_heads {
                        times[example * shape.key_heads + head] += 1;
                    }
                }
            }
            assert!(times.iter().all(|&times| times == 1), "{times:?}");
        }
    }

    /// Otherwise a batch that is split would have other bits.
    #[test]
    fn tiles_do_not_depend_on_the_examples() {
        let [one, many] = [1, 64].map(|examples| shape(examples, 2000, 60_000, 12, 4).tiles(8));
        assert!(one.iter().zip(&many).all(|(a, b)| (a.first, a.rows, a.keys) == (b.first, b.rows, b.keys)));
        assert_eq!(one.len(), many.len());
    }
}
