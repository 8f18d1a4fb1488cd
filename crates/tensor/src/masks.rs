//! Masks of one bit per element: of pruned weights, whose other elements are zero.

/// Bytes of a mask of so many elements: element i is bit `i % 8`, from the lowest, of byte `i / 8`.
pub const fn mask_bytes(elements: usize) -> usize {
    elements.div_ceil(8)
}

/// Whether a mask keeps an element.
pub fn is_kept(mask: &[u8], element: usize) -> bool {
    mask[element / 8] >> (element % 8) & 1 == 1
}

/// The elements that a mask of `elements` bits keeps.
///
/// ```
/// assert_eq!(plimsoll_tensor::kept_elements(&[0b0101, 0xff], 10), 4);
/// ```
pub fn kept_elements(mask: &[u8], elements: usize) -> usize {
    let (whole, rest) = mask[..mask_bytes(elements)].split_at(elements / 8);
    let last = rest.first().map_or(0, |byte| (byte & ((1u16 << (elements % 8)) - 1) as u8).count_ones());
    whole.iter().map(|byte| byte.count_ones() as usize).sum::<usize>() + last as usize
}

/// How many of so many elements a sparsity keeps: at least one, rounded half to even in f32, as TensorFlow's toolkit does.
///
/// ```
/// use plimsoll_tensor::kept_at;
/// assert_eq!((kept_at(10, 0.75), kept_at(10, 0.25), kept_at(10, 1.0)), (2, 8, 1));
/// ```
pub fn kept_at(elements: usize, sparsity: f32) -> usize {
    let kept = (elements as f32 * (1.0 - sparsity)).round_ties_even();
    (kept.max(1.0) as usize).min(elements)
}
