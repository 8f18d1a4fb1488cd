//! Models: inputs, targets, and the layers between.

use crate::{CrossEntropy, Layer, Loss, MeanSquaredError, Net};
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::{Field, Shape};

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
}

fn default_loss(target: &Field) -> &'static dyn Loss {
    static ENTROPY: CrossEntropy = CrossEntropy::PLAIN;
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
}

/// A model with another loss.
///
/// ```
/// use plimsoll_nn::{CrossEntropy, Model, Sgd, WithLoss, step, zoo};
/// let model = WithLoss::new(zoo::lenet(), CrossEntropy::default().smoothing(0.1));
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
}

/// Layers one after another. As a [`Layer`] it is part of a larger model.
///
/// ```
/// use plimsoll_nn::{Activation, Dense, Sequential};
/// let model = Sequential::classifier("xor", [2], 2)
///     .layer("hidden", Dense::new(4))
///     .layer("tanh", Activation::Tanh)
///     .layer("head", Dense::new(2));
/// ```
pub struct Sequential {
    name: String,
    input: Field,
    target: Field,
    layers: Vec<(String, Box<dyn Layer>)>,
}

impl Sequential {
    /// A model from one input to one target.
    pub fn new(name: &str, input: Field, target: Field) -> Self {
        Self { name: name.to_string(), input, target, layers: Vec::new() }
    }

    /// A classifier of float inputs of this shape (one example's).
    pub fn classifier(name: &str, input: impl Into<Shape>, classes: usize) -> Self {
        Self::new(name, Field::floats(input), Field::below(classes, []))
    }

    /// A regression from float inputs to float targets of these shapes (one example's).
    pub fn regression(name: &str, input: impl Into<Shape>, target: impl Into<Shape>) -> Self {
        Self::new(name, Field::floats(input), Field::floats(target))
    }

    /// Appends a layer under a name, which its parameters carry.
    pub fn layer(mut self, name: &str, layer: impl Layer + 'static) -> Self {
        self.layers.push((name.to_string(), Box::new(layer)));
        self
    }
}

impl Layer for Sequential {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        self.layers.iter().try_fold(x, |x, (name, layer)| net.scope(name, |net| layer.forward(net, x)))
    }
}

impl Model for Sequential {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> Vec<Field> {
        vec![self.input.clone()]
    }

    fn target(&self) -> Field {
        self.target.clone()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let value = Layer::forward(self, net, inputs[0])?;
        let examples = net.shape(inputs[0]).first().copied().unwrap_or(0);
        let wanted = [&[examples], &self.target.ty.shape[..], self.target.bound.as_slice()].concat();
        if net.shape(value)[..] != wanted {
            let last = match self.layers.last() {
                Some((name, _)) => format!("layer `{name}` of model `{}`", self.name),
                None => format!("model `{}` has no layers: it", self.name),
            };
            let needs = match self.target.bound {
                Some(classes) => format!("{classes} classes need"),
                None => "the target needs".to_string(),
            };
            return Err(GraphError::Broken(format!(
                "{last} ends in {}; {needs} {}",
                net.shape(value),
                Shape::from(wanted)
            )));
        }
        Ok(Head::Outputs(vec![value]))
    }
}
