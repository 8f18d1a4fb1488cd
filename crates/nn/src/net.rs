//! The graph under construction that layers add to.

use plimsoll_graph::op::{Distribution, Random, Unary};
use plimsoll_graph::{Builder, GraphError, Init, Op, Role, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The name of the input that holds seed and step, in graphs that draw random numbers.
pub const RANDOM: &str = "random";
/// The name of the input that numbers the batch's examples, in graphs that draw random numbers.
pub const EXAMPLES: &str = "examples";

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: batch norm uses the batch's statistics and updates the running ones, dropout drops.
    Train,
    /// Evaluation and prediction: running statistics are used, nothing is dropped, nothing is written.
    Infer,
}

/// A graph under construction with the context that layers need: mode, element type, random streams and penalties. Derefs
/// to its [`Builder`].
#[derive(Debug)]
pub struct Net {
    builder: Builder,
    /// What the graph is built for.
    pub mode: Mode,
    /// Element type of parameters and activations.
    pub dtype: DType,
    /// Whether recurrences are unrolled, not one op over all positions.
    pub unrolls: bool,
    /// Output channels of layers, by name, that differ from those that the model gives them ([`crate::Narrow`]).
    pub widths: Arc<BTreeMap<String, usize>>,
    /// The inputs [`RANDOM`] and [`EXAMPLES`], once a layer has drawn random numbers.
    random: Option<[ValueId; 2]>,
    /// How often each layer has drawn.
    draws: BTreeMap<String, usize>,
    penalties: Vec<ValueId>,
}

/// L1 and L2 penalties on a parameter, added to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalty {
    /// Factor of the sum of magnitudes.
    pub l1: f64,
    /// Factor of the sum of squares.
    pub l2: f64,
}

impl Net {
    /// An empty net.
    pub fn new(builder: Builder, mode: Mode, dtype: DType) -> Self {
        let (random, draws, penalties) = (None, BTreeMap::new(), Vec::new());
        let widths = Arc::default();
        Self { builder, mode, dtype, unrolls: false, widths, random, draws, penalties }
    }

    /// Runs `build` with `name` appended to the layer's path.
    pub fn scope<T>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let inner = self.builder.path(name);
        let outer = self.builder.set_layer(inner.into());
        let result = build(self);
        self.builder.set_layer(outer);
        result
    }

    /// The output channels of the current layer, which its model gives so many.
    pub(crate) fn channels(&self, given: usize) -> usize {
        self.widths.get(&**self.layer()).copied().unwrap_or(given)
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

    /// Random numbers of this shape for every example: a function of the run's seed, the step, the layer's name and how
    /// often it has drawn, the example and the element.
    pub fn draw(
        &mut self,
        distribution: Distribution,
        shape: impl Into<Shape>,
    ) -> Result<ValueId, GraphError> {
        let examples = self.graph().examples;
        let inputs = *self.random.get_or_insert_with(|| {
            let key = self.builder.setting(RANDOM, TensorType::new(DType::I64, [2]));
            [key, self.builder.batch_input(EXAMPLES, TensorType::new(DType::I32, [examples]))]
        });
        let layer = self.layer().to_string();
        let count = self.draws.entry(layer.clone()).or_default();
        let stream = if *count == 0 { layer } else { format!("{layer}#{count}") };
        *count += 1;
        self.one(Op::Random(Random { distribution, stream, shape: shape.into() }), &inputs)
    }

    /// Adds a scalar to the training loss. For a mean over the batch use [`Builder::mean`] over axis 0, not its extent, which
    /// is that of a micro-batch.
    pub fn add_penalty(&mut self, value: ValueId) -> Result<(), GraphError> {
        if self.shape(value).rank() != 0 {
            return Err(self.refuse("penalty", &[value], "must be a scalar: sum it over its axes".into()));
        }
        self.penalties.push(value);
        Ok(())
    }

    /// Penalises a parameter while training.
    pub fn penalise(&mut self, parameter: ValueId, penalty: Penalty) -> Result<(), GraphError> {
        if self.mode == Mode::Infer {
            return Ok(());
        }
        for (factor, size) in [(penalty.l1, Unary::Abs), (penalty.l2, Unary::Square)] {
            if factor != 0.0 {
                let sizes = self.unary(size, parameter)?;
                let axes: Vec<usize> = (0..self.shape(sizes).rank()).collect();
                let sum = self.sum(sizes, &axes, false)?;
                let value = self.scale(sum, factor)?;
                self.add_penalty(value)?;
            }
        }
        Ok(())
    }

    /// The terms that layers have added to the loss.
    pub(crate) fn penalties(&mut self) -> Vec<ValueId> {
        std::mem::take(&mut self.penalties)
    }

    /// The extents of a value of a known rank, or an error that says what they should be.
    pub fn extents<const N: usize>(
        &self,
        op: &'static str,
        x: ValueId,
        wanted: &str,
    ) -> Result<[usize; N], GraphError> {
        self.shape(x)[..].try_into().map_err(|_| self.refuse(op, &[x], format!("needs {wanted}")))
    }

    /// The extents of an image.
    pub(crate) fn image(&self, op: &'static str, x: ValueId) -> Result<[usize; 4], GraphError> {
        self.extents(op, x, "an image [examples, height, width, channels]")
    }

    /// The extents of a sequence of vectors.
    pub(crate) fn sequence(&self, op: &'static str, x: ValueId) -> Result<[usize; 3], GraphError> {
        self.extents(op, x, "a sequence [examples, positions, width]")
    }

    /// The last extent, which is not the batch axis.
    pub(crate) fn width(&self, op: &'static str, x: ValueId) -> Result<usize, GraphError> {
        match &self.shape(x)[..] {
            [_, .., width] => Ok(*width),
            _ => Err(self.refuse(op, &[x], "needs [examples, .., width]".into())),
        }
    }

    /// An error if `count`, a layer's number of `what`, is zero.
    pub(crate) fn at_least_one(
        &self,
        op: &'static str,
        x: ValueId,
        count: usize,
        what: &str,
    ) -> Result<(), GraphError> {
        if count > 0 { Ok(()) } else { Err(self.refuse(op, &[x], format!("needs at least one {what}"))) }
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
