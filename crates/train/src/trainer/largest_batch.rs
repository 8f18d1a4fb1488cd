//! The largest batch that trains under a line.

use crate::{TrainError, Trainer};
use plimsoll_data::Dataset;

/// The largest batch asked about where the data does not say how many examples it has.
const LARGEST: usize = 1 << 24;

impl Trainer {
    /// The largest batch that trains under the line, of the examples that the data has; 0 if not one fits. It is planned whole
    /// and, where the model allows, in micro-batches; with [`Trainer::micro_batches`], in so many. On several devices it is one of which
    /// each takes the same number of blocks. Nothing is run.
    ///
    /// ```
    /// # use plimsoll_data::datasets;
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_train::Trainer;
    /// let data = datasets::mnist()?;
    /// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).line(4 << 20);
    /// let (whole, split) = (trainer.clone().micro_batches(1).largest_batch(&data)?, trainer.largest_batch(&data)?);
    /// assert!(0 < whole && whole < split);
    /// assert!(trainer.batch(split).plan(&data).is_ok());
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn largest_batch(&self, data: &Dataset) -> Result<usize, TrainError> {
        // A step has at least one micro-batch for each accumulated batch.
        let batches = self.accumulate.max(1);
        let most = data.train.len().unwrap_or(LARGEST) / batches;
        let fits = |batch: usize, parts: Option<usize>| {
            let trainer = self.clone().batch(batch);
            let trainer = Self { micro_batches: parts.or(trainer.micro_batches), ..trainer };
            trainer.fits(data).map(|(fits, _)| fits)
        };
        // Every device takes whole blocks.
        let devices = self.device_count();
        let block = devices * self.block();
        if let Some(parts) = self.micro_batches.filter(|parts| *parts > batches) {
            let unit = parts * block;
            return Ok(unit * largest_that(most / unit, |units| fits(units * unit, Some(parts)))?);
        }
        let unit = if devices == 1 { 1 } else { block };
        let whole = unit * largest_that(most / unit, |units| fits(units * unit, Some(batches)))?;
        let splits =
            self.micro_batches.is_none() && 2 * block <= most && self.clone().batch(2 * block).can_split()?;
        if !splits {
            return Ok(whole);
        }
        // The most micro-batches need the least memory: one block of examples each. Several devices have to agree on them.
        let parts = |blocks: usize| (devices == 1).then_some(blocks * batches);
        let blocks = largest_that(most / block, |blocks| fits(blocks * block, parts(blocks)))?;
        Ok(whole.max(blocks * block))
    }
}

/// The largest number up to `most` that fits, where all smaller ones do; zero if none does.
pub fn largest_that<E>(most: usize, mut fits: impl FnMut(usize) -> Result<bool, E>) -> Result<usize, E> {
    let (mut low, mut high) = (0, 1);
    while high <= most && fits(high)? {
        low = high;
        high *= 2;
    }
    let mut high = high.min(most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}
