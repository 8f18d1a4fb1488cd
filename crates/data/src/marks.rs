//! Where records start, in memory that does not grow with them.

/// The most places that are kept: half a MiB of them.
const MOST: usize = 1 << 16;

/// Where every so many-th record starts. A longer file has its places further apart, and who looks for a record reads over
/// the ones before it.
#[derive(Debug)]
pub(crate) struct Marks {
    places: Vec<u64>,
    every: usize,
    len: usize,
    most: usize,
}

impl Marks {
    pub fn new() -> Self {
        Self::up_to(MOST)
    }

    /// With at most so many places.
    pub fn up_to(most: usize) -> Self {
        Self { places: Vec::new(), every: 1, len: 0, most }
    }

    /// Says where the next record starts.
    pub fn push(&mut self, place: u64) {
        if self.len.is_multiple_of(self.every) && self.places.len() == self.most {
            let mut number = 0;
            self.places.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
        if self.len.is_multiple_of(self.every) {
            self.places.push(place);
        }
        self.len += 1;
    }

    /// Records there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The last place known before a record, and how many records lie between.
    pub fn find(&self, index: usize) -> (u64, usize) {
        (self.places[index / self.every], index % self.every)
    }

    /// Records from one place to the next.
    pub fn every(&self) -> usize {
        self.every
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u64>()
    }

    /// Gives back what was reserved and not used.
    pub fn finish(mut self) -> Self {
        self.places.shrink_to_fit();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_found_and_memory_stays() {
        for count in [1, 100, MOST, MOST + 1, 3 * MOST + 7, 9 * MOST] {
            let mut marks = Marks::new();
            (0..count).for_each(|i| marks.push(i as u64 * 10));
            assert_eq!(marks.len(), count);
            assert!(marks.bytes() <= MOST * 8, "{}", marks.bytes());
            for index in (0..count).step_by(997).chain([count - 1]) {
                let (place, skip) = marks.find(index);
                assert_eq!(place / 10 + skip as u64, index as u64);
            }
        }
    }
}
