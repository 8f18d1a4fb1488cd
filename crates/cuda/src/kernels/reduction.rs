//! Reductions of the middle axis of `[outer, reduce, inner]`: chunks of rows side by side, then their results in order.

use super::builder::{CallBuilder, define};
use super::{Operand, Parameter};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;

const PARTIAL: &str = include_str!("reduce/partial.cu");
/// Combines chunks to blocks, and blocks to the result.
pub(super) const FOLD: &str = include_str!("reduce/fold.cu");

/// Sums over the batch, which may go on from an accumulator.
pub(super) const SUM: &str = include_str!("reduce/sum.cu");
/// Means.
pub(super) const MEAN: &str = include_str!("reduce/mean.cu");
/// Anything else.
pub(super) const WHOLE: &str = include_str!("reduce/whole.cu");

pub(super) const THREADS: usize = 256;
/// Chunks of a block at most, about: enough to keep a GPU busy, few enough that combining them is short.
const MOST_CHUNKS: usize = 512;
/// Elements that a thread loads at once at most: their sums are in shared memory at the end.
const MOST_AT_ONCE: usize = 8;
const WARP: usize = 32;
/// Results of a block of the kernel that combines chunks; its other threads share the chunks of a result.
pub(super) const FOLDED: usize = 32;

/// One or two reductions of the same elements.
pub(super) struct Reduction<'a> {
    /// `#define`s that the texts below need.
    pub macros: Vec<(&'a str, &'a str)>,
    /// The types of a result, computed and stored.
    pub wide: DType,
    pub stored: DType,
    /// What combines two numbers, and its neutral element.
    pub combine: &'a str,
    pub identity: &'a str,
    /// The element types of the operands that are reduced, the first one or two of them.
    pub elements: &'a [DType],
    /// Sets `t[k]`, an element's part in each result, from the elements `e0` and `e1`, the other operands `b` to `d`, and the element's
    /// `row`, `column` and outer index `at`.
    pub terms: &'a str,
    /// [`SUM`], [`MEAN`] or [`WHOLE`].
    pub finish: &'a str,
    pub size: [usize; 3],
    /// Rows of a block of a sum over the batch; all rows if it is not one.
    pub block_rows: usize,
    pub accumulate: bool,
    /// Up to four.
    pub operands: &'a [Parameter],
    /// One or two.
    pub results: &'a [Operand],
}

