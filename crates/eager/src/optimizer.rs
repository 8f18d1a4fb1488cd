//! Optimizers of `nn`, applied to tensors.

use crate::call::{Operand, run_own};
use crate::context::{Context, Eager};
use crate::error::{Error, Result};
use crate::program::{Program, append};
use crate::tensor::Tensor;
use plimsoll_graph::{BatchMark, Builder, Graph, Init, Role, ValueId};
use plimsoll_nn::{Optimizer as Rule, Parameter};
use plimsoll_tensor::{DType, TensorType};
use std::panic::Location;
use std::sync::Arc;

/// An update rule of `nn` with its moments, for training loops of one's own.
///
/// ```
/// use plimsoll_eager::{Optimizer, Tape, tensor};
/// use plimsoll_nn::AdamW;
/// let x = tensor([[1.0f32, 2.0], [3.0, 4.0]])?;
/// let mut w = tensor([[0.5f32], [-1.0]])?;
/// let mut optimizer = Optimizer::new(AdamW::new(0.1));
/// let mut losses = Vec::new();
/// for _ in 0..20 {
///     let tape = Tape::new();
///     tape.watch(&w);
///     let loss = x.matmul(&w).square().sum(&[0, 1], false).get()?;
///     let gradients = tape.gradient(&loss, &[&w])?;
///     optimizer.apply(&mut [&mut w], &gradients)?;
///     losses.push(loss.item()?);
/// }
/// assert!(losses[19] < 0.2 * losses[0]);
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
pub struct Optimizer {
    rule: Box<dyn Rule>,
    names: Option<Vec<String>>,
    scale: f64,
    step: u64,
    update: Option<Update>,
}

/// The update of variables of some types.
struct Update {
    types: Vec<TensorType>,
    program: Program,
    /// The states that are not variables.
    moments: Vec<Tensor>,
    context: Arc<Context>,
}

impl Optimizer {
    /// A rule at its first step.
    pub fn new(rule: impl Rule + 'static) -> Self {
        Self { rule: Box::new(rule), names: None, scale: 1.0, step: 0, update: None }
    }

    /// With names for the variables, in order: for rules that treat some of them otherwise, as weight decay does.
    pub fn names(self, names: &[&str]) -> Self {
        Self { names: Some(names.iter().map(ToString::to_string).collect()), ..self }
    }

