//! What the micro-kernels of all instruction sets have in common.
//!
//! A tile is a few rows by one or two panels of columns. Its sums are of integers, so all micro-kernels give the same codes.

use super::depthwise::Line;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pack::{COLUMNS, Channels, STEP, WORD};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use crate::isa::Isa;
use crate::kernels::gemm::kernel::nothing;
use plimsoll_tensor::fixed_point;

/// Rows of a tile register, and bytes of each.
pub(super) const TILE_ROWS: usize = 16;
pub(super) const TILE_BYTES: usize = 64;

/// One call of a micro-kernel: the codes of a tile.
pub(super) struct Tile<'a> {
    /// The first byte of the first row, and bytes between rows.
    pub a: *const u8,
    pub a_row: usize,
    /// Where the runs of a row start, from its first byte, and the words of each.
    pub runs: &'a [usize],
    pub words: usize,
    /// The first panel, and what makes codes of its sums. The second panel follows each.
    pub b: *const u8,
    pub channels: *const Channels,
    /// The first code, and codes between rows.
    pub y: *mut u8,
    pub y_row: usize,
    /// Columns.
    pub cols: usize,
    /// The output's code of zero, and its bounds.
    pub zero: i32,
    pub bounds: [i32; 2],
}

#[cfg(target_arch = "x86_64")]
impl Tile<'_> {
    /// Bytes from a panel to the next.
    pub fn panel(&self) -> usize {
        self.runs.len() * self.words * STEP
    }
}

/// Computes the codes of a tile with the rows and panels that it is compiled for.
///
/// # Safety
///
/// The pointers are good for what the sizes say: for every row and run so many words are read. Nobody else touches the codes. The
/// machine has the instructions.
pub(super) type Micro = unsafe fn(&Tile<'_>);

/// The micro-kernels of an instruction set.
pub(super) struct Kernels {
    /// For one panel, and for two where there are such: by rows less one.
    pub micro: &'static [&'static [Micro]],
    /// What codes are taken less of before they are multiplied: the input's code of zero follows.
    pub offset: i32,
    /// The codes of a line of a depthwise convolution, where that is not left to the compiler.
    pub depthwise: Option<unsafe fn(&Line<'_>)>,
    /// What a thread does before tiles, and after.
    pub enter: unsafe fn(),
    pub leave: unsafe fn(),
}

/// How the codes and weights of a product are cut, which decides how weights are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Words of a few rows.
    Words,
    /// Tiles of sixteen rows, or less where there are no more, by sixteen words.
    Tiles,
}

impl Form {
    /// The form that takes the least time for lines of so many pixels and runs of so many bytes.
    pub fn of(isa: Isa, pixels: usize, run: usize) -> Self {
        // A word of a row takes as long as two rows of a tile.
        let words = pixels * run.div_ceil(WORD);
        let tiles = 2 * pixels.next_multiple_of(TILE_ROWS) * run.div_ceil(TILE_BYTES);
        if isa == Isa::Amx && tiles < words { Self::Tiles } else { Self::Words }
    }

    /// Bytes that runs are padded to a multiple of.
    pub fn unit(self) -> usize {
        match self {
            Self::Words => WORD,
            Self::Tiles => TILE_BYTES,
        }
    }

    /// Rows that are read behind the last of a line of so many pixels.
    pub fn rows_behind(self, pixels: usize) -> usize {
        match self {
            Self::Words => 0,
            Self::Tiles => pixels.next_multiple_of(TILE_ROWS) - pixels,
        }
    }
}

