//! Micro-kernels with AVX-512: up to 12 rows by 32 columns, 24 of the 32 registers being sums.
//!
//! With VNNI one instruction multiplies four pairs of bytes and adds them to a word. Without it bytes are widened to pairs of 16 bits, whose
//! products are exact (those of pairs of bytes would saturate).

use super::depthwise::{BLOCK, Line};
use super::elementwise::{HighHalf, HighSum};
use super::kernel::{Kernels, Tile, finish, finish_codes, micro_table};
use super::pack::{COLUMNS, Channels, STEP, WORD};
use crate::kernels::gemm::kernel::{nothing, unroll};
use std::arch::x86_64::*;

/// Whether the machine multiplies four pairs of bytes at once.
pub(super) fn has_dot_products() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// Whether the machine looks bytes up in a table of several registers.
pub(super) fn has_byte_tables() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

pub(super) static DOT: Kernels = Kernels {
    micro: micro_table!(dot::<1>, dot::<2>; [1 2 3 4 5 6 7 8 9 10 11 12]),
    offset: 0,
    depthwise: Some(depthwise_dot),
    enter: nothing,
    leave: nothing,
};
pub(super) static PAIRS: Kernels = Kernels {
    micro: micro_table!(pairs::<1>, pairs::<2>; [1 2 3 4 5 6 7 8 9 10 11 12]),
    offset: 0,
    depthwise: Some(depthwise_pairs),
    enter: nothing,
    leave: nothing,
};

/// Rows between the pointers that walk along a tile.
const GROUP: usize = 3;

macro_rules! micro {
    ($(#[$meta:meta])* $name:ident, $features:literal, $weights:ident, $codes:ident, $add:ident) => {
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As for [`Micro`](super::kernel::Micro).
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const PANELS: usize>(tile: &Tile<'_>) {
            let mut sums = [[_mm512_setzero_si512(); PANELS]; ROWS];
            // SAFETY: the caller vouches for the pointers.
            unsafe {
                for (panel, bias) in (0..PANELS).map(|panel| (panel, &(*tile.channels.add(panel)).bias)) {
                    let bias = _mm512_load_si512(bias.as_ptr().cast());
                    sums.iter_mut().for_each(|sums| sums[panel] = bias);
                }
                let (step, next) = (tile.a_row, tile.panel());
                let mut b = tile.b;
                for &run in tile.runs {
                    let a = tile.a.add(run);
                    let mut groups = [a; 5];
                    for (i, group) in groups.iter_mut().enumerate() {
                        *group = a.wrapping_add(i * GROUP * step);
                    }
                    for _ in 0..tile.words {
                        let mut weights = [$weights(_mm512_loadu_si512(b.cast())); PANELS];
                        if PANELS == 2 {
                            weights[PANELS - 1] = $weights(_mm512_loadu_si512(b.add(next).cast()));
                        }
                        unroll!(ROW < ROWS, {
                            let word = groups[ROW / GROUP].add(ROW % GROUP * step);
                            let codes = $codes(_mm512_set1_epi32(word.cast::<i32>().read_unaligned()));
                            for (sum, weights) in sums[ROW].iter_mut().zip(weights) {
                                *sum = $add(*sum, codes, weights);
                            }
                        });
                        // After the last step, these may point past the end of their memory.
                        groups.iter_mut().for_each(|group| *group = group.wrapping_add(4));
                        b = b.wrapping_add(STEP);
                    }
                }
                for panel in 0..PANELS {
                    store(tile, panel, &sums);
                }
            }
        }
    };
}

micro! {
    /// With the instructions for dot products.
    dot, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", whole, whole, add_dot
}
micro! {
    /// With products of pairs.
    pairs, "avx512f,avx512bw,avx512dq,avx512vl", signed_pairs, unsigned_pairs, add_pairs
}

#[inline]
#[target_feature(enable = "avx512f")]
fn whole(bytes: __m512i) -> __m512i {
    bytes
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_dot(sum: __m512i, codes: __m512i, weights: __m512i) -> __m512i {
    _mm512_dpbusd_epi32(sum, codes, weights)
}

/// The even bytes, and the odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn signed_pairs(bytes: __m512i) -> [__m512i; 2] {
    [_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes)), _mm512_srai_epi16::<8>(bytes)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn unsigned_pairs(bytes: __m512i) -> [__m512i; 2] {
    [_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(bytes)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_pairs(sum: __m512i, codes: [__m512i; 2], weights: [__m512i; 2]) -> __m512i {
    let (even, odd) = (_mm512_madd_epi16(codes[0], weights[0]), _mm512_madd_epi16(codes[1], weights[1]));
    _mm512_add_epi32(sum, _mm512_add_epi32(even, odd))
}

/// What scales sixteen sums.
struct Scale {
    multipliers: [__m512i; 2],
    halves: [__m512i; 2],
    shifts: __m512i,
}

impl Scale {
    /// That of channels for which the high halves of products are enough.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(channels: &Channels) -> Self {
        let Channels { multipliers, high_shifts, halves: [even, odd], .. } = channels;
        // SAFETY: the arrays have 64 bytes and are aligned to that.
        unsafe {
            let multipliers = _mm512_load_si512(multipliers.as_ptr().cast());
            Self {
                multipliers: [multipliers, _mm512_srli_epi64::<32>(multipliers)],
                halves: [_mm512_load_si512(even.as_ptr().cast()), _mm512_load_si512(odd.as_ptr().cast())],
                shifts: _mm512_load_si512(high_shifts.as_ptr().cast()),
            }
        }
    }

    /// The same factor for all.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn same(factor: &HighHalf) -> Self {
        Self {
            multipliers: [_mm512_set1_epi32(factor.multiplier); 2],
            halves: [_mm512_set1_epi64(factor.half); 2],
            shifts: _mm512_set1_epi32(factor.shift),
        }
    }

    /// The scaled sums.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn scaled(&self, sums: __m512i) -> __m512i {
        let odd = _mm512_srli_epi64::<32>(sums);
        let even = _mm512_add_epi64(_mm512_mul_epi32(sums, self.multipliers[0]), self.halves[0]);
        let odd = _mm512_add_epi64(_mm512_mul_epi32(odd, self.multipliers[1]), self.halves[1]);
        // The high halves of the even products move to the even places.
        let high = _mm512_mask_shuffle_epi32::<0b11_11_01_01>(odd, 0x5555, even);
        _mm512_srav_epi32(high, self.shifts)
    }
}

