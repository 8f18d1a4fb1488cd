//! The layout of a tensor in a file, relative to the state's own.

use super::STATE_BUFFER_BYTES;
use std::borrow::Cow;

/// A state under its name and in its layout in a file.
pub(crate) struct SavedTensor<'n> {
    pub state: usize,
    pub name: Cow<'n, str>,
    pub layout: Layout,
}

impl<'n> SavedTensor<'n> {
    /// A state in its own layout.
    pub fn same(state: usize, name: &'n str) -> Self {
        Self { state, name: Cow::Borrowed(name), layout: Layout::Same }
    }
}

/// The layout of a tensor in a file, relative to the state's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The same.
    Same,
    /// PyTorch's kernels: the state's last axis (outputs) comes first. `[h, w, i, o]` is `[o, i, h, w]` there.
    OutputFirst,
    /// Only the elements that the mask in another state keeps, in order, as one axis.
    Kept {
        /// The mask's state.
        mask: usize,
        /// How many it keeps.
        count: usize,
    },
}

impl Layout {
    /// The shape in the file of a state of this shape.
    pub fn shape(self, own: &[usize]) -> Vec<usize> {
        match (self, own) {
            (Self::OutputFirst, [h, w, i, o]) => vec![*o, *i, *h, *w],
            (Self::OutputFirst, [i, o]) => vec![*o, *i],
            (Self::Kept { count, .. }, _) => vec![count],
            _ => own.to_vec(),
        }
    }
}

/// The outermost slices of an [`Layout::OutputFirst`] tensor, in groups of a bounded size. The slices of a group are neighbours
/// in the state's last axis.
pub(super) struct Slices {
    /// Slices of the tensor: the length of the state's last axis.
    pub count: usize,
    /// Elements of each.
    pub elements: usize,
    /// Slices of a group.
    pub per_group: usize,
}

impl Slices {
    pub fn new(shape: &[usize], element_bytes: usize) -> Self {
        let count = shape.last().copied().unwrap_or(1).max(1);
        let elements = shape.iter().product::<usize>() / count;
        let fit = STATE_BUFFER_BYTES / (elements * element_bytes).max(1);
        Self { count, elements, per_group: fit.clamp(1, count) }
    }

    /// The first slice of each group, and how many it has.
    pub fn groups(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (count, per_group) = (self.count, self.per_group);
        (0..count).step_by(per_group).map(move |first| (first, per_group.min(count - first)))
    }
}

/// The row of a state, `[.., last]`, that an element of one of the file's slices belongs to.
pub(super) fn state_row(shape: &[usize], element: usize) -> usize {
    match *shape {
        // [in, height, width] in the file, [height, width, in] in the state.
        [height, width, inputs, _] => {
            let (channel, pixel) = (element / (height * width), element % (height * width));
            pixel * inputs + channel
        }
        _ => element,
    }
}

/// The inverse of [`state_row`]: the element of a slice that a row of a state belongs to.
pub(super) fn file_element(shape: &[usize], row: usize) -> usize {
    match *shape {
        [height, width, inputs, _] => {
            let (pixel, channel) = (row / inputs.max(1), row % inputs.max(1));
            channel * height * width + pixel
        }
        _ => row,
    }
}
