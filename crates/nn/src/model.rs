//! Models: inputs, targets, and what is between.

use crate::{CrossEntropy, Loss, MeanSquaredError, Mode, Net};
use plimsoll_graph::{Builder, Graph, GraphError, ValueId};
use plimsoll_tensor::{Field, Shape};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// First values of a model's states that come from elsewhere, like the weights of an imported file. They are read piece by piece.
pub trait InitialValues: Send + Sync {
    /// Whether there are values for a state of this shape; others start as their [`plimsoll_graph::Init`] says.
    fn has(&self, state: &str, shape: &Shape) -> bool;
    /// Copies bytes of a state's values, f32 in row-major order of its shape, from `offset` on.
    fn read(&self, state: &str, offset: usize, into: &mut [u8]) -> io::Result<()>;
    /// The bytes of memory that it holds while its model is there, with those that reading takes.
    fn held_bytes(&self) -> usize;
}

/// The name of the state that holds what quantization-aware training learns of its ranges. Files of weights may lack it: the ranges
/// are measured anew then.
pub const RANGES: &str = "quantize/ranges";

/// A forward graph that was written anew, open for its gradient.
pub struct Rewritten {
    /// The new graph.
    pub builder: Builder,
    /// The new value of each old one, where there is one.
    pub values: Vec<Option<ValueId>>,
}

/// The end of a model.
#[derive(Clone, Debug)]
pub enum Head {
    /// Its outputs. For targets that are classes the first holds a score for each class on its last axis.
    Outputs(Vec<ValueId>),
    /// Features `[rows, width]` and a kernel `[width, classes]`: training never materializes all scores.
    Linear {
        /// The features.
        features: ValueId,
        /// The kernel.
        kernel: ValueId,
        /// Whether the kernel is stored as `[classes, width]`, as the table of an embedding is.
        transposed: bool,
    },
}

/// A model: a description that adds itself to a [`Net`].
///
/// ```
/// use plimsoll_nn::{Dense, Field, Head, Layer, Model, Net, Sgd, step};
/// use plimsoll_graph::{GraphError, ValueId};
///
/// /// Two towers that share nothing, and a score for the pair.
/// struct Towers;
///
/// impl Model for Towers {
///     fn name(&self) -> &str {
///         "towers"
///     }
///     fn inputs(&self) -> Vec<Field> {
///         vec![Field::floats([8]), Field::floats([5])]
///     }
///     fn target(&self) -> Field {
///         Field::floats([1])
///     }
///     fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
///         let left = net.scope("left", |net| Dense::new(4).forward(net, inputs[0]))?;
///         let right = net.scope("right", |net| Dense::new(4).forward(net, inputs[1]))?;
///         let both = net.mul(left, right)?;
///         let score = net.scope("score", |net| Dense::new(1).forward(net, both))?;
///         Ok(Head::Outputs(vec![score]))
///     }
/// }
///
/// let graph = step::training(&Towers, &Sgd::new(0.1), 16)?;
/// assert_eq!(graph.parameter_count(), 8 * 4 + 4 + 5 * 4 + 4 + 4 + 1);
/// # Ok::<(), GraphError>(())
/// ```
pub trait Model: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;
    /// One example's inputs.
    fn inputs(&self) -> Vec<Field>;
    /// One example's target: classes (one, or one per position or pixel) or values.
    fn target(&self) -> Field;
    /// Adds the model to the net; `inputs` are batches of [`Model::inputs`].
    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError>;
    /// The training loss: by default cross-entropy for classes and the mean squared error for values.
    fn loss(&self) -> &dyn Loss {
        default_loss(&self.target())
    }
    /// First values of its states that come from elsewhere.
    fn initial_values(&self) -> Option<&dyn InitialValues> {
        None
    }
    /// The forward graph of a step of this model, loss and all, with changes that are not made layer by layer; `None`: as it is.
    fn rewritten(&self, _graph: &Graph, _mode: Mode) -> Result<Option<Rewritten>, GraphError> {
        Ok(None)
    }
}

fn default_loss(target: &Field) -> &'static dyn Loss {
    static ENTROPY: CrossEntropy = CrossEntropy::new();
    if target.bound.is_some() { &ENTROPY } else { &MeanSquaredError }
}

