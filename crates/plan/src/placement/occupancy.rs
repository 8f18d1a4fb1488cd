//! Which bytes are taken when, and the lowest ones that are free for some time.
//!
//! A tree over time: the moments are its leaves, and a vertex stands for the moments below it. A time is made up of a few
//! vertices; the bytes of a block are noted there, and at all vertices above. Bytes that touch are one range, so that the
//! answer takes few leaps however many blocks there are.

/// Vertices below a vertex. More would make more of the vertices that make up a time, fewer more levels.
const BRANCHES: usize = 8;

/// Lists of ranges that are looked at together without taking memory.
const FEW: usize = 40;

/// Ranges of bytes in order, as (start, end); no two touch.
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

/// Bytes taken by moment.
pub(super) struct Occupancy {
    /// Where the vertices of each level begin, the leaves first.
    levels: Vec<usize>,
    leaves: usize,
    /// By vertex: bytes of the blocks whose time it is a part of; not of leaves, which have no vertices below.
    all: Vec<Ranges>,
    /// By vertex: the same, and of every vertex below it.
    any: Vec<Ranges>,
    /// The parts of a time, and the vertices above them.
    parts: Vec<usize>,
    above: Vec<usize>,
}

impl Occupancy {
    /// Nothing taken at the moments `0..moments`.
    pub fn new(moments: usize) -> Self {
        let mut levels = vec![0];
        let (mut width, mut count) = (moments, moments);
        while width > 1 {
            levels.push(count);
            width = width.div_ceil(BRANCHES);
            count += width;
        }
        let empty = vec![Ranges::default(); count];
        Self { levels, leaves: moments, all: empty.clone(), any: empty, parts: Vec::new(), above: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.all.iter_mut().chain(&mut self.any).for_each(|ranges| ranges.0.clear());
    }

    /// Takes the lowest bytes that are free from `first` to `last`, and returns where they start.
    pub fn take(&mut self, size: usize, first: usize, last: usize) -> usize {
        self.divide(first, last);
        // What is there in this time has a part that is one of this time's, or below or above one.
        let all = self.above.iter().map(|&v| &self.all[v].0[..]);
        let any = self.parts.iter().map(|&v| &self.any[v].0[..]);
        let lists = all.chain(any).filter(|ranges| !ranges.is_empty());
        let mut few: [&[(usize, usize)]; FEW] = [&[]; FEW];
        let mut many = Vec::new();
        let taken = if self.above.len() + self.parts.len() <= FEW {
            let count = few.iter_mut().zip(lists).map(|(place, ranges)| *place = ranges).count();
            &mut few[..count]
        } else {
            many.extend(lists);
            &mut many[..]
        };
        let (mut floor, mut before, mut left) = (0, None, taken.len());
        while before != Some(floor) {
            before = Some(floor);
            let mut with_more = 0;
            for at in 0..left {
                let mut ranges = taken[at];
                floor = leap(&mut ranges, floor, size);
                taken[with_more] = ranges;
                with_more += usize::from(!ranges.is_empty());
            }
            left = with_more;
        }
        for &vertex in &self.parts {
            if vertex >= self.leaves {
                self.all[vertex].add(floor, floor + size);
            }
            self.any[vertex].add(floor, floor + size);
        }
        self.above.iter().for_each(|&vertex| self.any[vertex].add(floor, floor + size));
        floor
    }

    /// Finds the fewest vertices that stand for exactly the moments from `first` to `last`, and those above them.
    fn divide(&mut self, first: usize, last: usize) {
        self.parts.clear();
        self.above.clear();
        // The vertices of a level that are inside, and the first and the last that the time reaches into.
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

/// The lowest offset from `floor` on that is free of these ranges; those passed are left out of the next search.
fn leap(ranges: &mut &[(usize, usize)], mut floor: usize, size: usize) -> usize {
    while let [(start, end), rest @ ..] = ranges
        && *start < floor + size
    {
        floor = floor.max(*end);
        *ranges = rest;
    }
    floor
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_tensor::random::Lcg;

    #[test]
    fn the_lowest_free_bytes_are_found() {
        let mut random = Lcg::new(7);
        for moments in [1, 2, 8, 9, 63, 64, 65, 600] {
            let mut taken = Occupancy::new(moments);
            let mut placed: Vec<(usize, usize, usize, usize)> = Vec::new();
            for _ in 0..200 {
                let (size, first) = (1 + random.below(20), random.below(moments));
                let last = first + random.below(moments - first);
                let there = placed.iter().filter(|p| p.2 <= last && first <= p.3);
                // The lowest place is the bottom or the end of another.
                let free = |&offset: &usize| there.clone().all(|p| p.1 <= offset || offset + size <= p.0);
                let lowest = std::iter::once(0).chain(there.clone().map(|p| p.1)).filter(free).min();
                let offset = taken.take(size, first, last);
                assert_eq!(Some(offset), lowest, "{moments} moments: {size} bytes from {first} to {last}");
                placed.push((offset, offset + size, first, last));
            }
        }
    }
}
