//! The first values of an imported model's states, read from its file.

use super::OnnxModel;
use crate::onnx::held::map;
use crate::onnx::read::StoredTensor;
use plimsoll_nn::InitialValues;
use plimsoll_tensor::Shape;
use std::io;

/// Elements that are at most this far from each other in the file are read at once.
const GAP_BYTES: u64 = 4 << 10;
/// Bytes that are read at once at most.
const SPAN_BYTES: u64 = 256 << 10;
/// What reading takes: a span, and the places of the elements of a piece of a state.
const READING_BYTES: usize = SPAN_BYTES as usize + (512 << 10);

/// Where a state's first values are.
#[derive(Clone, Debug)]
pub(super) struct Source {
    tensor: StoredTensor,
    /// Axis i of the state is axis `order[i]` of the tensor; empty: the same order.
    order: Vec<usize>,
}

impl Source {
    pub fn new(tensor: StoredTensor, order: Vec<usize>) -> Self {
        Self { tensor, order }
    }

    /// The tensor's element that is this element of the state.
    fn element(&self, mut element: usize) -> usize {
        let dims = &self.tensor.dims;
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        let mut at = 0;
        for &axis in self.order.iter().rev() {
            at += (element % dims[axis].max(1)) * strides[axis];
            element /= dims[axis].max(1);
        }
        at
    }
}

/// The structure is many small pieces, some of them on pages that what is freed after the import leaves half empty: the part of their bytes
/// (1/4) that is lost so. Runs of a gpt of 24 layers held 41.1 to 41.4 MB of 41.3 planned without it.
const HOLES: usize = 4;

impl InitialValues for OnnxModel {
    fn held_bytes(&self) -> usize {
        let sources =
            map(&self.sources, |source| source.tensor.held_bytes() + size_of_val(&source.order[..]));
        let pieces = self.file.held_bytes() + sources;
        pieces + pieces / HOLES + READING_BYTES
    }

    fn has(&self, state: &str, shape: &Shape) -> bool {
        self.sources.get(state).is_some_and(|source| source.tensor.elements() == shape.elements())
    }

    fn read(&self, state: &str, offset: usize, into: &mut [u8]) -> io::Result<()> {
        const SIZE: usize = size_of::<f32>();
        let source = self.sources.get(state).ok_or(io::ErrorKind::NotFound)?;
        if source.order.is_empty() {
            return self.file.read(&source.tensor, offset as u64, into);
        }
        let first = offset / SIZE;
        let mut places: Vec<(u64, u32)> =
            (0..into.len() / SIZE).map(|i| (source.element(first + i) as u64, i as u32)).collect();
        places.sort_unstable();
        let mut span = Vec::new();
        let mut left = &places[..];
        while let Some(&(start, _)) = left.first() {
            let at = |place: u64| place * SIZE as u64;
            let close = |pair: &[(u64, u32)]| {
                at(pair[1].0 - pair[0].0) <= GAP_BYTES && at(pair[1].0 - start) < SPAN_BYTES
            };
            let count = 1 + left.windows(2).take_while(|pair| close(pair)).count();
            let (near, rest) = left.split_at(count);
            let end = near[count - 1].0;
            span.resize(at(end - start) as usize + SIZE, 0);
            self.file.read(&source.tensor, at(start), &mut span)?;
            for &(place, element) in near {
                let from = at(place - start) as usize;
                into[element as usize * SIZE..][..SIZE].copy_from_slice(&span[from..from + SIZE]);
            }
            left = rest;
        }
        Ok(())
    }
}