/// Four vectors of words as bytes within bounds, in the order of [`Order::Interleaved`](super::pack::Order::Interleaved).
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn narrow([a, b, c, d]: [__m512i; 4], [low, high]: [i32; 2]) -> __m512i {
    let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    let (low, high) = (_mm512_set1_epi8(low as i8), _mm512_set1_epi8(high as i8));
    _mm512_min_epu8(_mm512_max_epu8(bytes, low), high)
}

/// Writes the codes of up to four rows of scaled sums of a panel.
///
/// # Safety
///
/// As for [`Micro`](super::kernel::Micro).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn store_quad(tile: &Tile<'_>, panel: usize, row: usize, count: usize, scaled: [__m512i; 4]) {
    // Words of a row are apart: one of each row follows another.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let rows = _mm512_permutexvar_epi32(order, narrow(scaled, tile.bounds));
    let cols = (tile.cols - panel * COLUMNS).min(COLUMNS);
    // SAFETY: as the caller promises; the mask keeps to the tile's columns.
    unsafe {
        let y = tile.y.add(row * tile.y_row + panel * COLUMNS);
        let mask = ((1u32 << cols) - 1) as u16;
        let write = |i: usize, codes: __m128i| {
            if i < count {
                _mm_mask_storeu_epi8(y.wrapping_add(i * tile.y_row).cast(), mask, codes);
            }
        };
        if count == 4 && cols == COLUMNS && tile.y_row == COLUMNS {
            return _mm512_storeu_si512(y.cast(), rows);
        }
        write(0, _mm512_castsi512_si128(rows));
        write(1, _mm512_extracti32x4_epi32::<1>(rows));
        write(2, _mm512_extracti32x4_epi32::<2>(rows));
        write(3, _mm512_extracti32x4_epi32::<3>(rows));
    }
}

/// Writes the codes of the sums of a panel.
///
/// # Safety
///
/// As for [`Micro`](super::kernel::Micro).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn store<const ROWS: usize, const PANELS: usize>(
    tile: &Tile<'_>,
    panel: usize,
    sums: &[[__m512i; PANELS]; ROWS],
) {
    // SAFETY: as the caller promises.
    let channels = unsafe { &*tile.channels.add(panel) };
    if channels.high {
        let scale = Scale::new(channels);
        unroll!(QUAD < ROWS.div_ceil(4), {
            let mut quad = [_mm512_setzero_si512(); 4];
            for (i, scaled) in quad.iter_mut().enumerate() {
                if 4 * QUAD + i < ROWS {
                    *scaled = scale.scaled(sums[4 * QUAD + i][panel]);
                }
            }
            // SAFETY: as the caller promises.
            unsafe { store_quad(tile, panel, 4 * QUAD, ROWS - 4 * QUAD, quad) };
        });
        return;
    }
    for (row, sums) in sums.iter().enumerate() {
        let mut words = [0; COLUMNS];
        // SAFETY: there are sixteen words; as the caller promises.
        unsafe {
            _mm512_storeu_si512(words.as_mut_ptr().cast(), sums[panel]);
            finish(tile, panel, row, &words);
        }
    }
}

