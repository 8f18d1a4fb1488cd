//! A cheap fingerprint of data, to tell whether it is still what a run began with.

use super::Pipeline;
use crate::{Cursor, DataError, Record, Source};

/// Examples that are hashed at most.
const MOST_EXAMPLES: usize = 4096;
/// Bytes of examples that are hashed at most.
const MOST_BYTES: usize = 16 << 20;
/// Records of a stream that are hashed: its first ones, because a stream has no others without reading all before them.
const MOST_STREAMED: usize = 64;

impl Pipeline {
    /// A hash of examples as this pipeline gives them: of all, or, where there are more than 4096 or 16 MiB of them, of so
    /// many spread evenly from the first to the last; of a stream the first 64. Where files lie and when they were written
    /// does not matter. A change to an example that is not hashed is not noticed.
    ///
    /// ```
    /// use plimsoll_data::{OpenOptions, open};
    /// let data = open("mnist", &OpenOptions::default())?;
    /// assert_eq!(data.train.fingerprint()?, data.train.fingerprint()?);
    /// assert_ne!(data.train.fingerprint()?, data.test.fingerprint()?);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn fingerprint(&self) -> Result<String, DataError> {
        let hash = match self.source() {
            Some(source) => of_source(source),
            None => self.of_stream()?,
        };
        Ok(format!("{:016x}", hash.0))
    }

    fn of_stream(&self) -> Result<Hash, DataError> {
        let mut hash = Hash::default();
        let mut batches = self.clone().workers(0).batch(1).start_epoch(Cursor::default())?;
        for _ in 0..MOST_STREAMED {
            let Some(batch) = batches.next()? else { break };
            (0..).map_while(|i| batch.input(i)).for_each(|input| hash.add(input));
            hash.add(batch.labels());
        }
        Ok(hash)
    }
}

/// Hashes examples that are spread evenly. One that cannot be read counts as bad, whatever is wrong with it.
fn of_source(source: &dyn Source) -> Hash {
    let (len, capacity) = (source.len(), source.schema().capacity());
    let count = len.min(MOST_EXAMPLES).min((MOST_BYTES / capacity.max(1)).max(1));
    let (mut bytes, mut scratch) = (vec![0; capacity], vec![0; source.scratch_bytes()]);
    let mut hash = Hash::default();
    for i in 0..count {
        let index =
            if count == 1 { 0 } else { (i as u128 * (len - 1) as u128 / (count - 1) as u128) as usize };
        let mut record = Record::over(source.schema(), &mut bytes);
        match source.read(index, &mut record, &mut scratch) {
            Ok(()) => (0..record.columns()).for_each(|column| hash.add(record.bytes(column))),
            Err(_) => hash.add(b"bad"),
        }
    }
    hash
}

/// A hash of pieces and their lengths, eight bytes at a time; not cryptographic.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0x706c_696d_736f_6c6c)
    }
}

impl Hash {
    fn add(&mut self, piece: &[u8]) {
        self.mix(piece.len() as u64);
        for chunk in piece.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Memory, Pipeline};
    use plimsoll_tensor::Tensor;

    /// Examples of one number each, which is its index plus what `change` adds.
    fn fingerprint(count: usize, change: impl Fn(usize) -> usize) -> String {
        let numbers: Vec<f64> = (0..count).map(|i| (i + change(i)) as f64).collect();
        let tensor =
            |values: &[f64]| Tensor::from_f64(format!("f32[{count}]").parse().unwrap(), values).unwrap();
        let source = Memory::new(vec![tensor(&numbers)], tensor(&vec![0.0; count]), None).unwrap();
        Pipeline::new(source).fingerprint().unwrap()
    }

    #[test]
    fn a_change_to_a_hashed_example_changes_the_fingerprint() {
        for count in [100, 100_000] {
            let whole = fingerprint(count, |_| 0);
            assert_eq!(whole, fingerprint(count, |_| 0));
            assert_ne!(whole, fingerprint(count, |_| 1));
            // The first and the last are hashed, however many there are.
            for changed in [0, count - 1] {
                assert_ne!(whole, fingerprint(count, |i| usize::from(i == changed)), "{changed} of {count}");
            }
        }
        assert_ne!(fingerprint(100, |_| 0), fingerprint(100, |i| usize::from(i == 50)));
    }
}
