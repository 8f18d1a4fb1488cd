//! What decoding a picture takes, known from its header, and how workers share it.

use super::{Decode, Window};
use crate::DataError;
use crate::core::budget::zeroed;
use fast_image_resize::Resizer;
use std::sync::{Mutex, PoisonError};

/// The most memory of decoding one picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes of decoded pixels.
    pub pixels: usize,
    /// Heap of the decoder and of the resizer.
    pub heap: usize,
}

impl Need {
    /// What suffices for both.
    pub fn max(self, other: Self) -> Self {
        Self { pixels: self.pixels.max(other.pixels), heap: self.heap.max(other.heap) }
    }

    fn covers(self, other: Self) -> bool {
        self.max(other) == self
    }

    fn total(self) -> usize {
        self.pixels.saturating_add(self.heap)
    }
}

/// The memory that every worker has for pictures, and that of one picture at a time that takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub usual: Need,
    pub largest: Need,
}

/// Of the work on all pictures, the part of those that take turns: so little that eight workers do not wait for each other.
/// One picture alone may be more, because two workers never decode it at once.
const LARGE_SHARE: usize = 8;

impl Needs {
    /// For pictures with these needs, and others that take `more` at most.
    pub fn of(mut pictures: Vec<Need>, more: Need) -> Self {
        let most = |pictures: &[Need]| pictures.iter().copied().fold(Need::default(), Need::max);
        let largest = most(&pictures).max(more);
        pictures.sort_unstable_by_key(|need| need.total());
        let sum = pictures.iter().fold(0usize, |sum, need| sum.saturating_add(need.total()));
        let mut left = pictures.last().map_or(0, |need| need.total().max(sum / LARGE_SHARE));
        while let Some(rest) = pictures.last().and_then(|need| left.checked_sub(need.total())) {
            left = rest;
            pictures.pop();
        }
        let usual = most(&pictures);
        // Two workers save nothing by taking turns at what is not twice as large.
        let alike = pictures.is_empty() || largest.total() <= usual.total().saturating_mul(2);
        Self { usual: if alike { largest } else { usual }, largest }
    }

    /// Heap of this many workers at once: one of them may have its turn, with pixels of its own.
    pub fn heap_bytes(&self, workers: usize) -> usize {
        let turn = match self.usual.covers(self.largest) {
            true => 0,
            false => self.largest.total().saturating_sub(self.usual.heap),
        };
        workers.saturating_mul(self.usual.heap).saturating_add(turn)
    }
}

/// What stages that never run at the same time, like those of training and of testing, share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Held while a picture is decoded that takes more than the usual.
    turn: Mutex<()>,
    /// One for each concurrent worker; resizers keep their buffers.
    resizers: Mutex<Vec<Resizer>>,
}

/// The memory that one picture is decoded in.
pub(crate) struct Workspace<'s> {
    pub pixels: &'s mut [u8],
    /// The window after resizing, and a line of it.
    pub window: &'s mut [u8],
    pub resizer: &'s mut Resizer,
}

impl Decode {
    /// Runs `work` in a worker's own memory, or, where the picture takes more than the usual, in memory that exists only while
    /// it is this picture's turn. A picture that takes more than the largest is bad.
    pub(super) fn in_memory<T>(
        &self,
        need: Need,
        scratch: &mut [u8],
        work: impl FnOnce(Workspace<'_>) -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
            mutex.lock().unwrap_or_else(PoisonError::into_inner)
        }
        let Needs { usual, largest } = self.needs();
        let (pixels, window) = scratch.split_at_mut(usual.pixels);
        if usual.covers(need) {
            let mut resizer = lock(&self.shared.resizers).pop().unwrap_or_default();
            let done = work(Workspace { pixels, window, resizer: &mut resizer });
            lock(&self.shared.resizers).push(resizer);
            return done;
        }
        if !largest.covers(need) {
            let (found, cap) = (need.total() as u64, largest.total() as u64);
            return Err(DataError::OverCap { what: "bytes to decode: a picture", found, cap });
        }
        let _turn = lock(&self.shared.turn);
        let mut pixels = zeroed("the pixels of a large picture", need.pixels as u64)?;
        work(Workspace { pixels: &mut pixels, window, resizer: &mut Resizer::new() })
    }

    /// Bytes that resizing by this scale takes: what lies between its two passes, and the weights of every pixel.
    pub(super) fn resizer_bytes(&self, scale: f64) -> usize {
        if self.shorter_side.is_none() {
            return 0;
        }
        let ([height, width], radius) = (self.size, scale.max(1.0).ceil() as usize);
        let window = Window { corner: [0.0; 2], scale, size: self.size };
        let between = window.bytes_between_passes(self.channels);
        // A weight is an f64, and then an i16.
        let weights = (2 * radius + 1).saturating_mul(10).saturating_add(64);
        between.saturating_add((height + width).saturating_mul(weights)).saturating_add(1 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(pixels: usize) -> Need {
        Need { pixels, heap: 0 }
    }

    #[test]
    fn only_few_pictures_far_above_the_others_take_turns() {
        let of = |pictures: &[usize]| {
            let needs = Needs::of(pictures.iter().map(|pixels| need(*pixels)).collect(), Need::default());
            (needs.usual.pixels, needs.largest.pixels)
        };
        assert_eq!(of(&[[10; 100].as_slice(), &[60, 60]].concat()), (10, 60));
        assert_eq!(of(&[[10; 100].as_slice(), &[1000]].concat()), (10, 1000));
        // Too much of the work, and not far above.
        assert_eq!(of(&[[10; 100].as_slice(), &[1000, 1000]].concat()), (1000, 1000));
        assert_eq!(of(&[[10; 100].as_slice(), &[20]].concat()), (20, 20));
        assert_eq!(of(&[10]), (10, 10));
        assert_eq!(of(&[]), (0, 0));
        // What was not seen may be larger, and then takes turns.
        let needs = Needs::of(vec![need(10); 5], need(50));
        assert_eq!((needs.usual, needs.largest), (need(10), need(50)));
        assert_eq!((needs.heap_bytes(3), Needs { largest: need(10), ..needs }.heap_bytes(3)), (50, 0));
    }
}
