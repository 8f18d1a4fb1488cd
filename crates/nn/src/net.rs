//! What layers build into.

use plimsoll_graph::{Builder, GraphError, Init, Role, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::ops::{Deref, DerefMut};

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: batch norm uses the batch's statistics and moves its running ones.
    Train,
    /// Evaluation and prediction: running statistics are used, nothing is written.
    Infer,
}

/// A graph in the making, with what layers need to know besides. Derefs to its [`Builder`].
#[derive(Debug)]
pub struct Net {
    builder: Builder,
    /// What the graph is built for.
    pub mode: Mode,
    /// Element type of parameters and activations.
    pub dtype: DType,
}

impl Net {
    /// An empty net.
    pub fn new(builder: Builder, mode: Mode, dtype: DType) -> Self {
        Self { builder, mode, dtype }
    }

    /// Runs `build` with `name` appended to the layer's path.
    pub fn scope<T>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let inner = self.builder.path(name);
        let outer = self.builder.set_layer(inner.into());
        let result = build(self);
        self.builder.set_layer(outer);
        result
    }

    /// A trained parameter of the current layer.
    pub fn parameter(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> ValueId {
        let ty = TensorType::new(self.dtype, shape);
        self.builder.state(name, ty, Role::Parameter, init)
    }

    /// A running statistic of the current layer.
    pub fn statistic(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> ValueId {
        let ty = TensorType::new(self.dtype, shape);
        self.builder.state(name, ty, Role::Statistic, init)
    }

    /// `x · kernel + bias` for the last axis of x, whatever axes come before it.
    pub fn linear(
        &mut self,
        x: ValueId,
        kernel: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let shape = self.shape(x).clone();
        let width = shape.last().copied().unwrap_or(1);
        let rows = self.reshape(x, [shape.elements() / width.max(1), width])?;
        let mut y = self.matmul(rows, kernel)?;
        if let Some(bias) = bias {
            y = self.add(y, bias)?;
        }
        let units = self.shape(kernel)[1];
        self.reshape(y, [&shape[..shape.rank().saturating_sub(1)], &[units]].concat())
    }

    /// The builder, to finish the graph.
    pub fn into_builder(self) -> Builder {
        self.builder
    }
}

impl Deref for Net {
    type Target = Builder;
    fn deref(&self) -> &Builder {
        &self.builder
    }
}

impl DerefMut for Net {
    fn deref_mut(&mut self) -> &mut Builder {
        &mut self.builder
    }
}