impl Reduction<'_> {
    pub fn launch(&self, builder: &mut CallBuilder) {
        let [outer, reduce, inner] = self.size;
        if outer * inner == 0 {
            return;
        }
        let block_rows = self.block_rows.clamp(1, reduce.max(1));
        let vector = self.vector();
        let columns = columns(inner / vector);
        // From the rows of a block as the graph has it, so that a batch with fewer has the bits of its part of a longer one.
        let lanes = self.block_rows.next_power_of_two().min(THREADS / columns);
        let groups = THREADS / columns / lanes;
        let chunk = (16 * lanes).max(64).max(self.block_rows.div_ceil(MOST_CHUNKS).next_multiple_of(lanes));
        let per_block = block_rows.div_ceil(chunk);
        let chunks = reduce.div_ceil(block_rows).max(1) * per_block;
        let partial = outer * chunks * inner * self.results.len() * self.wide.bytes();
        let partial = builder.scratch(if chunks > 1 { partial } else { 0 });
        let numbers = [columns, lanes, groups, chunk, vector].map(|number| number.to_string());
        let [load, elements] = self.loads();
        let count = self.results.len().to_string();
        let mut macros = self.macros.clone();
        macros.extend([
            ("W", self.wide.name()),
            ("Y", super::stored(self.stored)),
            ("K", &count),
            ("COLUMNS", &numbers[0]),
            ("LANES", &numbers[1]),
            ("GROUPS", &numbers[2]),
            ("CHUNK", &numbers[3]),
            ("V", &numbers[4]),
            ("LOAD", &load),
            ("ELEMENTS(v)", &elements),
            ("COMBINE", self.combine),
            ("IDENTITY", self.identity),
            ("ACCUMULATE", if self.accumulate { "true" } else { "false" }),
        ]);
        let missing = Parameter::from(self.results[0]);
        let operands = (0..4).map(|i| self.operands.get(i).copied().unwrap_or(missing));
        let results: Vec<Parameter> =
            (0..2).map(|k| self.results.get(k).map_or(missing, |&result| result.into())).collect();
        let sizes = [outer, reduce, inner].map(Parameter::from);
        let mut parameters: Vec<Parameter> = operands.chain(results.iter().copied()).collect();
        parameters.push(partial.into());
        parameters.extend(sizes);
        parameters.extend([block_rows, chunks].map(Parameter::from));
        let blocks = outer.div_ceil(groups) * chunks * inner.div_ceil(columns * vector);
        let source = define(&macros, &[self.finish, &self.terms_function(), PARTIAL].join("\n"));
        builder.kernel([blocks, 1, 1], THREADS as u32, source, parameters);
        if chunks > 1 {
            let mut parameters = results;
            parameters.push(partial.into());
            parameters.extend(sizes);
            parameters.extend([per_block, chunks].map(Parameter::from));
            let used = ["W", "Y", "K", "COMBINE", "IDENTITY", "ACCUMULATE"];
            macros.retain(|(name, _)| used.contains(name));
            let source = define(&macros, &[self.finish, FOLD].join("\n"));
            let blocks = (outer * inner).div_ceil(FOLDED);
            builder.kernel([blocks, 1, 1], THREADS as u32, source, parameters);
        }
    }

    /// Elements that a thread loads at once: up to 16 bytes, of which the inner axis has whole ones.
    fn vector(&self) -> usize {
        let largest = self.elements.iter().map(|dtype| dtype.bytes()).max().unwrap_or(16);
        1 << (self.size[2] | (16 / largest).min(MOST_AT_ONCE)).trailing_zeros()
    }

    /// What loads the elements, and the list of those of a column.
    fn loads(&self) -> [String; 2] {
        let each = self.elements.iter().map(|&dtype| super::stored(dtype)).zip(["a", "b"]).enumerate();
        let load = |(i, (ty, operand)): (usize, (&str, &str))| {
            format!("{ty} x{i}[V]; load_words<V>(x{i}, (const {ty} *){operand} + i)")
        };
        let elements = (0..self.elements.len()).map(|i| format!("widen(x{i}[v])"));
        [each.map(load).collect::<Vec<_>>().join("; "), elements.collect::<Vec<_>>().join(", ")]
    }

    fn terms_function(&self) -> String {
        let elements = self.elements.iter().enumerate();
        let elements: String =
            elements.map(|(i, &dtype)| format!("Wide<{}> e{i}, ", super::stored(dtype))).collect();
        format!(
            "__device__ inline void terms(W *t, {elements}const void *b, const void *c, const void *d, i64 row, i64 column, \
             i64 at) {{\n{}\n}}\n",
            self.terms
        )
    }
}

/// Threads that share a row of so many vectors: a whole number of times, or as few as there are.
fn columns(vectors: usize) -> usize {
    let whole = 1 << vectors.trailing_zeros().min(THREADS.ilog2());
    if whole >= WARP { whole } else { vectors.next_power_of_two().min(THREADS) }
}

/// Rows of a block of a sum over the batch, where an example (a row of the query's `fold_rows`) has so many rows `inside`;
/// a sum that is not over the batch is one block.
pub(super) fn block_rows(query: &KernelQuery<'_>, inside: usize, rows: usize) -> usize {
    // An example has no rows if one of its axes is empty.
    if query.fold_rows == 0 { rows.max(1) } else { (query.fold_rows * inside).max(1) }
}

/// Threads of a row, in blocks of 256: a function of its length alone.
pub(super) fn row_lanes(width: usize) -> usize {
    if width <= 1024 { 32 } else { THREADS }
}

/// A kernel with [`row_lanes`] threads for each row; its text knows them as LANES.
pub(super) fn each_row(
    builder: &mut CallBuilder,
    rows: usize,
    width: usize,
    macros: &[(&str, &str)],
    text: &str,
    parameters: Vec<Parameter>,
) {
    let lanes = row_lanes(width);
    let number = lanes.to_string();
    let source = define(&[macros, &[("LANES", &number)]].concat(), text);
    builder.kernel([rows.div_ceil(THREADS / lanes), 1, 1], THREADS as u32, source, parameters);
}