    /// Sets what the learning rate is multiplied with from now on: for schedules.
    pub fn set_scale(&mut self, scale: f64) {
        self.scale = scale;
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Updates variables by their gradients, in place where nobody else holds them.
    #[track_caller]
    pub fn apply(&mut self, variables: &mut [&mut Tensor], gradients: &[Tensor]) -> Result<()> {
        let site = Location::caller();
        let count = (variables.len(), gradients.len());
        let Some(first) = variables.first().filter(|_| count.0 == count.1) else {
            return Err(Error::Argument(format!(
                "there are {} variables and {} gradients",
                count.0, count.1
            )));
        };
        if let Some(traced) = variables.iter().find(|v| v.handle().is_none()) {
            return Err(Error::Tracing { what: "applying an optimizer", ty: (*traced.ty).clone() });
        }
        let context = first.context().clone();
        let all = variables.iter().map(|v| &**v).chain(gradients);
        if let Some(other) = all.into_iter().find(|tensor| !Arc::ptr_eq(tensor.context(), &context)) {
            return Err(Error::Argument(format!(
                "an optimizer's variables and gradients are on one device, not on {} and {}: use one for each device",
                context.device,
                other.device()
            )));
        }
        let types: Vec<TensorType> = variables.iter().map(|v| (*v.ty).clone()).collect();
        if self
            .update
            .as_ref()
            .is_none_or(|update| update.types != types || !Arc::ptr_eq(&update.context, &context))
        {
            self.update = Some(self.prepare(&context, types, gradients)?);
        }
        let Some(update) = &mut self.update else { return Ok(()) };
        let mut settings = vec![0.0; self.rule.setting_names().len()];
        self.rule.settings(self.step, self.scale, &mut settings);
        let eager = Eager(context.clone());
        let settings: Result<Vec<Tensor>> =
            settings.into_iter().map(|value| eager.tensor(vec![value as f32])).collect();
        // Moved in, so that nobody else holds them; the gradient is a stand-in meanwhile.
        let mut operands: Vec<Operand> = Vec::new();
        let settings = settings?;
        for (variable, gradient) in variables.iter_mut().zip(gradients) {
            operands.push(Operand::Tensor(std::mem::replace(*variable, gradient.clone())));
        }
        operands.extend(update.moments.drain(..).map(Operand::Tensor));
        operands.extend(gradients.iter().chain(&settings).map(|tensor| Operand::Tensor(tensor.clone())));
        let ran = run_own(&context, &update.program, &mut operands, site);
        // After an error the tensors are those from before. Their values are, too, where memory was short: the program asks for
        // all that it needs before its first step.
        let failed = ran.is_err();
        let (new, error) = match ran {
            Ok(new) => (new, None),
            Err(error) => (operands.into_iter().filter_map(kept).collect(), Some(error)),
        };
        let mut new = new.into_iter();
        for (variable, tensor) in variables.iter_mut().zip(&mut new) {
            **variable = if failed { tensor } else { tensor.unmarked() };
        }
        let moments = update.program.graph.outputs.len() - count.0;
        update.moments = new.take(moments).collect();
        error.map_or(Ok(()), Err)?;
        self.step += 1;
        Ok(())
    }

    /// Builds the update as `nn` does, with the states as inputs and outputs.
    fn prepare(
        &self,
        context: &Arc<Context>,
        types: Vec<TensorType>,
        gradients: &[Tensor],
    ) -> Result<Update> {
        let name = |i: usize| self.names.as_ref().and_then(|names| names.get(i).cloned());
        let mut b = Builder::new(1, 1);
        let parameters: Vec<Parameter> = (types.iter().enumerate())
            .map(|(i, ty)| {
                let name = name(i).unwrap_or_else(|| format!("variable{i}"));
                let value = b.named_state(name.clone(), ty.clone(), Role::Parameter, Init::Zeros);
                Parameter { name, value }
            })
            .collect();
        self.rule.check(&parameters.iter().map(|p| p.name.as_str()).collect::<Vec<_>>())?;
        let given: Vec<ValueId> = gradients.iter().map(|g| b.setting("gradient", (*g.ty).clone())).collect();
        let scalar = TensorType::scalar(DType::F32);
        let settings: Vec<ValueId> =
            self.rule.setting_names().iter().map(|name| b.setting(name, scalar.clone())).collect();
        self.rule.updates(&mut b, &parameters, &given, &settings)?;
        let graph = b.graph();
        let inputs: Vec<ValueId> =
            graph.states.iter().map(|s| s.input).chain(given).chain(settings).collect();
        let input = |v: &ValueId| (Arc::new(graph.ty(*v).clone()), BatchMark::input(false));
        let program = Program::new(
            context.executor.as_ref(),
            "optimizer",
            &inputs.iter().map(input).collect::<Vec<_>>(),
            (1, 1),
            |b, values| {
                let mut map = vec![None; graph.value_count()];
                inputs.iter().zip(values).for_each(|(old, new)| map[old.index()] = Some(*new));
                append(graph, b, &mut map)?;
                let output = |s: &plimsoll_graph::State| map[s.output.unwrap_or(s.input).index()];
                Ok(graph.states.iter().filter_map(output).collect())
            },
        )?;
        let eager = Eager(context.clone());
        let moments: Result<Vec<Tensor>> =
            moments(graph, types.len()).map(|(ty, value)| eager.full(ty, value).get()).collect();
        Ok(Update { types, program, moments: moments?, context: context.clone() })
    }
}

/// Types and first values of the states behind the variables.
fn moments(graph: &Graph, variables: usize) -> impl Iterator<Item = (&TensorType, f64)> {
    graph.states[variables..].iter().map(|state| {
        let value = match state.init {
            Init::Ones => 1.0,
            Init::Constant(value) => value,
            Init::Zeros | Init::Normal(_) | Init::Uniform(_) => 0.0,
        };
        (graph.ty(state.input), value)
    })
}

fn kept(operand: Operand) -> Option<Tensor> {
    match operand {
        Operand::Tensor(tensor) => Some(tensor),
        Operand::Number(_) => None,
    }
}
