//! Models: what goes in, what comes out, and the layers between.

use crate::{Layer, Net};
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};

/// What a model ends in: scores for every class, for every row of labels.
#[derive(Clone, Copy, Debug)]
pub enum Head {
    /// Logits `[rows, classes]`.
    Logits(ValueId),
    /// Features `[rows, width]` and a kernel `[width, classes]`, so that training need never hold all logits.
    Linear {
        /// The features.
        features: ValueId,
        /// The kernel.
        kernel: ValueId,
    },
}

/// A model that classifies: each example once, or each of its positions.
pub trait Model: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;
    /// Type of one example's input. f32 stands for the run's float type.
    fn input(&self) -> TensorType;
    /// For integer inputs: they are below this.
    fn input_bound(&self) -> Option<usize> {
        None
    }
    /// Shape of one example's labels: `[]` for one class, `[positions]` for one per position.
    fn labels(&self) -> Shape {
        Shape::scalar()
    }
    /// Number of classes: labels are below this.
    fn classes(&self) -> usize;
    /// Adds the model to the net; x is a batch of inputs.
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<Head, GraphError>;
}

impl Model for Box<dyn Model> {
    fn name(&self) -> &str {
        self.as_ref().name()
    }

    fn input(&self) -> TensorType {
        self.as_ref().input()
    }

    fn input_bound(&self) -> Option<usize> {
        self.as_ref().input_bound()
    }

    fn labels(&self) -> Shape {
        self.as_ref().labels()
    }

    fn classes(&self) -> usize {
        self.as_ref().classes()
    }

    fn forward(&self, net: &mut Net, x: ValueId) -> Result<Head, GraphError> {
        self.as_ref().forward(net, x)
    }
}

/// Layers one after another, ending in logits.
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
    input: TensorType,
    classes: usize,
    layers: Vec<(String, Box<dyn Layer>)>,
}

impl Sequential {
    /// A classifier for inputs of this shape (one example's, f32).
    pub fn classifier(name: &str, input: impl Into<Shape>, classes: usize) -> Self {
        let input = TensorType::new(DType::F32, input);
        Self { name: name.to_string(), input, classes, layers: Vec::new() }
    }

    /// Appends a layer under a name, which its parameters carry.
    pub fn layer(mut self, name: &str, layer: impl Layer + 'static) -> Self {
        self.layers.push((name.to_string(), Box::new(layer)));
        self
    }
}

impl Model for Sequential {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> TensorType {
        self.input.clone()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn forward(&self, net: &mut Net, x: ValueId) -> Result<Head, GraphError> {
        let mut value = x;
        for (name, layer) in &self.layers {
            value = net.scope(name, |net| layer.forward(net, value))?;
        }
        let wanted = [net.shape(x).first().copied().unwrap_or(0), self.classes];
        if net.shape(value)[..] != wanted {
            let (found, last) = (net.shape(value), self.layers.last().map_or("", |(name, _)| name));
            return Err(GraphError::Broken(format!(
                "layer `{last}` of model `{}` ends in {found}; {} classes need [{},{}]",
                self.name, self.classes, wanted[0], wanted[1]
            )));
        }
        Ok(Head::Logits(value))
    }
}
