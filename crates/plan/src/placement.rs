//! Offsets for buffers whose lifetimes are known: as low as possible, none on another while both are live.
//!
//! This is dynamic storage allocation, hard in general and easy on most training steps. Buffers are placed one by one,
//! each as low as it fits (or into the tightest gap); what matters is the order. Several orders compete, and the best
//! is improved by placing earlier what ends highest.

use std::cmp::Reverse;

/// A buffer to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Bytes, a multiple of the alignment.
    pub size: usize,
    /// First moment of its life.
    pub first: usize,
    /// Last moment, inclusive.
    pub last: usize,
}

/// Work allowed, in comparisons of two blocks; this is a fraction of a second.
const COMPARISONS: usize = 150_000_000;

/// Rounds of improvement at most.
const ROUNDS: usize = 2_000;

/// The largest sum of sizes live at one moment, and the first moment it is reached. No placement can be lower.
pub(crate) fn live_peak(blocks: &[Block]) -> (usize, usize) {
    let end = blocks.iter().map(|b| b.last + 2).max().unwrap_or(1);
    let mut change = vec![(0_usize, 0_usize); end];
    for block in blocks {
        change[block.first].0 += block.size;
        change[block.last + 1].1 += block.size;
    }
    let mut live = 0;
    let mut peak = (0, 0);
    for (moment, (born, dead)) in change.into_iter().enumerate() {
        live = live + born - dead;
        if live > peak.0 {
            peak = (live, moment);
        }
    }
    peak
}

/// An offset for each block. Blocks of no bytes lie at 0.
pub(crate) fn place(blocks: &[Block]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..blocks.len()).filter(|&i| blocks[i].size > 0).collect();
    let (bound, fullest) = live_peak(blocks);
    let mut packing = Packing { blocks, placed: Vec::with_capacity(ids.len()) };
    let mut best: Option<Packed> = None;
    let duration = |i: usize| blocks[i].last - blocks[i].first + 1;
    let at_fullest = |i: usize| blocks[i].first <= fullest && fullest <= blocks[i].last;
    for rule in 0..7 {
        match rule {
            0 => ids.sort_by_key(|&i| (Reverse(blocks[i].size), blocks[i].first, i)),
            1 => ids.sort_by_key(|&i| (Reverse(blocks[i].size.saturating_mul(duration(i))), i)),
            2 => ids.sort_by_key(|&i| (Reverse(duration(i)), Reverse(blocks[i].size), i)),
            // What is live at the fullest moment first, longest at the bottom: then it is packed without a gap.
            3 => ids.sort_by_key(|&i| (!at_fullest(i), Reverse(duration(i)), Reverse(blocks[i].size), i)),
            4 => ids.sort_by_key(|&i| (!at_fullest(i), blocks[i].first, Reverse(blocks[i].last), i)),
            _ => ids.sort_by_key(|&i| (blocks[i].first, Reverse(blocks[i].last), Reverse(blocks[i].size), i)),
        }
        let packed = packing.pack(&ids, if rule == 6 { Fit::Tightest } else { Fit::Lowest });
        if best.as_ref().is_none_or(|b| packed.height < b.height) {
            best = Some(packed);
        }
        if best.as_ref().is_some_and(|b| b.height == bound) {
            break;
        }
    }
    match best {
        Some(best) => packing.improve(best, bound).offsets,
        None => Vec::new(),
    }
}

/// Which gap a block goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Lowest,
    Tightest,
}

/// A finished placement.
#[derive(Clone)]
struct Packed {
    /// The order it was made in.
    order: Vec<usize>,
    offsets: Vec<usize>,
    height: usize,
}

struct Packing<'a> {
    blocks: &'a [Block],
    /// (offset, end, first, last) of what is placed, by offset: a scan meets the gaps from below.
    placed: Vec<(usize, usize, usize, usize)>,
}

impl Packing<'_> {
    fn pack(&mut self, order: &[usize], fit: Fit) -> Packed {
        self.placed.clear();
        let mut offsets = vec![0; self.blocks.len()];
        let mut height = 0;
        for &id in order {
            let block = self.blocks[id];
            let offset = self.fit(block, fit);
            let end = offset + block.size;
            let at = self.placed.partition_point(|p| p.0 <= offset);
            self.placed.insert(at, (offset, end, block.first, block.last));
            offsets[id] = offset;
            height = height.max(end);
        }
        Packed { order: order.to_vec(), offsets, height }
    }

    /// Where a block goes among those already placed.
    fn fit(&self, block: Block, fit: Fit) -> usize {
        let mut floor = 0;
        let mut tightest: Option<(usize, usize)> = None;
        for &(offset, end, first, last) in &self.placed {
            if first > block.last || last < block.first {
                continue;
            }
            if offset >= floor && offset - floor >= block.size {
                if fit == Fit::Lowest {
                    return floor;
                }
                let gap = offset - floor;
                if tightest.is_none_or(|(least, _)| gap < least) {
                    tightest = Some((gap, floor));
                }
            }
            floor = floor.max(end);
        }
        tightest.map_or(floor, |(_, offset)| offset)
    }

    /// Places earlier, round by round, one of the blocks that end highest.
    fn improve(&mut self, mut best: Packed, bound: usize) -> Packed {
        let count = best.order.len().max(1);
        let rounds = (COMPARISONS / (count * count / 2 + 1)).min(ROUNDS);
        let mut current = best.clone();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..rounds {
            if best.height == bound {
                break;
            }
            let highest = |&(_, &id): &(usize, &usize)| current.offsets[id] + self.blocks[id].size == current.height;
            let top: Vec<usize> = current.order.iter().enumerate().filter(highest).map(|(at, _)| at).collect();
            let from = top[random.below(top.len())];
            let to = random.below(from.max(1));
            let mut order = current.order.clone();
            order[to..=from].rotate_right(1);
            let packed = self.pack(&order, Fit::Lowest);
            // A little worse is allowed, so that a packing may be left; the best one is kept aside.
            if packed.height <= current.height + current.height / 64 {
                current = packed;
            }
            if current.height < best.height {
                best = current.clone();
            } else if current.height > best.height + best.height / 16 {
                current = best.clone();
            }
        }
        best
    }
}

/// A small generator with a constant seed: the same rounds in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }
}
