//! What the micro-kernels of all instruction sets have in common.

#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::pairs::{PER_SLOT, TILE};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use crate::isa::Isa;
use plimsoll_tensor::DType;

/// One call of a micro-kernel: a tile of C, a few rows by one or two vectors of columns, gains the terms of one
/// chunk of k.
///
/// The sum starts at +0 or at what is there already, and goes through k in order by fused multiply-add: one left fold,
/// wherever k is cut. Vector lanes are columns of C, so every element sees the same operations whatever the size of its
/// tile.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Element (0, 0) of the tile's part of A, as if k started at 0.
    pub a: *const f32,
    /// The distance between rows of A for [`Form::Rows`], between its columns for [`Form::Columns`].
    pub a_step: usize,
    /// Where A jumps along k.
    pub walk: Walk,
    /// The chunk of k.
    pub k_start: usize,
    /// Its length.
    pub k_len: usize,
    /// The panel of B, at the chunk's start: one or two vectors for every k.
    pub b: *const f32,
    /// The distance between its rows: the panel's width where it is packed.
    pub b_step: usize,
    /// Element (0, 0) of the tile of C.
    pub c: *mut f32,
    /// The distance between rows of C.
    pub ldc: usize,
    /// Whether the sum starts at what C holds, not at +0.
    pub load: bool,
    /// Element (0, 0) of the tile of C that follows, which is fetched meanwhile; null for none.
    pub ahead: *const f32,
    /// Columns of the tile that exist.
    pub cols: usize,
    /// Applied after the last chunk.
    pub finish: Finish,
}

/// What a tile does with its sums before they are stored: `c + bias` unless the pointer is null, then relu.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub bias: *const f32,
    pub relu: bool,
}

// SAFETY: the bias is a shared slice that outlives the kernel, and it is only read.
unsafe impl Send for Finish {}
// SAFETY: likewise.
unsafe impl Sync for Finish {}

impl Finish {
    pub(crate) const NONE: Self = Self { bias: std::ptr::null(), relu: false };

    /// The same for the columns from `column` on.
    pub(crate) fn at_column(self, column: usize) -> Self {
        let bias = if self.bias.is_null() { self.bias } else { self.bias.wrapping_add(column) };
        Self { bias, ..self }
    }
}

/// The layout of A under the tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Neighbouring rows are adjacent in memory: packed panels, and transposed operands.
    Columns,
    /// Neighbouring k are adjacent in memory: pixels of an image.
    Rows,
}

/// The k axis of A as segments of `len`, each evenly spaced by itself: segment `s` starts at
/// `s / inner * outer_step + s % inner * inner_step`. This is the layout of a convolution's taps in an image.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    pub len: usize,
    pub inner: usize,
    pub inner_step: isize,
    pub outer_step: isize,
}

impl Walk {
    /// No jumps.
    pub(crate) const STRAIGHT: Self = Self { len: usize::MAX, inner: 1, inner_step: 0, outer_step: 0 };

    /// The segment that holds a k, and the place in it. Mostly the first one: a division costs as much as ten
    /// rows.
    #[inline(always)]
    pub(crate) fn find(&self, k: usize) -> (usize, usize) {
        if k < self.len { (0, k) } else { (k / self.len, k % self.len) }
    }

    #[inline(always)]
    pub(crate) fn offset(&self, segment: usize) -> isize {
        let (outer, inner) =
            if self.inner == 1 { (segment, 0) } else { (segment / self.inner, segment % self.inner) };
        outer as isize * self.outer_step + inner as isize * self.inner_step
    }
}

/// Kernels may be planned for any machine, but only run on one that has their vector instructions: what differs in products
/// of bf16 alone is emulated where it is missing.
pub(crate) fn assert_available(isa: Isa) {
    let vectors = isa.vectors();
    assert!(Isa::detect().included().contains(&vectors), "this machine lacks {}", vectors.name());
}

/// How a product's operands are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Widened to f32, k by k.
    Wide,
    /// As bf16, two neighbouring k in the place of one f32.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    /// The same, A in tiles of 16 rows by 16 pairs.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

impl Packing {
    /// Whether A is packed in tiles.
    pub(crate) fn is_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Self::Tiles;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The places that a sum of length `k` takes: whole tiles where it is packed in tiles.
    pub(crate) fn slots(self, k: usize) -> usize {
        match self {
            Self::Wide => k,
            #[cfg(target_arch = "x86_64")]
            Self::Pairs => k.div_ceil(PER_SLOT),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => k.div_ceil(PER_SLOT).next_multiple_of(TILE),
        }
    }
}

/// A micro-kernel for a fixed number of rows and vectors.
///
/// # Safety
///
/// The pointers of the tile must be good for all that its sizes say, nothing else may touch the tile of C
/// meanwhile, and the machine must have the kernel's instructions.
pub(crate) type Micro = unsafe fn(&Tile);

