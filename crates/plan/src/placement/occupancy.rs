//! Which bytes are occupied at which steps, and the lowest offset that is free over a lifetime.
//!
//! A segment tree over steps: the leaves are steps, and a vertex covers the steps below it. A lifetime is the union of a few
//! vertices; a buffer's bytes are recorded there and at all vertices above. Adjacent bytes are merged into one range, so that
//! a query takes few jumps however many buffers there are.

/// Children of a vertex. More children mean more vertices per lifetime, fewer mean more levels.
const BRANCHES: usize = 8;

/// Lists of ranges that are merged without allocating.
const FEW: usize = 40;

/// Disjoint ranges of bytes in order, as (start, end); adjacent ones are merged.
#[derive(Clone, Default)]
struct Ranges(Vec<(usize, usize)>);

impl Ranges {
    fn add(&mut self, start: usize, end: usize) {
        let from = self.0.partition_point(|r| r.1 < start);
        match self.0[from..].iter().take_while(|r| r.0 <= end).count() {
            0 => self.0.insert(from, (start, end)),
            touching => {
                let last = from + touching - 1;
                self.0[from] = (start.min(self.0[from].0), end.max(self.0[last].1));
                self.0.drain(from + 1..=last);
            }
        }
    }
}

/// Occupied bytes by step.
pub(super) struct Occupancy {
    /// The first vertex of each level, the leaves first.
    levels: Vec<usize>,
    leaves: usize,
    /// By vertex: bytes of buffers whose lifetime it is a part of. Not for leaves.
    all: Vec<Ranges>,
    /// By vertex: bytes of buffers recorded at it or at any vertex below it.
    any: Vec<Ranges>,
    /// The vertices of a lifetime, and the vertices above them.
    parts: Vec<usize>,
    above: Vec<usize>,
}

impl Occupancy {
    /// Nothing occupied at the steps `0..steps`.
    pub fn new(steps: usize) -> Self {
        let mut levels = vec![0];
        let (mut width, mut count) = (steps, steps);
        while width > 1 {
            levels.push(count);
            width = width.div_ceil(BRANCHES);
            count += width;
        }
        let empty = vec![Ranges::default(); count];
        Self { levels, leaves: steps, all: empty.clone(), any: empty, parts: Vec::new(), above: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.all.iter_mut().chain(&mut self.any).for_each(|ranges| ranges.0.clear());
    }

    /// Occupies the lowest bytes that are free from `first` to `last`, and returns their offset.
    pub fn take(&mut self, size: usize, first: usize, last: usize) -> usize {
        self.divide(first, last);
        // A buffer that is live at one of these steps is recorded at one of these vertices, or below or above one.
        let all = self.above.iter().map(|&v| &self.all[v].0[..]);
        let any = self.parts.iter().map(|&v| &self.any[v].0[..]);
        let lists = all.chain(any).filter(|ranges| !ranges.is_empty());
        let mut few: [&[(usize, usize)]; FEW] = [&[]; FEW];
        let mut many = Vec::new();
        let lists = if self.above.len() + self.parts.len() <= FEW {
            let count = few.iter_mut().zip(lists).map(|(place, ranges)| *place = ranges).count();
            &mut few[..count]
        } else {
            many.extend(lists);
            &mut many[..]
        };
        let (mut offset, mut before, mut left) = (0, None, lists.len());
        while before != Some(offset) {
            before = Some(offset);
            let mut with_more = 0;
            for at in 0..left {
                let mut ranges = lists[at];
                offset = skip(&mut ranges, offset, size);
                lists[with_more] = ranges;
                with_more += usize::from(!ranges.is_empty());
            }
            left = with_more;
        }
        for &vertex in &self.parts {
            if vertex >= self.leaves {
                self.all[vertex].add(offset, offset + size);
            }
            self.any[vertex].add(offset, offset + size);
        }
        self.above.iter().for_each(|&vertex| self.any[vertex].add(offset, offset + size));
        offset
    }

    /// Finds the fewest vertices that cover exactly the steps from `first` to `last`, and those above them.
    fn divide(&mut self, first: usize, last: usize) {
        self.parts.clear();
        self.above.clear();
        // The vertices of a level that are inside, and the first and the last that the lifetime reaches into.
        let (mut inside, mut reached) = (first..last + 1, (first, last));
        for &level in &self.levels {
            let full = inside.start.div_ceil(BRANCHES)..inside.end / BRANCHES;
            if full.is_empty() {
                self.parts.extend(inside.clone().map(|v| level + v));
            } else {
                let (low, high) = (inside.start..full.start * BRANCHES, full.end * BRANCHES..inside.end);
                self.parts.extend(low.chain(high).map(|v| level + v));
            }
            if !inside.contains(&reached.0) {
                self.above.push(level + reached.0);
            }
            if reached.1 != reached.0 && !inside.contains(&reached.1) {
                self.above.push(level + reached.1);
            }
            inside = if full.is_empty() { 0..0 } else { full };
            reached = (reached.0 / BRANCHES, reached.1 / BRANCHES);
        }
    }
}

/// The lowest offset from `offset` on that is free of these ranges; ranges passed are dropped from the next query.
fn skip(ranges: &mut &[(usize, usize)], mut offset: usize, size: usize) -> usize {
    while let [(start, end), rest @ ..] = ranges
        && *start < offset + size
    {
        offset = offset.max(*end);
        *ranges = rest;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tensor::random::Lcg;

    #[test]
    fn the_lowest_free_bytes_are_found() {
        let mut random = Lcg::new(7);
        for steps in [1, 2, 8, 9, 63, 64, 65, 600] {
            let mut lists = Occupancy::new(steps);
            let mut placed: Vec<(usize, usize, usize, usize)> = Vec::new();
            for _ in 0..200 {
                let (size, first) = (1 + random.below(20), random.below(steps));
                let last = first + random.below(steps - first);
                let there = placed.iter().filter(|p| p.2 <= last && first <= p.3);
                // The lowest offset is 0 or the end of another buffer.
                let free = |&offset: &usize| there.clone().all(|p| p.1 <= offset || offset + size <= p.0);
                let lowest = std::iter::once(0).chain(there.clone().map(|p| p.1)).filter(free).min();
                let offset = lists.take(size, first, last);
                assert_eq!(Some(offset), lowest, "{steps} moments: {size} bytes from {first} to {last}");
                placed.push((offset, offset + size, first, last));
            }
        }
    }
}