/// Writes the codes of rows of sums in memory, at distances of so many.
///
/// # Safety
///
/// As for [`Micro`](super::kernel::Micro); the sums can be read.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn store_rows<const ROWS: usize, const PANELS: usize>(
    tile: &Tile<'_>,
    sums: *const i32,
    step: usize,
) {
    for panel in 0..PANELS {
        // SAFETY: as the caller promises.
        let channels = unsafe { &*tile.channels.add(panel) };
        let sums = sums.wrapping_add(panel * COLUMNS);
        if !channels.high {
            // SAFETY: likewise.
            (0..ROWS).for_each(|row| unsafe { finish(tile, panel, row, &*sums.add(row * step).cast()) });
            continue;
        }
        let scale = Scale::new(channels);
        for row in (0..ROWS).step_by(4) {
            let mut quad = [_mm512_setzero_si512(); 4];
            for (i, scaled) in quad.iter_mut().enumerate().take(ROWS - row) {
                // SAFETY: as the caller promises.
                *scaled = scale.scaled(unsafe { _mm512_loadu_si512(sums.add((row + i) * step).cast()) });
            }
            // SAFETY: as the caller promises.
            unsafe { store_quad(tile, panel, row, ROWS - row, quad) };
        }
    }
}

macro_rules! depthwise {
    ($name:ident, $features:literal, $weights:ident, $codes:ident, $add:ident) => {
        /// The codes of a line: bytes of four taps are interleaved, so that a word has those of a channel.
        ///
        /// # Safety
        ///
        /// The pointers are good for what the sizes say, for whole blocks of channels at every tap; nobody else touches the codes;
        /// the machine has the instructions; weights are packed in the order of interleaved vectors.
        #[target_feature(enable = $features)]
        unsafe fn $name(line: &Line<'_>) {
            let groups = line.starts.len() / WORD;
            for first in (0..line.channels).step_by(BLOCK) {
                let count = BLOCK.min(line.channels - first);
                let mask = if count == BLOCK { u64::MAX } else { (1 << count) - 1 };
                let panel = first / COLUMNS;
                // SAFETY: the caller vouches for the pointers: four panels are a block, and a block of codes can be read at every
                // tap. The mask keeps to the codes that there are.
                unsafe {
                    let panels = [0, 1, 2, 3].map(|i| &*line.packed.channels(panel + i));
                    let packed = line.packed.panel(panel);
                    let size = line.packed.sizes.panel();
                    let high = panels.iter().all(|panel| panel.high);
                    for pixel in 0..line.pixels {
                        let x = line.x.add(pixel * line.step + first);
                        let mut sums = [_mm512_setzero_si512(); 4];
                        for (sum, panel) in sums.iter_mut().zip(panels) {
                            *sum = _mm512_load_si512(panel.bias.as_ptr().cast());
                        }
                        for group in 0..groups {
                            let mut taps = [_mm512_setzero_si512(); WORD];
                            for (i, tap) in taps.iter_mut().enumerate() {
                                let start = *line.starts.get_unchecked(group * WORD + i);
                                *tap = _mm512_loadu_si512(x.add(start).cast());
                            }
                            let words = interleave(taps);
                            for i in 0..4 {
                                let weights = packed.add(i * size + group * STEP);
                                let weights = $weights(_mm512_load_si512(weights.cast()));
                                sums[i] = $add(sums[i], $codes(words[i]), weights);
                            }
                        }
                        let y = line.y.add(pixel * line.channels + first);
                        if !high {
                            store_any(line, panel, &sums, y, count);
                            continue;
                        }
                        for (sum, panel) in sums.iter_mut().zip(panels) {
                            *sum = Scale::new(panel).scaled(*sum);
                        }
                        // Narrowing undoes the interleaving.
                        _mm512_mask_storeu_epi8(y.cast(), mask, narrow(sums, line.bounds));
                    }
                }
            }
        }
    };
}

