//! Micro-kernels with AMX: up to 32 rows by 32 columns of sums in four tile registers of 16 by 16; an instruction takes 64 k.
//!
//! Tiles of codes are loaded straight from the lines of an image: a run is padded to whole tiles, by weights of zero, and rows that there are
//! not are read, too, and their sums left alone.

use super::avx512::store_rows;
use super::kernel::{Kernels, TILE_BYTES, TILE_ROWS, Tile, micro_table};
use super::pack::WORD;
use crate::isa::Isa;
use crate::kernels::gemm::amx::{configure, release};
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// The most rows and columns of sums.
const MOST: usize = 2 * TILE_ROWS;

pub(super) static TILES: Kernels = Kernels {
    micro: micro_table!(micro::<1>, micro::<2>;
        [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32]),
    offset: 0,
    depthwise: None,
    enter: configure,
    leave: release,
};

/// Whether the machine has tiles of bytes, and the process may use them.
pub(super) fn has_tiles() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    const TILES_OF_BYTES: u32 = 1 << 25;
    *HAS.get_or_init(|| Isa::detect() == Isa::Amx && __cpuid_count(7, 0).edx & TILES_OF_BYTES != 0)
}

/// What a call needs besides what is in registers.
#[repr(C)]
struct Job {
    /// What the sums of each panel start at: one row for all.
    bias: [*const i32; 2],
    /// The first row of codes, and bytes to the seventeenth.
    a: *const u8,
    lower: usize,
    /// Tiles of a run.
    tiles: usize,
    /// The end of where runs start.
    ends: *const usize,
    /// Rows of 32 sums.
    sums: *mut i32,
}

/// Starts the sums in registers 0 to 3, adds the products of every tile of every run to them, and stores them. Registers 4 and 5 have
/// codes, 6 and 7 weights.
macro_rules! multiply {
    (
        $job:ident, $starts:expr, $tile:ident;
        start: [$($start:literal)*], step: [$($step:literal)*], store: [$($store:literal)*]
    ) => {
        asm!(
            "mov {k}, [{job}]",
            "mov {lower}, [{job} + 8]",
            "xor {left:e}, {left:e}",
            $($start,)*
            "2:",
            "cmp {starts}, [{job} + 40]",
            "je 4f",
            "mov {k}, [{starts}]",
            "add {starts}, 8",
            "add {k}, [{job} + 16]",
            "mov {lower}, [{job} + 24]",
            "add {lower}, {k}",
            "mov {left}, [{job} + 32]",
            "3:",
            $($step,)*
            "add {k}, 64",
            "add {lower}, 64",
            "add {b}, 1024",
            "add {next}, 1024",
            "dec {left}",
            "jnz 3b",
            "jmp 2b",
            "4:",
            "mov {k}, [{job} + 48]",
            "add {line}, {line}",
            $($store,)*
            job = in(reg) &raw const $job,
            starts = inout(reg) $starts => _,
            a_row = in(reg) $tile.a_row,
            b = inout(reg) $tile.b => _,
            next = inout(reg) $tile.b.wrapping_add($tile.panel()) => _,
            line = inout(reg) TILE_BYTES => _,
            k = out(reg) _,
            lower = out(reg) _,
            left = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// # Safety
///
/// As for [`Micro`](super::kernel::Micro); whole tiles of rows can be read, and the thread has configured the registers.
unsafe fn micro<const ROWS: usize, const PANELS: usize>(tile: &Tile<'_>) {
    #[repr(C, align(64))]
    struct Sums([i32; MOST * MOST]);
    let mut sums = std::mem::MaybeUninit::<Sums>::uninit();
    let tiles = tile.words * WORD / TILE_BYTES;
    let runs: &[usize] = if tiles == 0 { &[] } else { tile.runs };
    let starts = runs.as_ptr_range();
    let job = Job {
        // SAFETY: the caller vouches for the channels of every panel.
        bias: [0, PANELS - 1].map(|panel| unsafe { (*tile.channels.add(panel)).bias.as_ptr() }),
        a: tile.a,
        lower: TILE_ROWS * tile.a_row,
        tiles,
        ends: starts.end,
        sums: sums.as_mut_ptr().cast(),
    };
    // SAFETY: the caller vouches for the pointers. The registers are read and written by these instructions alone.
    unsafe {
        match (ROWS > TILE_ROWS, PANELS > 1) {
            (true, true) => multiply!(job, starts.start, tile;
            start: [
                "tileloadd tmm0, [{k} + {left}]"
                "tileloadd tmm1, [{lower} + {left}]"
                "tileloadd tmm2, [{k} + {left}]"
                "tileloadd tmm3, [{lower} + {left}]"
            ],
            step: [
                "tileloadd tmm6, [{b} + {line}]"
                "tileloadd tmm4, [{k} + {a_row}]"
                "tileloadd tmm7, [{next} + {line}]"
                "tdpbusd tmm0, tmm4, tmm6"
                "tileloadd tmm5, [{lower} + {a_row}]"
                "tdpbusd tmm1, tmm4, tmm7"
                "tdpbusd tmm2, tmm5, tmm6"
                "tdpbusd tmm3, tmm5, tmm7"
            ],
            store: [
                "tilestored [{k} + {line}], tmm0"
                "tilestored [{k} + {line} + 64], tmm1"
                "tilestored [{k} + {line} + 2048], tmm2"
                "tilestored [{k} + {line} + 2112], tmm3"
            ]),
            (true, false) => multiply!(job, starts.start, tile;
            start: [
                "tileloadd tmm0, [{k} + {left}]"
                "tileloadd tmm2, [{k} + {left}]"
            ],
            step: [
                "tileloadd tmm6, [{b} + {line}]"
                "tileloadd tmm4, [{k} + {a_row}]"
                "tdpbusd tmm0, tmm4, tmm6"
                "tileloadd tmm5, [{lower} + {a_row}]"
                "tdpbusd tmm2, tmm5, tmm6"
            ],
            store: [
                "tilestored [{k} + {line}], tmm0"
                "tilestored [{k} + {line} + 2048], tmm2"
            ]),
            (false, true) => multiply!(job, starts.start, tile;
            start: [
                "tileloadd tmm0, [{k} + {left}]"
                "tileloadd tmm1, [{lower} + {left}]"
            ],
            step: [
                "tileloadd tmm6, [{b} + {line}]"
                "tileloadd tmm4, [{k} + {a_row}]"
                "tdpbusd tmm0, tmm4, tmm6"
                "tileloadd tmm7, [{next} + {line}]"
                "tdpbusd tmm1, tmm4, tmm7"
            ],
            store: [
                "tilestored [{k} + {line}], tmm0"
                "tilestored [{k} + {line} + 64], tmm1"
            ]),
            (false, false) => multiply!(job, starts.start, tile;
                start: ["tileloadd tmm0, [{k} + {left}]"],
                step: [
                    "tileloadd tmm6, [{b} + {line}]"
                    "tileloadd tmm4, [{k} + {a_row}]"
                    "tdpbusd tmm0, tmm4, tmm6"
                ],
                store: ["tilestored [{k} + {line}], tmm0"]),
        }
        store_rows::<ROWS, PANELS>(tile, sums.as_ptr().cast(), MOST);
    }
}
