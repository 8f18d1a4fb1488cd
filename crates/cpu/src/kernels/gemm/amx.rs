//! Micro-kernels with AMX: 32 rows by 32 columns of sums in four tile registers of 16 by 16.
//!
//! An instruction takes 32 k: it sums the products of the even k and those of the odd k, each by fused multiply-add from +0,
//! adds both, and adds that to the sum before. Subnormal numbers are taken as zero. A sum of length k is therefore a left fold
//! over blocks of 32, the last of them padded with zeros, wherever it is cut between two blocks.

use super::avx512::{flush, mask};
use super::kernel::{Kernels, Micro, Packing, Tile, nothing};
use super::pairs::TILE;
use crate::isa::Isa;
use std::arch::asm;
use std::arch::x86_64::*;

const MR: usize = 2 * TILE;

/// The kernels for tiles of bf16: with the machine's own instructions, or with others that have their bits.
pub(crate) fn kernels() -> &'static Kernels {
    if Isa::detect() == Isa::Amx { &KERNELS } else { &EMULATED }
}

/// For every number of rows, by form and by vectors.
macro_rules! micros {
    ($emulated:literal) => {
        [
            [micros!(@rows 1, $emulated, false), micros!(@rows 2, $emulated, false)],
            [micros!(@rows 1, $emulated, true), micros!(@rows 2, $emulated, true)],
        ]
    };
    (@rows $vectors:literal, $emulated:literal, $a_rows:literal) => {
        micros!(@of $vectors, $emulated, $a_rows;
            1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
    };
    (@of $vectors:literal, $emulated:literal, $a_rows:literal; $($rows:literal)*) => {
        &[$(micro::<$rows, $vectors, $emulated, $a_rows>),*]
    };
}

static KERNELS: Kernels = with(micros!(false), configure, release);
static EMULATED: Kernels = with(micros!(true), nothing, nothing);

const fn with(micro: [[&'static [Micro]; 2]; 2], enter: unsafe fn(), leave: unsafe fn()) -> Kernels {
    Kernels { packing: Packing::Tiles, block_tiles: 8, enter, leave, ..Kernels::wide(MR, TILE, micro) }
}

/// The sizes of tile registers, as the instruction reads them.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Gives all eight registers their full size.
///
/// # Safety
///
/// The machine must have AMX, and the process the permission to use it.
pub(crate) unsafe fn configure() {
    let mut all =
        Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    all.row_bytes[..8].fill(64);
    all.rows[..8].fill(16);
    // SAFETY: it reads 64 bytes; as the caller promises.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const all, options(nostack, readonly, preserves_flags)) };
}

/// Gives the registers up, so that the system does not save them while the thread sleeps.
///
/// # Safety
///
/// As for [`configure`].
pub(crate) unsafe fn release() {
    // SAFETY: as the caller promises.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

/// The sums of twice 16 rows by one or two tiles of columns, and what is added to them.
pub(crate) struct Block {
    /// The first 16 rows of A, and the others; the distance between rows, and that between tiles along k.
    pub a: [*const f32; 2],
    pub a_step: usize,
    pub a_tile: usize,
    /// Pairs of a panel of B, and the distance between them.
    pub b: *const f32,
    pub b_step: usize,
    /// Tiles along k.
    pub tiles: usize,
    /// The sums of both, and the distance between their rows.
    pub c: [*mut f32; 2],
    pub ldc: usize,
    /// Whether they start at what is there, not at +0.
    pub load: bool,
}

impl Block {
    /// Adds the products to the sums of one tile of columns, or of two.
    ///
    /// # Safety
    ///
    /// The pointers must be good for what the sizes say, nothing else may touch the sums, the machine must have AVX-512, and
    /// the thread have entered the kernels.
    pub(crate) unsafe fn add(&self, columns: usize) {
        let real = Isa::detect() == Isa::Amx;
        // SAFETY: as the caller promises.
        unsafe {
            match (real, columns > TILE) {
                (true, false) => real_tiles::<1>(self),
                (true, true) => real_tiles::<2>(self),
                (false, false) => emulated::<1>(self),
                (false, true) => emulated::<2>(self),
            }
        }
    }
}

/// See [`Micro`]; `A_ROWS` is whether A has [`Form::Rows`](super::kernel::Form::Rows): 32 rows of whole tiles, of which there may be
/// more than the tile has.
///
/// # Safety
///
/// As for every micro-kernel; if it is not emulated, the machine must have AMX, and the thread have configured it.
unsafe fn micro<const ROWS: usize, const VECTORS: usize, const EMULATED: bool, const A_ROWS: bool>(
    tile: &Tile,
) {
    // SAFETY: as the caller promises.
    unsafe { multiply::<VECTORS, EMULATED, A_ROWS>(tile, ROWS) }
}

/// # Safety
///
/// As for [`micro`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn multiply<const VECTORS: usize, const EMULATED: bool, const A_ROWS: bool>(tile: &Tile, rows: usize) {
    #[repr(C, align(64))]
    struct Sums([f32; MR * 2 * TILE]);

    let (a_step, a_tile, lower) =
        if A_ROWS { (tile.a_step, TILE, TILE * tile.a_step) } else { (TILE, TILE * TILE, TILE * tile.k_len) };
    let block = Block {
        a: [tile.a, tile.a.wrapping_add(lower)],
        a_step,
        a_tile,
        b: tile.b,
        b_step: tile.b_step,
        tiles: tile.k_len / TILE,
        c: [tile.c, tile.c.wrapping_add(TILE * tile.ldc)],
        ldc: tile.ldc,
        load: tile.load,
    };
    let add = |block: &Block| {
        // SAFETY: as the caller promises; the sums are the whole block's.
        unsafe { if EMULATED { emulated::<VECTORS>(block) } else { real_tiles::<VECTORS>(block) } }
    };
    let finish = tile.finish;
    if rows == MR && tile.cols == VECTORS * TILE && finish.bias.is_null() && !finish.relu {
        return add(&block);
    }
    let mut sums = Sums([0.0; MR * 2 * TILE]);
    let (own, pitch) = (sums.0.as_mut_ptr(), 2 * TILE);
    // SAFETY: the caller vouches for the pointers; masks keep C and the bias inside the tile's rows and columns.
    unsafe {
        let masks = [0, 1].map(|v| mask(tile.cols, v));
        if tile.load {
            for (row, v) in (0..rows).flat_map(|row| (0..VECTORS).map(move |v| (row, v))) {
                let before = _mm512_maskz_loadu_ps(masks[v], tile.c.add(row * tile.ldc + TILE * v));
                _mm512_store_ps(own.add(row * pitch + TILE * v), before);
            }
        }
        add(&Block { c: [own, own.add(TILE * pitch)], ldc: pitch, ..block });
        let zero = _mm512_setzero_ps();
        for (v, mask) in masks.into_iter().enumerate().take(VECTORS) {
            let bias = if finish.bias.is_null() {
                None
            } else {
                Some(_mm512_maskz_loadu_ps(mask, finish.bias.add(TILE * v)))
            };
            for row in 0..rows {
                let mut c = _mm512_load_ps(own.add(row * pitch + TILE * v));
                if let Some(bias) = bias {
                    c = _mm512_add_ps(c, bias);
                }
                if finish.relu {
                    // Of a NaN and another operand the second is the result, so NaN stays.
                    c = _mm512_max_ps(zero, c);
                }
                _mm512_mask_storeu_ps(tile.c.add(row * tile.ldc + TILE * v), mask, c);
            }
        }
    }
}

/// # Safety
///
/// The pointers must be good for what the sizes say, nothing else may touch the sums, the machine must have AMX, and the
/// thread have configured it.
unsafe fn real_tiles<const VECTORS: usize>(block: &Block) {
    let [ldc, a_step, a_tile, b_step] =
        [block.ldc, block.a_step, block.a_tile, block.b_step].map(|floats| floats * size_of::<f32>());
    let [c, lower] = block.c;
    // SAFETY: as the caller promises. The tiles are read and written by these instructions alone.
    unsafe {
        if VECTORS == 2 {
            asm!(
                "test {load}, {load}",
                "jz 2f",
                "tileloadd tmm0, [{c} + {ldc}]",
                "tileloadd tmm1, [{c} + {ldc} + 64]",
                "tileloadd tmm2, [{lower} + {ldc}]",
                "tileloadd tmm3, [{lower} + {ldc} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "test {tiles}, {tiles}",
                "jz 5f",
                "4:",
                "tileloadd tmm6, [{b} + {b_step}]",
                "tileloadd tmm4, [{a} + {a_step}]",
                "tileloadd tmm7, [{b} + {b_step} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a_lower} + {a_step}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, {a_tile}",
                "add {a_lower}, {a_tile}",
                "add {b}, {b_tile}",
                "dec {tiles}",
                "jnz 4b",
                "5:",
                "tilestored [{c} + {ldc}], tmm0",
                "tilestored [{c} + {ldc} + 64], tmm1",
                "tilestored [{lower} + {ldc}], tmm2",
                "tilestored [{lower} + {ldc} + 64], tmm3",
                load = in(reg) usize::from(block.load),
                c = in(reg) c,
                ldc = in(reg) ldc,
                lower = in(reg) lower,
                tiles = inout(reg) block.tiles => _,
                a = inout(reg) block.a[0] => _,
                a_lower = inout(reg) block.a[1] => _,
                a_step = in(reg) a_step,
                a_tile = in(reg) a_tile,
                b = inout(reg) block.b => _,
                b_step = in(reg) b_step,
                b_tile = in(reg) TILE * b_step,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        } else {
            asm!(
                "test {load}, {load}",
                "jz 2f",
                "tileloadd tmm0, [{c} + {ldc}]",
                "tileloadd tmm2, [{lower} + {ldc}]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm2",
                "3:",
                "test {tiles}, {tiles}",
                "jz 5f",
                "4:",
                "tileloadd tmm6, [{b} + {b_step}]",
                "tileloadd tmm4, [{a} + {a_step}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a_lower} + {a_step}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {a}, {a_tile}",
                "add {a_lower}, {a_tile}",
                "add {b}, {b_tile}",
                "dec {tiles}",
                "jnz 4b",
                "5:",
                "tilestored [{c} + {ldc}], tmm0",
                "tilestored [{lower} + {ldc}], tmm2",
                load = in(reg) usize::from(block.load),
                c = in(reg) c,
                ldc = in(reg) ldc,
                lower = in(reg) lower,
                tiles = inout(reg) block.tiles => _,
                a = inout(reg) block.a[0] => _,
                a_lower = inout(reg) block.a[1] => _,
                a_step = in(reg) a_step,
                a_tile = in(reg) a_tile,
                b = inout(reg) block.b => _,
                b_step = in(reg) b_step,
                b_tile = in(reg) TILE * b_step,
                out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack),
            );
        }
    }
}

/// As [`real_tiles`], in other instructions.
///
/// # Safety
///
/// As for [`real_tiles`], but for AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn emulated<const VECTORS: usize>(block: &Block) {
    let odd = _mm512_castsi512_ps(_mm512_set1_epi32(0xffff_0000u32 as i32));
    let halves = |pairs: __m512| {
        let even = _mm512_slli_epi32::<16>(_mm512_castps_si512(pairs));
        [flush(_mm512_castsi512_ps(even)), flush(_mm512_and_ps(pairs, odd))]
    };
    for (row, v) in (0..MR).flat_map(|row| (0..VECTORS).map(move |v| (row, v))) {
        // SAFETY: as the caller promises.
        unsafe {
            let c = block.c[row / TILE].add(row % TILE * block.ldc + TILE * v);
            let a = block.a[row / TILE].add(row % TILE * block.a_step);
            let mut sum = if block.load { _mm512_loadu_ps(c) } else { _mm512_setzero_ps() };
            for tile in 0..block.tiles {
                let mut chains = [_mm512_setzero_ps(); 2];
                for pair in 0..TILE {
                    let a = halves(_mm512_set1_ps(*a.add(tile * block.a_tile + pair)));
                    let b =
                        halves(_mm512_loadu_ps(block.b.add((tile * TILE + pair) * block.b_step + TILE * v)));
                    for (chain, (a, b)) in chains.iter_mut().zip(a.into_iter().zip(b)) {
                        *chain = flush(_mm512_fmadd_ps(a, b, *chain));
                    }
                }
                let both = flush(_mm512_add_ps(chains[0], chains[1]));
                sum = flush(_mm512_add_ps(flush(sum), both));
            }
            _mm512_storeu_ps(c, sum);
        }
    }
}