depthwise!(depthwise_dot, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", whole, whole, add_dot);
depthwise!(depthwise_pairs, "avx512f,avx512bw,avx512dq,avx512vl", signed_pairs, unsigned_pairs, add_pairs);

/// Four vectors of bytes as words of four, in the order of [`Order::Interleaved`](super::pack::Order::Interleaved).
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab, cd),
        _mm512_unpackhi_epi16(ab, cd),
        _mm512_unpacklo_epi16(ab_high, cd_high),
        _mm512_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// Writes the codes of a block of sums, whatever their factors.
///
/// # Safety
///
/// As for the codes of a line.
#[target_feature(enable = "avx512f")]
unsafe fn store_any(line: &Line<'_>, panel: usize, sums: &[__m512i; 4], y: *mut u8, count: usize) {
    for (i, sums) in sums.iter().enumerate() {
        let (mut words, mut codes) = ([0i32; COLUMNS], [0u8; COLUMNS]);
        // SAFETY: there are sixteen words; as the caller promises.
        unsafe {
            _mm512_storeu_si512(words.as_mut_ptr().cast(), *sums);
            finish_codes(&*line.packed.channels(panel + i), &words, line.zero, line.bounds, &mut codes);
        }
        for (lane, code) in codes.into_iter().enumerate() {
            let channel = lane / 4 * COLUMNS + i * 4 + lane % 4;
            if channel < count {
                // SAFETY: as the caller promises.
                unsafe { y.add(channel).write(code) };
            }
        }
    }
}

/// The sums of codes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_codes(sum: &HighSum, x: [&[u8]; 2], y: &mut [u8]) {
    let (second, total) = (Scale::same(&sum.second), Scale::same(&sum.total));
    let zeros = [_mm512_set1_epi32(sum.zeros[0]), _mm512_set1_epi32(sum.zeros[1])];
    let up = [_mm_cvtsi32_si128(sum.up as i32 - 1), _mm_cvtsi32_si128(sum.up as i32 + 1)];
    let none = _mm512_setzero_si512();
    for at in (0..y.len()).step_by(BLOCK) {
        let left = (y.len() - at).min(BLOCK);
        let mask = if left == BLOCK { u64::MAX } else { (1 << left) - 1 };
        // SAFETY: the mask keeps to the elements that there are.
        let (a, b) = unsafe {
            let [a, b] = [x[0][at..].as_ptr(), x[1][at..].as_ptr()];
            (_mm512_maskz_loadu_epi8(mask, a.cast()), _mm512_maskz_loadu_epi8(mask, b.cast()))
        };
        // As words, in an order that narrowing undoes.
        let (a, b) = (interleave([a, none, none, none]), interleave([b, none, none, none]));
        let mut sums = [none; 4];
        for i in 0..4 {
            let a = _mm512_sll_epi32(_mm512_sub_epi32(a[i], zeros[0]), up[0]);
            let b = _mm512_sll_epi32(_mm512_sub_epi32(b[i], zeros[1]), up[1]);
            sums[i] = total.scaled(_mm512_add_epi32(a, second.scaled(b)));
        }
        // SAFETY: likewise.
        unsafe { _mm512_mask_storeu_epi8(y[at..].as_mut_ptr().cast(), mask, narrow(sums, sum.bounds)) };
    }
}

/// Puts what a table has for each code in its place: both halves are looked up, by seven bits, and the eighth chooses.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn look_up(table: &[u8; 256], y: &mut [u8]) {
    let quarters = table.as_ptr().cast::<__m512i>();
    // SAFETY: the table is four registers.
    let quarters = unsafe {
        [
            _mm512_loadu_si512(quarters),
            _mm512_loadu_si512(quarters.add(1)),
            _mm512_loadu_si512(quarters.add(2)),
            _mm512_loadu_si512(quarters.add(3)),
        ]
    };
    for block in y.chunks_mut(BLOCK) {
        let mask = if block.len() == BLOCK { u64::MAX } else { (1 << block.len()) - 1 };
        // SAFETY: the mask keeps to the elements that there are.
        let codes = unsafe { _mm512_maskz_loadu_epi8(mask, block.as_ptr().cast()) };
        let low = _mm512_permutex2var_epi8(quarters[0], codes, quarters[1]);
        let high = _mm512_permutex2var_epi8(quarters[2], codes, quarters[3]);
        let found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
        // SAFETY: likewise.
        unsafe { _mm512_mask_storeu_epi8(block.as_mut_ptr().cast(), mask, found) };
    }
}
