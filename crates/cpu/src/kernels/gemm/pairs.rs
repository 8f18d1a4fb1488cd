//! Packing for products of bf16 that are not widened: two neighbouring k in the place of one f32.

use super::avx512;
use super::pack::Strip;
use crate::kernels::float::Float;
use plimsoll_tensor::{DType, bf16};
use std::arch::x86_64::*;

/// How many k take the place of an f32.
pub(crate) const PER_SLOT: usize = 2;

/// Lanes and pairs of a tile register; rows and columns of one of sums.
pub(crate) const TILE: usize = 16;

/// How many k ahead are fetched.
const AHEAD: usize = 16;

/// Lanes that are filled together.
const WIDEST: usize = 2 * TILE;

/// Where the pair of a lane lies in a packed strip.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `pair * width + lane`.
    Panel,
    /// Tiles of 16 lanes by 16 pairs, lane by lane; those of 16 lanes follow each other, for so many pairs in all.
    Tiles { pairs: usize },
}

/// Fills `pairs` pairs of `width` lanes with the first `k` elements of a strip, rounded to bf16, and zeros.
///
/// # Safety
///
/// The strip must be good for reads, `dst` for writes of all pairs in their layout, `strip.lanes <= width`, `k <= 2 * pairs`,
/// and the machine must have AVX-512; for tiles, width and pairs must be multiples of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn pack_pairs<T: Float>(
    strip: Strip<T>,
    (dst, width): (*mut f32, usize),
    k: usize,
    pairs: usize,
    layout: Layout,
) {
    // Where k are adjacent, a tile is filled lane by lane; otherwise, two tiles are filled pair by pair, because the lanes of
    // both share a cache line.
    let by_k = strip.k_step == 1;
    let wide = if by_k { TILE } else { WIDEST };
    let mut turned = [0.0f32; WIDEST * TILE];
    for lane in (0..width).step_by(wide) {
        for pair in (0..pairs).step_by(TILE) {
            let lanes = strip.lanes.saturating_sub(lane).min(wide);
            let k = k.saturating_sub(2 * pair).min(2 * TILE);
            let (wide, deep) = ((width - lane).min(wide), (pairs - pair).min(TILE));
            // SAFETY: as the caller promises: the rectangle lies inside the strip and inside what is filled. Where there is
            // nothing to read, the pointer stays where it is.
            unsafe {
                let from =
                    if lanes == 0 || k == 0 { 0 } else { lane * strip.lane_step + 2 * pair * strip.k_step };
                let part = Strip { src: strip.src.add(from), lanes, ..strip };
                match (by_k, layout) {
                    (true, Layout::Tiles { pairs }) => by_lanes(part, k, dst.add(lane * pairs + pair * TILE)),
                    (true, Layout::Panel) => {
                        by_lanes(part, k, turned.as_mut_ptr());
                        let from = (turned.as_ptr(), TILE * size_of::<f32>(), wide);
                        avx512::transpose(from, (dst.add(pair * width + lane), width, wide), deep);
                    }
                    (false, Layout::Panel) => {
                        by_pairs(part, (k, deep), wide, (dst.add(pair * width + lane), width));
                    }
                    (false, Layout::Tiles { pairs }) => {
                        by_pairs(part, (k, TILE), wide, (turned.as_mut_ptr(), WIDEST));
                        for tile in (0..wide).step_by(TILE) {
                            let from = (turned.as_ptr().add(tile), WIDEST * size_of::<f32>(), TILE);
                            let to = dst.add((lane + tile) * pairs + pair * TILE);
                            avx512::transpose(from, (to, TILE, TILE), TILE);
                        }
                    }
                }
            }
        }
    }
}

/// The bits of a number in bf16.
#[inline(always)]
fn bits<T: Float>(x: T) -> u16 {
    let wide = x.widen();
    if T::DTYPE == DType::BF16 { (wide.to_bits() >> 16) as u16 } else { bf16::narrow(wide).to_bits() }
}

/// [`bits`] of up to 16 adjacent numbers, each in 32 bits; zeros for the others.
///
/// # Safety
///
/// `src` must be good for reading `len` numbers, and the machine must have the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) unsafe fn load_bits<T: Float>(src: *const T, len: usize) -> __m512i {
    let mask = avx512::mask(len, 0);
    // SAFETY: the mask stops at `len`.
    unsafe {
        if T::DTYPE == DType::BF16 {
            return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src.cast()));
        }
        assert!(!T::LOW, "operands are bf16 or f32");
        let bits = _mm512_maskz_loadu_epi32(mask, src.cast());
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_castsi512_ps(bits);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(nan, nan);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, quiet))
    }
}

