//! Images `[examples, height, width, channels]` and attention.

use super::Builder;
use crate::op::{Attention, Conv, Epilogue, Geometry, Pool, Resize, ResizeMode, Windows};
use crate::{GraphError, Op, ValueId};

impl Builder {
    /// Convolution of an image with a kernel `[height, width, channels in / groups, channels out]`.
    pub fn conv2d(
        &mut self,
        x: ValueId,
        kernel: ValueId,
        geometry: Geometry,
        groups: usize,
    ) -> Result<ValueId, GraphError> {
        let op = Conv::Forward { geometry, groups, epilogue: Epilogue::default(), output: None };
        self.one(Op::Conv(op), &[x, kernel])
    }

    /// Transposed convolution to an image of these extents, which the convolution would turn into x. The kernel is
    /// `[height, width, channels out, channels in]`.
    pub fn conv_transpose2d(
        &mut self,
        x: ValueId,
        kernel: ValueId,
        geometry: Geometry,
        image: [usize; 2],
    ) -> Result<ValueId, GraphError> {
        self.one(Op::Conv(Conv::InputGrad { geometry, groups: 1, image, output: None }), &[x, kernel])
    }

    /// The largest element of each window.
    pub fn max_pool(&mut self, x: ValueId, windows: Windows) -> Result<ValueId, GraphError> {
        self.one(Op::Pool(Pool::Max { windows }), &[x])
    }

    /// The mean of each window; with `count_padding`, padding counts as zeros.
    pub fn average_pool(
        &mut self,
        x: ValueId,
        windows: Windows,
        count_padding: bool,
    ) -> Result<ValueId, GraphError> {
        self.one(Op::Pool(Pool::Average { windows, count_padding }), &[x])
    }

    /// An image with another height and width.
    pub fn resize(
        &mut self,
        x: ValueId,
        mode: ResizeMode,
        output: [usize; 2],
    ) -> Result<ValueId, GraphError> {
        self.one(Op::Resize(Resize::Forward { mode, output }), &[x])
    }

    /// Scaled dot-product attention of q `[examples, queries, heads, width]` to k and v
    /// `[examples, keys, key heads, width]`. A mask (bool, true: attend) is broadcast to `[examples, heads, queries, keys]`.
    pub fn attention(
        &mut self,
        [q, k, v]: [ValueId; 3],
        mask: Option<ValueId>,
        causal: bool,
    ) -> Result<ValueId, GraphError> {
        self.attend([q, k, v], mask, causal, None)
    }

    /// Causal [`Builder::attention`] in which a position sees at most the last `window` ones, its own among them.
    pub fn window_attention(
        &mut self,
        qkv: [ValueId; 3],
        mask: Option<ValueId>,
        window: usize,
    ) -> Result<ValueId, GraphError> {
        self.attend(qkv, mask, true, Some(window))
    }

    fn attend(
        &mut self,
        qkv: [ValueId; 3],
        mask: Option<ValueId>,
        causal: bool,
        window: Option<usize>,
    ) -> Result<ValueId, GraphError> {
        let inputs: Vec<ValueId> = qkv.into_iter().chain(mask).collect();
        self.one(Op::Attention(Attention::Forward { causal, window, masked: mask.is_some() }), &inputs)
    }

    /// Rotary position embeddings of `[examples, positions, heads, width]`; 10 000 is the usual base.
    pub fn rotary(&mut self, x: ValueId, base: f64) -> Result<ValueId, GraphError> {
        self.one(Op::Attention(Attention::Rotary { base, inverse: false, start: 0 }), &[x])
    }
}
