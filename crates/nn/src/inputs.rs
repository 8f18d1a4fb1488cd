//! Models with 16-bit float inputs.

use crate::{Head, InitialValues, Loss, Mode, Model, Net, Rewritten};
use plimsoll_graph::{Graph, GraphError, ValueId};
use plimsoll_tensor::{DType, Field};

/// A model that takes its f32 inputs as 16-bit floats, the type of activations under that [`Precision`](crate::Precision):
/// batches and step inputs take half the bytes.
///
/// ```
/// use plimsoll_graph::Numerics;
/// use plimsoll_nn::{Model, NarrowInputs, Policy, Precision, Sgd, step, zoo};
/// let model = NarrowInputs::new(zoo::lenet(), Precision::BF16);
/// assert_eq!(model.inputs()[0].ty.to_string(), "bf16[28,28,1]");
/// let policy = Policy::new(Precision::BF16);
/// let graph = step::training_as(&policy, &Numerics::default(), &model, &Sgd::new(0.1), 8)?;
/// assert!(graph.to_string().contains("bf16[8,28,28,1]"));
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub struct NarrowInputs<M> {
    model: M,
    dtype: DType,
}

impl<M: Model> NarrowInputs<M> {
    /// The model with inputs of this precision.
    pub fn new(model: M, precision: crate::Precision) -> Self {
        Self { model, dtype: precision.dtype() }
    }
}

impl<M: Model> Model for NarrowInputs<M> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn inputs(&self) -> Vec<Field> {
        let mut inputs = self.model.inputs();
        inputs.iter_mut().filter(|f| f.ty.dtype == DType::F32).for_each(|f| f.ty.dtype = self.dtype);
        inputs
    }

    fn target(&self) -> Field {
        self.model.target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let (wanted, dtype) = (self.model.inputs(), net.dtype);
        let widened = inputs.iter().zip(&wanted).map(|(&input, field)| match field.ty.dtype {
            DType::F32 => net.cast(input, dtype),
            _ => Ok(input),
        });
        let widened = widened.collect::<Result<Vec<_>, _>>()?;
        self.model.forward(net, &widened)
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