/// Fills a tile lane by lane from a strip of at most 16 lanes whose k are adjacent.
///
/// # Safety
///
/// The strip must be good for reading `k <= 32` elements of its lanes, `dst` for a tile, and the machine must have the
/// features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_lanes<T: Float>(strip: Strip<T>, k: usize, dst: *mut f32) {
    let mask = ((1u64 << k) - 1) as u32;
    for lane in 0..TILE {
        // SAFETY: as the caller promises; two bf16 take the place of an f32.
        unsafe {
            let to = dst.add(lane * TILE).cast();
            if lane >= strip.lanes {
                _mm512_storeu_si512(to, _mm512_setzero_si512());
                continue;
            }
            let from = strip.src.add(lane * strip.lane_step);
            if T::DTYPE == DType::BF16 {
                _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, from.cast()));
                continue;
            }
            for half in 0..2 {
                let len = k.saturating_sub(half * TILE).min(TILE);
                let bits = load_bits(if len == 0 { from } else { from.add(half * TILE) }, len);
                _mm256_storeu_si256(to.cast::<__m256i>().add(half), _mm512_cvtepi32_epi16(bits));
            }
        }
    }
}

/// Fills rows of pairs, `pitch` apart, of `width` lanes from a strip of at most 32 lanes.
///
/// # Safety
///
/// The strip must be good for reading `k <= 2 * pairs` elements of its lanes, `dst` for writing the rows, and the machine must
/// have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_pairs<T: Float>(
    strip: Strip<T>,
    (k, pairs): (usize, usize),
    width: usize,
    (dst, pitch): (*mut f32, usize),
) {
    let Strip { src, lane_step, k_step, lanes } = strip;
    for pair in 0..pairs {
        let rows = [2 * pair, 2 * pair + 1];
        // SAFETY: as the caller promises; a pair takes the place of an f32.
        unsafe {
            let to = dst.add(pair * pitch);
            if lane_step == 1 && 2 * pair + 1 < k && lanes == width && width.is_multiple_of(TILE) {
                // Rows are often pages apart, so that nothing else fetches them ahead.
                let (first, second) = (src.add(2 * pair * k_step), src.add((2 * pair + 1) * k_step));
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(AHEAD * k_step).cast());
                _mm_prefetch::<_MM_HINT_T0>(second.wrapping_add(AHEAD * k_step).cast());
                for lane in (0..width).step_by(TILE) {
                    let (first, second) =
                        (load_bits(first.add(lane), TILE), load_bits(second.add(lane), TILE));
                    let both = _mm512_or_si512(first, _mm512_slli_epi32::<16>(second));
                    _mm512_storeu_si512(to.add(lane).cast(), both);
                }
                continue;
            }
            for lane in 0..width {
                let [first, second] = rows.map(|row| {
                    let inside = lane < lanes && row < k;
                    u32::from(if inside { bits(*src.add(lane * lane_step + row * k_step)) } else { 0 })
                });
                *to.add(lane) = f32::from_bits(first | second << 16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::testing::uniform;
    use plimsoll_testing::or_skip;

    /// Every pair lies where the layout says, for operands in any order, and what does not exist is zero.
    #[test]
    fn pairs_lie_where_the_layout_says() {
        if or_skip(Isa::Avx512.available()).is_none() {
            return;
        }
        for (lanes, width, k, pairs) in [
            (32, 32, 32, 16),
            (1, 16, 1, 16),
            (19, 32, 45, 32),
            (16, 16, 7, 16),
            (0, 16, 3, 16),
            (5, 32, 0, 16),
        ] {
            for (lane_step, k_step) in [(1, 40), (50, 1), (131, 3)] {
                let mut numbers = uniform(1, 32 * lane_step + 64 * k_step);
                numbers[..3].copy_from_slice(&[f32::NAN, f32::INFINITY, -1e-40]);
                let narrow: Vec<bf16> = numbers.iter().map(|x| bf16::narrow(*x)).collect();
                let wanted = |lane: usize, at: usize| {
                    let inside = lane < lanes && at < k;
                    u32::from(if inside { narrow[lane * lane_step + at * k_step].to_bits() } else { 0 })
                };
                for layout in [Layout::Panel, Layout::Tiles { pairs }] {
                    let mut packed = [(); 2].map(|()| vec![f32::NAN; width * pairs]);
                    let strips = (
                        Strip { src: narrow.as_ptr(), lane_step, k_step, lanes },
                        Strip { src: numbers.as_ptr(), lane_step, k_step, lanes },
                    );
                    // SAFETY: the strips cover their lanes, and the panels all pairs.
                    unsafe {
                        pack_pairs(strips.0, (packed[0].as_mut_ptr(), width), k, pairs, layout);
                        pack_pairs(strips.1, (packed[1].as_mut_ptr(), width), k, pairs, layout);
                    }
                    for (lane, pair) in (0..width).flat_map(|lane| (0..pairs).map(move |pair| (lane, pair))) {
                        let at = match layout {
                            Layout::Panel => pair * width + lane,
                            Layout::Tiles { .. } => {
                                lane / 16 * 16 * pairs + pair / 16 * 256 + lane % 16 * 16 + pair % 16
                            }
                        };
                        let wanted = wanted(lane, 2 * pair) | wanted(lane, 2 * pair + 1) << 16;
                        let what =
                            format!("{lanes} of {width} lanes, {k} of {pairs} pairs, {lane_step}, {k_step}");
                        assert_eq!(packed[0][at].to_bits(), wanted, "{what}: {lane}, {pair}");
                        assert_eq!(packed[1][at].to_bits(), wanted, "{what}: {lane}, {pair}");
                    }
                }
            }
        }
    }
}
