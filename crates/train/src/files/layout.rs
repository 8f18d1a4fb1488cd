//! How the tensors of a file are laid out, beside the states that they are.

use super::STATE_BUFFER_BYTES;
use std::borrow::Cow;

/// The outermost slices of a state in a file that has its last axis first.
pub(crate) struct Slices {
    /// How many there are.
    pub last: usize,
    /// Elements of each.
    pub rest: usize,
    /// How many are moved together.
    pub together: usize,
}

impl Slices {
    pub fn new(shape: &[usize], size: usize) -> Self {
        let last = shape.last().copied().unwrap_or(1).max(1);
        let rest = shape.iter().product::<usize>() / last;
        Self { last, rest, together: (STATE_BUFFER_BYTES / (rest * size).max(1)).clamp(1, last) }
    }

    /// The first of each group, and how many it has.
    pub fn groups(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (last, together) = (self.last, self.together);
        (0..last).step_by(together).map(move |first| (first, together.min(last - first)))
    }
}

/// The row of a state, `[.., last]`, that a place of one of the file's slices belongs to.
pub(crate) fn own_row(shape: &[usize], place: usize) -> usize {
    match *shape {
        // [in, height, width] there, [height, width, in] here.
        [height, width, inputs, _] => {
            let (channel, pixel) = (place / (height * width), place % (height * width));
            pixel * inputs + channel
        }
        _ => place,
    }
}

/// A state in a file.
pub(crate) struct Kept<'n> {
    pub state: usize,
    pub name: Cow<'n, str>,
    pub layout: Layout,
}

impl<'n> Kept<'n> {
    /// A state as it is.
    pub fn same(state: usize, name: &'n str) -> Self {
        Self { state, name: Cow::Borrowed(name), layout: Layout::Same }
    }
}

/// How a tensor of a file is laid out, beside the state's own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The same.
    Same,
    /// The state's last axis first, as PyTorch has its kernels; then, for images, the others in the order 2, 0, 1.
    LastFirst,
}

impl Layout {
    /// The shape in the file of a state of this shape.
    pub fn shape(self, own: &[usize]) -> Vec<usize> {
        match (self, own) {
            (Self::LastFirst, [h, w, i, o]) => vec![*o, *i, *h, *w],
            (Self::LastFirst, [i, o]) => vec![*o, *i],
            _ => own.to_vec(),
        }
    }
}
