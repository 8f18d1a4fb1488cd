//! Layers one after another.

use crate::{Head, Layer, Model, Net};
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::{Field, Shape};

/// Layers one after another. As a [`Layer`] it is part of a larger model.
///
/// [`push`](Self::push) names a layer after its [kind](Layer::kind), as Keras does: the first is `conv2d`, the next
/// `conv2d_1`, then `conv2d_2`. Parameters carry these names, in weights files too; [`layer`](Self::layer) gives another.
///
/// ```
/// use plimsoll_nn::{Dense, Relu, Residual, Sequential, Sgd, step};
/// let block = Sequential::block().push(Dense::new(4)).push(Relu);
/// let model = Sequential::classifier([4], 2)
///     .push(Residual::new(block))
///     .push(Dense::new(8))
///     .push(Relu)
///     .push(Dense::new(8))
///     .layer("head", Dense::new(2));
/// let graph = step::prediction(&model, 1)?;
/// let kernels: Vec<&str> = graph.states.iter().map(|s| s.name.as_str()).filter(|n| n.ends_with("kernel")).collect();
/// assert_eq!(kernels, ["residual/dense/kernel", "dense/kernel", "dense_1/kernel", "head/kernel"]);
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub struct Sequential {
    name: String,
    /// Input and target; a block has none.
    fields: Option<[Field; 2]>,
    layers: Vec<(String, Box<dyn Layer>)>,
}

impl Sequential {
    /// A model from one input to one target.
    pub fn new(input: Field, target: Field) -> Self {
        Self { fields: Some([input, target]), ..Self::block() }
    }

    /// A classifier of float inputs of this shape (one example's).
    pub fn classifier(input: impl Into<Shape>, classes: usize) -> Self {
        Self::new(Field::floats(input), Field::below(classes, []))
    }

    /// A regression from float inputs to float targets of these shapes (one example's).
    pub fn regression(input: impl Into<Shape>, target: impl Into<Shape>) -> Self {
        Self::new(Field::floats(input), Field::floats(target))
    }

    /// Layers for a larger model: a layer, but no model by itself.
    pub fn block() -> Self {
        Self { name: "sequential".to_string(), fields: None, layers: Vec::new() }
    }

    /// The model under another name than `sequential`.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_string(), ..self }
    }

    /// Appends a layer, named after its [kind](Layer::kind): `dense`, then `dense_1`, `dense_2`.
    pub fn push(self, layer: impl Layer + 'static) -> Self {
        let name = self.free_name(layer.kind());
        self.layer(name, layer)
    }

    /// Appends a layer under a name, which its parameters carry.
    pub fn layer(mut self, name: impl Into<String>, layer: impl Layer + 'static) -> Self {
        self.layers.push((name.into(), Box::new(layer)));
        self
    }

    /// The kind, or, if there is a layer of this name, the first numbered one that is free.
    fn free_name(&self, kind: String) -> String {
        let taken = |name: &str| self.layers.iter().any(|(other, _)| other == name);
        let mut name = kind.clone();
        let mut number = 0;
        while taken(&name) {
            number += 1;
            name = format!("{kind}_{number}");
        }
        name
    }

    /// Checks that the layers end in what the target needs.
    fn check_end(
        &self,
        net: &Net,
        value: ValueId,
        examples: usize,
        target: &Field,
    ) -> Result<(), GraphError> {
        let wanted = [&[examples], &target.ty.shape[..], target.bound.as_slice()].concat();
        if net.shape(value)[..] == wanted {
            return Ok(());
        }
        let last = match self.layers.last() {
            Some((name, _)) => format!("layer `{name}` of model `{}`", self.name),
            None => format!("model `{}` has no layers: it", self.name),
        };
        let needs = match target.bound {
            Some(classes) => format!("{classes} classes need"),
            None => "the target needs".to_string(),
        };
        let found = net.shape(value);
        Err(GraphError::Choice(format!("{last} ends in {found}; {needs} {}", Shape::from(wanted))))
    }
}

impl Layer for Sequential {
    /// Its name.
    fn kind(&self) -> String {
        self.name.clone()
    }

    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        self.layers.iter().try_fold(x, |x, (name, layer)| net.scope(name, |net| layer.forward(net, x)))
    }
}

impl Model for Sequential {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> Vec<Field> {
        self.fields.iter().map(|[input, _]| input.clone()).collect()
    }

    fn target(&self) -> Field {
        self.fields.as_ref().map_or(Field::floats([]), |[_, target]| target.clone())
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let (Some([_, target]), [input]) = (&self.fields, inputs) else {
            return Err(GraphError::Choice(format!(
                "`{}` is a block of a larger model: begin a model of its own with `Sequential::classifier`, `regression` or \
                 `new`",
                self.name
            )));
        };
        let value = Layer::forward(self, net, *input)?;
        let examples = net.shape(*input).first().copied().unwrap_or(0);
        self.check_end(net, value, examples, target)?;
        Ok(Head::Outputs(vec![value]))
    }
}