impl Kernels {
    /// Those that run with an instruction set on this machine.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "others have no tiles"))]
    pub fn of(isa: Isa, form: Form) -> &'static Self {
        match isa.vectors() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if form == Form::Tiles && amx::has_tiles() => &amx::TILES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if avx512::has_dot_products() => &avx512::DOT,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::PAIRS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if avx2::has_dot_products() => &avx2::DOT,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::PAIRS,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if neon::has_dot_products() => &neon::DOT,
            _ => &PORTABLE,
        }
    }

    /// Every one of this architecture, with the instruction set whose vectors it has; an error names what the machine lacks.
    #[cfg(test)]
    pub fn all() -> Vec<Result<(&'static str, Isa, &'static Self), String>> {
        let with = |isa: Isa, name: &'static str, has: bool, kernels: &'static Self| {
            let isa = isa.available().map_err(|e| format!("{name}: {e}"))?;
            if has { Ok((name, isa, kernels)) } else { Err(format!("this machine lacks {name}")) }
        };
        vec![
            with(Isa::Portable, "plain code", true, &PORTABLE),
            #[cfg(target_arch = "x86_64")]
            with(Isa::Avx2, "pairs of AVX2", true, &avx2::PAIRS),
            #[cfg(target_arch = "x86_64")]
            with(Isa::Avx2, "AVX-VNNI", avx2::has_dot_products(), &avx2::DOT),
            #[cfg(target_arch = "x86_64")]
            with(Isa::Avx512, "pairs of AVX-512", true, &avx512::PAIRS),
            #[cfg(target_arch = "x86_64")]
            with(Isa::Avx512, "AVX-512 VNNI", avx512::has_dot_products(), &avx512::DOT),
            #[cfg(target_arch = "x86_64")]
            with(Isa::Amx, "AMX of bytes", amx::has_tiles(), &amx::TILES),
            #[cfg(target_arch = "aarch64")]
            with(Isa::Neon, "plain code with NEON", true, &PORTABLE),
            #[cfg(target_arch = "aarch64")]
            with(Isa::Neon, "dot products of NEON", neon::has_dot_products(), &neon::DOT),
        ]
    }

    /// The most rows of a tile.
    pub fn rows(&self) -> usize {
        self.micro[0].len()
    }

    /// The most panels of a tile.
    pub fn panels(&self) -> usize {
        self.micro.len()
    }
}

/// The micro-kernels of so many rows, and as many panels as there are lists.
macro_rules! micro_table {
    ($($kernel:ident::<$panels:literal>),+; $rows:tt) => {
        &[$(micro_table!(@of $kernel, $panels, $rows)),+]
    };
    (@of $kernel:ident, $panels:literal, [$($rows:literal)*]) => {
        &[$($kernel::<$rows, $panels>),*]
    };
}
pub(super) use micro_table;

pub(super) static PORTABLE: Kernels = Kernels {
    micro: micro_table!(portable::<1>; [1 2 3 4]),
    offset: 0,
    depthwise: None,
    enter: nothing,
    leave: nothing,
};

/// Plain code.
///
/// # Safety
///
/// As for [`Micro`].
unsafe fn portable<const ROWS: usize, const PANELS: usize>(tile: &Tile<'_>) {
    let mut sums = [[0i32; COLUMNS]; ROWS];
    // SAFETY: as the caller promises.
    unsafe {
        sums.fill((*tile.channels).bias);
        let mut b = tile.b.cast::<[i8; STEP]>();
        for &run in tile.runs {
            for word in 0..tile.words {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let codes = *tile.a.add(row * tile.a_row + run + word * WORD).cast::<[u8; WORD]>();
                    for (sum, weights) in sums.iter_mut().zip((*b).chunks_exact(WORD)) {
                        for (&code, &weight) in codes.iter().zip(weights) {
                            *sum = sum.wrapping_add(i32::from(code) * i32::from(weight));
                        }
                    }
                }
                b = b.wrapping_add(1);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            finish(tile, 0, row, sums);
        }
    }
}

/// Writes the codes of a row of sums of a panel, whatever their factors.
///
/// # Safety
///
/// As for [`Micro`].
pub(super) unsafe fn finish(tile: &Tile<'_>, panel: usize, row: usize, sums: &[i32; COLUMNS]) {
    // SAFETY: as the caller promises.
    let (channels, y) = unsafe {
        let first = tile.y.add(row * tile.y_row + panel * COLUMNS);
        let cols = (tile.cols - panel * COLUMNS).min(COLUMNS);
        (&*tile.channels.add(panel), std::slice::from_raw_parts_mut(first, cols))
    };
    finish_codes(channels, sums, tile.zero, tile.bounds, y);
}

/// The codes of the sums of a panel's first columns.
#[inline(always)]
pub(super) fn finish_codes(
    channels: &Channels,
    sums: &[i32; COLUMNS],
    zero: i32,
    [low, high]: [i32; 2],
    y: &mut [u8],
) {
    let mut codes = [0u8; COLUMNS];
    if channels.high {
        for (i, code) in codes.iter_mut().enumerate() {
            let product = i64::from(sums[i]) * i64::from(channels.multipliers[i]);
            let high_half = ((product + channels.halves[i % 2][i / 2]) >> 32) as i32;
            *code = (high_half >> channels.high_shifts[i]).clamp(low, high) as u8;
        }
    } else {
        for (i, code) in codes.iter_mut().enumerate() {
            let scaled = fixed_point(sums[i], channels.multipliers[i], channels.shifts[i]);
            *code = scaled.saturating_add(zero).clamp(low, high) as u8;
        }
    }
    match <&mut [u8; COLUMNS]>::try_from(&mut *y) {
        Ok(y) => *y = codes,
        Err(_) => y.copy_from_slice(&codes[..y.len()]),
    }
}