/// The micro-kernels of one instruction set.
pub(crate) struct Kernels {
    /// Rows of the tallest tile.
    pub mr: usize,
    /// Columns of one vector; a panel of B is two vectors wide, or one where that covers its columns.
    pub lanes: usize,
    /// By form, by vectors - 1, by rows - 1.
    pub micro: [[&'static [Micro]; 2]; 2],
    /// How its operands are packed.
    pub packing: Packing,
    /// Tiles in the tallest block of A.
    pub block_tiles: usize,
    /// Called by a thread before it calls micro-kernels, and after.
    pub enter: unsafe fn(),
    pub leave: unsafe fn(),
}

/// Tiles of other architectures' instruction sets: a machine can be planned for, but not run, on one of another
/// architecture.
mod elsewhere {
    use super::Kernels;

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) static AVX2: Kernels = Kernels::wide(6, 8, [[&[]; 2]; 2]);
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) static AVX512: Kernels = Kernels::wide(14, 16, [[&[]; 2]; 2]);
    #[cfg(not(target_arch = "aarch64"))]
    pub(super) static NEON: Kernels = Kernels::wide(12, 4, [[&[]; 2]; 2]);
}

/// For kernels that need no preparation.
pub(crate) fn nothing() {}

impl Kernels {
    /// Kernels that read f32 and need no preparation.
    pub(crate) const fn wide(mr: usize, lanes: usize, micro: [[&'static [Micro]; 2]; 2]) -> Self {
        Self { mr, lanes, micro, packing: Packing::Wide, block_tiles: 16, enter: nothing, leave: nothing }
    }

    /// For operands that are f32 or widened to it.
    pub(crate) fn of(isa: Isa) -> &'static Self {
        match isa {
            Isa::Portable => &portable::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => &avx512::KERNELS,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => &elsewhere::AVX2,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => &elsewhere::AVX512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &neon::KERNELS,
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon => &elsewhere::NEON,
        }
    }

    /// For products in this type, if the instruction set multiplies it; otherwise, for operands that are widened.
    pub(crate) fn multiplying(isa: Isa, ty: DType) -> &'static Self {
        match (isa, ty) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, DType::BF16) => avx512::pairs(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, DType::BF16) => amx::kernels(),
            _ => Self::of(isa),
        }
    }

    /// Columns of a full panel of B.
    pub(crate) fn nr(&self) -> usize {
        2 * self.lanes
    }

    /// The width that a panel with `cols` columns is packed to.
    pub(crate) fn panel_width(&self, cols: usize) -> usize {
        if cols > self.lanes { 2 * self.lanes } else { self.lanes }
    }

    /// The kernel for a tile of `rows` by `cols`.
    #[inline]
    pub(crate) fn micro(&self, form: Form, rows: usize, cols: usize) -> Micro {
        self.micro[form as usize][usize::from(cols > self.lanes)][rows - 1]
    }
}

/// The kernels of one module for the given numbers of rows, as [`Kernels::micro`] wants them.
macro_rules! micro_table {
    ($kernel:ident; $($rows:literal)*) => {
        [
            [&[$($kernel::<$rows, 1, false>),*], &[$($kernel::<$rows, 2, false>),*]],
            [&[$($kernel::<$rows, 1, true>),*], &[$($kernel::<$rows, 2, true>),*]],
        ]
    };
}
pub(crate) use micro_table;

/// Repeats a block for `$i` from 0 to `$count` (at most 14), a constant in each copy.
///
/// A loop would do, but whether the compiler unrolls it early enough to keep an array of sums in registers
/// depends on its thresholds.
macro_rules! unroll {
    ($i:ident < $count:expr, $body:block) => {
        unroll!(@copies $i, $count, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    (@copies $i:ident, $count:expr, $body:block, $($n:literal)*) => {
        $(if $n < $count {
            const $i: usize = $n;
            $body
        })*
    };
}
pub(crate) use unroll;

/// The walk along k that all micro-kernels share: `step` for every k, in order, where `a` points at
/// row 0 of A and `b` at the panel's row. A macro, so that its body is compiled for the kernel's instruction
/// set.
macro_rules! walk_k {
    ($tile:expr, $along_k:expr, |$a:ident, $b:ident| $step:block) => {{
        let tile: &Tile = $tile;
        let (along_k, b_step): (usize, usize) = ($along_k, tile.b_step);
        let mut $b = tile.b;
        let (mut segment, mut skip) = tile.walk.find(tile.k_start);
        let mut left = tile.k_len;
        while left > 0 {
            let run = left.min(tile.walk.len - skip);
            let mut $a = tile.a.offset(tile.walk.offset(segment)).add(skip * along_k);
            for _ in 0..run {
                $step
                // After the last step, these may point past the end of their memory.
                $a = $a.wrapping_add(along_k);
                $b = $b.wrapping_add(b_step);
            }
            left -= run;
            skip = 0;
            segment += 1;
        }
    }};
}
pub(crate) use walk_k;