impl<M: Model + ?Sized> Model for Box<M> {
    fn name(&self) -> &str {
        self.as_ref().name()
    }

    fn inputs(&self) -> Vec<Field> {
        self.as_ref().inputs()
    }

    fn target(&self) -> Field {
        self.as_ref().target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        self.as_ref().forward(net, inputs)
    }

    fn loss(&self) -> &dyn Loss {
        self.as_ref().loss()
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        self.as_ref().initial_values()
    }

    fn rewritten(&self, graph: &Graph, mode: Mode) -> Result<Option<Rewritten>, GraphError> {
        self.as_ref().rewritten(graph, mode)
    }
}

impl<M: Model + ?Sized> Model for &M {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn inputs(&self) -> Vec<Field> {
        (**self).inputs()
    }

    fn target(&self) -> Field {
        (**self).target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        (**self).forward(net, inputs)
    }

    fn loss(&self) -> &dyn Loss {
        (**self).loss()
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        (**self).initial_values()
    }

    fn rewritten(&self, graph: &Graph, mode: Mode) -> Result<Option<Rewritten>, GraphError> {
        (**self).rewritten(graph, mode)
    }
}

/// A model some of whose convolutions have other numbers of output channels than it gives them, by their layers' names. What reads
/// them must take its number of channels from its input, as all layers do. States of another shape than the model's [first
/// values](Model::initial_values) start as their layers say.
///
/// ```
/// use plimsoll_nn::{Narrow, step, zoo};
/// let model = Narrow::new(zoo::lenet(), [("conv2".to_string(), 7)].into());
/// let graph = step::prediction(&model, 1)?;
/// assert!(graph.parameter_count() < step::prediction(&zoo::lenet(), 1)?.parameter_count());
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub struct Narrow<M> {
    model: M,
    widths: Arc<BTreeMap<String, usize>>,
}

impl<M: Model> Narrow<M> {
    /// The model with so many output channels of these layers.
    pub fn new(model: M, widths: BTreeMap<String, usize>) -> Self {
        Self { model, widths: Arc::new(widths) }
    }
}

impl<M: Model> Model for Narrow<M> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn inputs(&self) -> Vec<Field> {
        self.model.inputs()
    }

    fn target(&self) -> Field {
        self.model.target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        // A model that is narrowed again keeps the other layers' numbers.
        let inner = net.widths.clone();
        net.widths = match inner.is_empty() {
            true => self.widths.clone(),
            false => Arc::new(self.widths.iter().chain(inner.iter()).map(|(k, v)| (k.clone(), *v)).collect()),
        };
        let head = self.model.forward(net, inputs);
        net.widths = inner;
        head
    }

    fn loss(&self) -> &dyn Loss {
        self.model.loss()
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        self.model.initial_values()
    }

    fn rewritten(&self, graph: &Graph, mode: Mode) -> Result<Option<Rewritten>, GraphError> {
        self.model.rewritten(graph, mode)
    }
}

/// A model with another loss.
///
/// ```
/// use plimsoll_nn::{CrossEntropy, Model, Sgd, WithLoss, step, zoo};
/// let model = WithLoss::new(zoo::lenet(), CrossEntropy::new().smoothing(0.1));
/// step::training(&model, &Sgd::new(0.1), 8)?;
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub struct WithLoss<M> {
    model: M,
    loss: Box<dyn Loss>,
}

impl<M: Model> WithLoss<M> {
    /// The model with this loss.
    pub fn new(model: M, loss: impl Loss + 'static) -> Self {
        Self { model, loss: Box::new(loss) }
    }
}

impl<M: Model> Model for WithLoss<M> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn inputs(&self) -> Vec<Field> {
        self.model.inputs()
    }

    fn target(&self) -> Field {
        self.model.target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        self.model.forward(net, inputs)
    }

    fn loss(&self) -> &dyn Loss {
        self.loss.as_ref()
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        self.model.initial_values()
    }

    fn rewritten(&self, graph: &Graph, mode: Mode) -> Result<Option<Rewritten>, GraphError> {
        self.model.rewritten(graph, mode)
    }
}
