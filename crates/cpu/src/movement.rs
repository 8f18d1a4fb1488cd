//! Copies under another order of axes.

use plimsoll_graph::op::Movement;
use plimsoll_tensor::Shape;

/// Most axes that a copy can have.
const MOST_AXES: usize = 8;

/// A copy of a tensor with its axes in another order or repeated: where each output element comes from.
#[derive(Clone, Debug)]
pub struct StridedCopy {
    extents: Vec<usize>,
    /// Input strides in elements, 0 along repeated axes.
    strides: Vec<usize>,
    element_bytes: usize,
}

impl StridedCopy {
    /// The copy that a movement of an input of this shape is; `None` for more than eight axes.
    pub fn new(op: &Movement, input: &Shape, output: &Shape, element_bytes: usize) -> Option<Self> {
        let strides = match op {
            Movement::Reshape(_) => output.strides(),
            Movement::Transpose(axes) => {
                let own = input.strides();
                axes.iter().map(|&a| own[a]).collect()
            }
            Movement::Broadcast(_) => input.strides_in(output),
        };
        (output.rank() <= MOST_AXES).then(|| Self { extents: output.to_vec(), strides, element_bytes })
    }

    /// Copies.
    ///
    /// # Safety
    /// Both pointers are good for the elements that the shapes say and do not overlap.
    pub unsafe fn run(&self, from: *const u8, to: *mut u8) {
        let rank = self.extents.len();
        let total: usize = self.extents.iter().product();
        let (inner, inner_stride) = match rank {
            0 => (1, 1),
            _ => (self.extents[rank - 1], self.strides[rank - 1]),
        };
        let mut index = [0; MOST_AXES];
        let mut start = 0;
        let size = self.element_bytes;
        for row in 0..total.checked_div(inner).unwrap_or(0) {
            for i in 0..inner {
                // SAFETY: inside the tensors, by the strides of their shapes.
                unsafe {
                    let source = from.add((start + i * inner_stride) * size);
                    std::ptr::copy_nonoverlapping(source, to.add((row * inner + i) * size), size);
                }
            }
            for axis in (0..rank.saturating_sub(1)).rev() {
                index[axis] += 1;
                start += self.strides[axis];
                if index[axis] < self.extents[axis] {
                    break;
                }
                start -= self.strides[axis] * self.extents[axis];
                index[axis] = 0;
            }
        }
    }
}
