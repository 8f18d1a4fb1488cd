//! Weights packed for dot products, and what makes codes of their sums.

use crate::isa::Context;
use crate::kernels::math::{Shared, simd_fn};

/// Columns of a panel of packed weights: a vector of sums with AVX-512.
pub(crate) const COLUMNS: usize = 16;
/// Neighbouring k in one packed word: what one dot product takes.
pub(super) const WORD: usize = 4;
/// Bytes of a word of every column of a panel.
pub(super) const STEP: usize = WORD * COLUMNS;

/// Weights of fewer bytes are packed by the calling thread: waking others takes longer.
const WORTH_SHARING: usize = 1 << 17;

/// What makes codes of sums: bias, factor and bounds of each output channel.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// Added to the sums.
    pub bias: &'a [i32],
    /// Fixed-point factors.
    pub multipliers: &'a [i32],
    /// Their shifts.
    pub shifts: &'a [i32],
    /// The output's code of zero.
    pub zero: u8,
    /// The smallest and the largest code.
    pub bounds: [u8; 2],
}

/// The same for the columns of a panel, as kernels read it.
///
/// `code = (sum · multiplier + half) >> bits`, then zero added and bounded. Where `bits` is from 32 to 53, zero is part of the half (with
/// so many bits it still fits) and the shift by 32 is that of taking the high half of a product.
#[repr(C, align(64))]
pub(super) struct Channels {
    /// What sums start at: biases, less the codes of zero in the input.
    pub bias: [i32; COLUMNS],
    pub multipliers: [i32; COLUMNS],
    /// As [`Finish`] has them.
    pub shifts: [i32; COLUMNS],
    /// Bits that the high half of a product is shifted by, if [`Channels::high`].
    pub high_shifts: [i32; COLUMNS],
    /// What is added to products of the even columns, and of the odd ones, if [`Channels::high`].
    pub halves: [[i64; COLUMNS / 2]; 2],
    /// Whether the high halves of products are enough.
    pub high: bool,
}

/// The sizes of packed weights: k is so many runs of neighbouring bytes of an image, each padded to whole units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub runs: usize,
    /// Bytes of a run, and the words that they are padded to.
    pub run: usize,
    pub words: usize,
    /// Columns.
    pub n: usize,
    /// How columns lie in panels.
    pub order: Order,
}

/// How columns lie in panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One after the other.
    Straight,
    /// Four panels together, in the order in which vectors of 64 bytes are interleaved: lane `4 i + j` of panel `q` is column
    /// `16 i + 4 q + j`.
    Interleaved,
}

impl Sizes {
    /// Runs padded to multiples of `unit` bytes.
    pub fn new(runs: usize, run: usize, n: usize, unit: usize) -> Self {
        Self { runs, run, words: run.next_multiple_of(unit) / WORD, n, order: Order::Straight }
    }

    /// Bytes that are read behind the end of a run.
    pub fn over(&self) -> usize {
        self.words * WORD - self.run
    }

    pub fn panels(&self) -> usize {
        match self.order {
            Order::Straight => self.n.div_ceil(COLUMNS),
            Order::Interleaved => self.n.div_ceil(4 * COLUMNS) * 4,
        }
    }

    /// Bytes of a packed panel.
    pub fn panel(&self) -> usize {
        self.runs * self.words * STEP
    }

    /// Bytes of all packed weights with their channels: whole cache lines.
    pub fn bytes(&self) -> usize {
        self.panels() * (self.panel() + size_of::<Channels>())
    }

    fn column(&self, panel: usize, lane: usize) -> usize {
        match self.order {
            Order::Straight => panel * COLUMNS + lane,
            Order::Interleaved => panel / 4 * 4 * COLUMNS + lane / 4 * COLUMNS + panel % 4 * 4 + lane % 4,
        }
    }
}

/// Packed weights in a workspace.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub sizes: Sizes,
    channels: Shared<Channels>,
    panels: Shared<u8>,
}

impl Packed {
    /// In [`Sizes::bytes`] bytes of a workspace that is aligned to cache lines.
    pub fn new(sizes: Sizes, workspace: *mut u8) -> Self {
        let channels = workspace.cast::<Channels>();
        let panels = channels.wrapping_add(sizes.panels()).cast::<u8>();
        Self { sizes, channels: Shared::from_ptr(channels), panels: Shared::from_ptr(panels) }
    }

    pub fn channels(&self, panel: usize) -> *const Channels {
        self.channels.at(panel)
    }

    pub fn panel(&self, panel: usize) -> *const u8 {
        self.panels.at(panel * self.sizes.panel())
    }

