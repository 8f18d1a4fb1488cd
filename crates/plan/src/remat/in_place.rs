//! In-place outputs: which output of a run is written over which of its dead inputs.

use super::table::Table;

/// Pairs each of some inputs of a call with an output of the same size, and returns the bytes of all pairs, which need
/// memory only once. An input gets the first such output that is `free` and not yet paired, if any is left.
pub(super) fn match_in_place(
    table: &Table,
    call: usize,
    inputs: impl IntoIterator<Item = u32>,
    free: impl Fn(u32) -> bool,
    pairs: &mut Vec<(u32, u32)>,
) -> u64 {
    pairs.clear();
    let bytes = |tensor: u32| table.bytes[tensor as usize];
    let mut matched_bytes = 0;
    for input in inputs {
        let size = bytes(input);
        let matched = pairs.iter().filter(|pair| bytes(pair.1) == size).count();
        let mut candidates = table.outputs.row(call).iter().filter(|&&o| bytes(o) == size && free(o));
        if let Some(&output) = candidates.nth(matched) {
            pairs.push((output, input));
            matched_bytes += size;
        }
    }
    matched_bytes
}
