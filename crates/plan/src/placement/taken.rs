//! Which bytes are taken when, and the lowest ones that are free for some time.
//!
//! A tree over time: the moments are its leaves, a vertex stands for the moments below it. Bytes taken for a time are
//! noted at the vertices that make up exactly that time, and at all that the time reaches into. Bytes that touch are
//! one range, so that the answer takes few leaps however many blocks there are.

/// Ranges of bytes in order, as (start, end); no two touch.
#[derive(Clone, Default)]
struct Ranges(Vec<(usize, usize)>);

impl Ranges {
    fn add(&mut self, start: usize, end: usize) {
        let from = self.0.partition_point(|r| r.1 < start);
        let touching = self.0[from..].iter().take_while(|r| r.0 <= end).count();
        match touching {
            0 => self.0.insert(from, (start, end)),
            _ => {
                let last = from + touching - 1;
                self.0[from] = (start.min(self.0[from].0), end.max(self.0[last].1));
                self.0.drain(from + 1..=last);
            }
        }
    }

    /// The lowest offset from `floor` on with so many free bytes.
    fn lowest(&self, mut floor: usize, size: usize) -> usize {
        let from = self.0.partition_point(|r| r.1 <= floor);
        for &(start, end) in &self.0[from..] {
            if start >= floor + size {
                break;
            }
            floor = end;
        }
        floor
    }
}

/// Bytes taken at the moments `0..moments`.
pub(super) struct Taken {
    /// A power of two; vertex `v` has the children `2v` and `2v + 1`, and the leaf of moment `t` is `leaves + t`.
    leaves: usize,
    /// By vertex: bytes of the blocks whose time it is a part of.
    all: Vec<Ranges>,
    /// By vertex: the same, and of every vertex below it.
    any: Vec<Ranges>,
    /// The parts of a time, and the vertices above them.
    inside: Vec<usize>,
    across: Vec<usize>,
}

impl Taken {
    pub fn new(moments: usize) -> Self {
        let leaves = moments.next_power_of_two();
        let empty = vec![Ranges::default(); 2 * leaves];
        Self { leaves, all: empty.clone(), any: empty, inside: Vec::new(), across: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.all.iter_mut().chain(&mut self.any).for_each(|ranges| ranges.0.clear());
    }

    /// Takes the lowest bytes that are free from `first` to `last`, and returns where they start.
    pub fn take(&mut self, size: usize, first: usize, last: usize) -> usize {
        self.divide(first, last);
        // What is there at one of these moments has a part that is inside one of this time's, or above it.
        let all = self.across.iter().map(|&v| &self.all[v]);
        let any = self.inside.iter().map(|&v| &self.any[v]);
        let ranges = all.chain(any);
        let mut floor = 0;
        loop {
            let higher = ranges.clone().fold(floor, |floor, ranges| ranges.lowest(floor, size));
            if higher == floor {
                break;
            }
            floor = higher;
        }
        let end = floor + size;
        for &vertex in &self.inside {
            self.all[vertex].add(floor, end);
            self.any[vertex].add(floor, end);
        }
        self.across.iter().for_each(|&vertex| self.any[vertex].add(floor, end));
        floor
    }

    /// Finds the fewest vertices that stand for exactly the moments from `first` to `last`, and those above them.
    fn divide(&mut self, first: usize, last: usize) {
        self.inside.clear();
        self.across.clear();
        // The vertices of a level between `low` and `high` are inside.
        let (mut low, mut high) = (self.leaves + first, self.leaves + last + 1);
        while low < high {
            if low % 2 == 1 {
                self.inside.push(low);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.inside.push(high);
            }
            (low, high) = (low / 2, high / 2);
        }
        // A vertex above one of these has a moment outside, so it is above the first or the last moment as well.
        let (mut low, mut high) = (self.leaves + first, self.leaves + last);
        let mut width = 1;
        while low > 1 {
            (low, high, width) = (low / 2, high / 2, width * 2);
            let begin = |vertex: usize| vertex * width - self.leaves;
            if begin(low) < first || begin(low) + width > last + 1 {
                self.across.push(low);
            }
            if high != low && begin(high) + width > last + 1 {
                self.across.push(high);
            }
        }
    }
}