    /// Packs weights of k rows by n columns, for inputs whose code of zero is `zero`.
    ///
    /// # Safety
    ///
    /// The workspace is there, and nobody else uses it meanwhile.
    pub unsafe fn fill(&self, ctx: Context<'_>, weights: &[u8], zero: i32, finish: Finish<'_>) {
        let Sizes { runs, run, n, .. } = self.sizes;
        assert!(weights.len() >= runs * run * n, "the weights are shorter than their shape");
        let length = finish.bias.len().min(finish.multipliers.len()).min(finish.shifts.len());
        assert!(length >= n, "there are fewer channels than columns");
        let one = |panel: usize, _: usize| {
            let size = self.sizes.panel();
            // SAFETY: every panel is one task's, in a workspace that is the caller's.
            let packed = unsafe { self.panels.part(panel * size, size) };
            let mut totals = [0; COLUMNS];
            match self.sizes.order {
                Order::Straight => {
                    pack_straight(ctx.isa, &self.sizes, weights, panel * COLUMNS, packed, &mut totals);
                }
                Order::Interleaved => {
                    pack_interleaved(&self.sizes, weights, panel, packed, &mut totals);
                }
            }
            // SAFETY: likewise.
            unsafe { self.channels.at(panel).write(self.sizes.channels(panel, &totals, zero, finish)) };
        };
        match weights.len() < WORTH_SHARING {
            true => (0..self.sizes.panels()).for_each(|panel| one(panel, 0)),
            false => ctx.pool.run(self.sizes.panels(), &one),
        }
    }
}

impl Sizes {
    fn channels(&self, panel: usize, totals: &[i32; COLUMNS], zero: i32, finish: Finish<'_>) -> Channels {
        let columns: [Option<usize>; COLUMNS] =
            std::array::from_fn(|lane| Some(self.column(panel, lane)).filter(|&column| column < self.n));
        let of = |values: &[i32]| columns.map(|column| column.map_or(0, |column| values[column]));
        let (bias, multipliers, shifts) = (of(finish.bias), of(finish.multipliers), of(finish.shifts));
        let bits = shifts.map(|shift| 31 - shift.clamp(-31, 30));
        let high =
            columns.iter().zip(&bits).all(|(column, bits)| column.is_none() || (32..=53).contains(bits));
        let half = |bits: i32| match high {
            true => (1 << (bits.max(32) - 1)) + (i64::from(finish.zero) << bits.max(32)),
            false => 0,
        };
        Channels {
            bias: std::array::from_fn(|i| bias[i].wrapping_sub(zero.wrapping_mul(totals[i]))),
            multipliers,
            shifts,
            high_shifts: bits.map(|bits| (bits - 32).max(0)),
            halves: [0, 1].map(|odd| std::array::from_fn(|i| half(bits[2 * i + odd]))),
            high,
        }
    }
}

simd_fn! {
    /// Packs up to sixteen neighbouring columns from `first` on, and sums each.
    fn pack_straight(
        isa: Isa, sizes: &Sizes, weights: &[u8], first: usize, packed: &mut [u8], totals: &mut [i32; COLUMNS]
    ) {
        let Sizes { run, words, n, .. } = *sizes;
        let cols = COLUMNS.min(n - first);
        let mask: [u8; COLUMNS] = std::array::from_fn(|column| if column < cols { 0xff } else { 0 });
        for (step, packed) in packed.chunks_exact_mut(STEP).enumerate() {
            let (at, k) = (step / words * run, step % words * WORD);
            let mut lines = [[0u8; COLUMNS]; WORD];
            for (i, line) in lines.iter_mut().enumerate().take(run.saturating_sub(k)) {
                let from = (at + k + i) * n + first;
                // What follows the last column are those of the next row.
                match weights.get(from..from + COLUMNS).and_then(|codes| <&[u8; COLUMNS]>::try_from(codes).ok()) {
                    Some(codes) => (0..COLUMNS).for_each(|column| line[column] = codes[column] & mask[column]),
                    None => line[..cols].copy_from_slice(&weights[from..from + cols]),
                }
            }
            for (column, word) in packed.chunks_exact_mut(WORD).enumerate() {
                for (byte, line) in word.iter_mut().zip(&lines) {
                    *byte = line[column];
                    totals[column] += i32::from(line[column] as i8);
                }
            }
        }
    }
}

/// The same of columns in another order, some of which there are not.
fn pack_interleaved(
    sizes: &Sizes,
    weights: &[u8],
    panel: usize,
    packed: &mut [u8],
    totals: &mut [i32; COLUMNS],
) {
    let Sizes { run, words, n, .. } = *sizes;
    packed.fill(0);
    for (lane, total) in totals.iter_mut().enumerate() {
        let column = sizes.column(panel, lane);
        if column >= n {
            continue;
        }
        for (step, packed) in packed.chunks_exact_mut(STEP).enumerate() {
            let (at, k) = (step / words * run, step % words * WORD);
            for (i, byte) in packed[lane * WORD..][..WORD].iter_mut().enumerate().take(run.saturating_sub(k))
            {
                *byte = weights[(at + k + i) * n + column];
                *total += i32::from(*byte as i8);
            }
        }
    }
}
