//! Optimizers of `nn`, applied to tensors.

use crate::call::{Operand, run_own};
use crate::context::{Context, Eager};
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::network::Network;
use crate::program::{Layers, Program, append};
use crate::states::full_name;
use crate::tensor::Tensor;
use crate::trace::{Trace, TracedPart};
use plimsoll_graph::{BatchMark, Builder, Init, Role, State, ValueId};
use plimsoll_nn::{Optimizer as Rule, Parameter, push_number};
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
    pub(crate) step: u64,
    update: Option<Update>,
    /// While a step that it is a part of is traced.
    pub(crate) traced: Option<TracedPart>,
}

/// The update of variables of some types.
struct Update {
    types: Vec<TensorType>,
    program: Program,
    moments: Vec<Moment>,
    context: Arc<Context>,
}

/// A state that is not a variable.
pub(crate) struct Moment {
    pub name: String,
    pub role: Role,
    pub tensor: Tensor,
}

/// What an optimizer updates: an array of `&mut` tensors, or a [`Network`].
pub trait Variables {
    /// The variables, with their names where they have some.
    fn named_variables(&mut self) -> Vec<(Option<&str>, &mut Tensor)>;
}

impl Variables for [&mut Tensor] {
    fn named_variables(&mut self) -> Vec<(Option<&str>, &mut Tensor)> {
        self.iter_mut().map(|tensor| (None, &mut **tensor)).collect()
    }
}

impl<const N: usize> Variables for [&mut Tensor; N] {
    fn named_variables(&mut self) -> Vec<(Option<&str>, &mut Tensor)> {
        self[..].named_variables()
    }
}

impl Variables for Vec<&mut Tensor> {
    fn named_variables(&mut self) -> Vec<(Option<&str>, &mut Tensor)> {
        self[..].named_variables()
    }
}

impl Variables for Network {
    fn named_variables(&mut self) -> Vec<(Option<&str>, &mut Tensor)> {
        let parameters = self.states.iter_mut().filter(|state| state.role == Role::Parameter);
        parameters.map(|state| (Some(state.name.as_str()), &mut state.tensor)).collect()
    }
}

impl Optimizer {
    /// A rule at its first step.
    pub fn new(rule: impl Rule + 'static) -> Self {
        Self { rule: Box::new(rule), names: None, scale: 1.0, step: 0, update: None, traced: None }
    }

    /// With names for the variables, in order: for rules that treat some of them otherwise, as weight decay does. Those of a
    /// network have names.
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

    /// Its moments by name, like `dense/kernel/mean`; none before the first update.
    pub fn states(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let moments = self.update.iter().flat_map(|update| &update.moments);
        moments.map(|moment| (moment.name.as_str(), &moment.tensor))
    }

    /// Updates variables by their gradients, in place where nobody else holds them. Those that the rule does not train, as
    /// [`Recipe::freeze`](plimsoll_nn::Recipe::freeze) says, stay as they are.
    #[track_caller]
    pub fn apply(&mut self, variables: &mut (impl Variables + ?Sized), gradients: &[Tensor]) -> Result<()> {
        let site = Location::caller();
        let (names, mut variables): (Vec<_>, Vec<_>) = variables.named_variables().into_iter().unzip();
        let count = (variables.len(), gradients.len());
        let Some(first) = variables.first().filter(|_| count.0 == count.1) else {
            return Err(Error::Argument(format!(
                "there are {} variables and {} gradients",
                count.0, count.1
            )));
        };
        let context = first.context().clone();
        let all = variables.iter().map(|v| &**v).chain(gradients);
        if let Some(other) = all.clone().find(|tensor| !Arc::ptr_eq(tensor.context(), &context)) {
            return Err(Error::Argument(format!(
                "an optimizer's variables and gradients are on one device, not on {} and {}: use one for each device",
                context.device,
                other.device()
            )));
        }
        for (i, (variable, gradient)) in variables.iter().zip(gradients).enumerate() {
            if variable.shape() != gradient.shape() {
                let (ty, other) = (variable.ty(), gradient.ty());
                return Err(Error::Argument(format!(
                    "variable {i} is {ty} and its gradient {other}: give gradients in the order of the variables"
                )));
            }
        }
        let trace = all.clone().find_map(|tensor| tensor.trace().cloned());
        self.prepare(&context, &names, &variables, gradients)?;
        match trace {
            Some(trace) => self.apply_traced(&trace, &mut variables, gradients),
            None => self.apply_now(&context, &mut variables, gradients, site),
        }
    }

    fn apply_now(
        &mut self,
        context: &Arc<Context>,
        variables: &mut [&mut Tensor],
        gradients: &[Tensor],
        site: Site,
    ) -> Result<()> {
        let settings = (0..self.rule.setting_names().len()).map(|i| {
            let ty = Arc::new(TensorType::scalar(DType::F32));
            let bytes = self.setting_bytes(0, i);
            context.copied(ty, site, &bytes)
        });
        let settings = settings.collect::<Result<Vec<Tensor>>>()?;
        let Some(update) = &mut self.update else { return Ok(()) };
        // Moved in, so that nobody else holds them; the gradient is a stand-in meanwhile.
        let mut operands: Vec<Operand<'_>> = Vec::new();
        for (variable, gradient) in variables.iter_mut().zip(gradients) {
            operands.push(Operand::from(std::mem::replace(*variable, gradient.clone())));
        }
        for moment in &mut update.moments {
            operands.push(Operand::from(std::mem::replace(&mut moment.tensor, gradients[0].clone())));
        }
        operands.extend(gradients.iter().chain(&settings).map(Operand::from));
        let ran = run_own(context, &update.program, &operands, site);
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
        update.moments.iter_mut().zip(new).for_each(|(moment, tensor)| moment.tensor = tensor);
        error.map_or(Ok(()), Err)?;
        self.step += 1;
        Ok(())
    }

    /// Adds the update to a function that is traced.
    fn apply_traced(
        &mut self,
        trace: &Arc<Trace>,
        variables: &mut [&mut Tensor],
        gradients: &[Tensor],
    ) -> Result<()> {
        let (Some(traced), Some(update)) = (&mut self.traced, &mut self.update) else {
            let reason = "an optimizer is applied inside a compiled function: give it to `compile_step`, with what it updates";
            return Err(Error::Argument(reason.into()));
        };
        if let Some(other) = variables.iter().find(|variable| variable.trace().is_none()) {
            return Err(Error::Argument(format!(
                "an optimizer updates {} inside a compiled function that captured it: give it to `compile_step`, too",
                other.ty()
            )));
        }
        for (place, moment) in update.moments.iter_mut().enumerate() {
            if moment.tensor.trace().is_none() {
                let name = full_name(traced.part, &moment.name);
                moment.tensor = traced.state(place, name, moment.role, &moment.tensor);
            }
        }
        let setting = |(i, name): (usize, String)| {
            traced.setting(&format!("optimizer/{name}"), TensorType::scalar(DType::F32), i)
        };
        let settings: Vec<Tensor> = self.rule.setting_names().into_iter().enumerate().map(setting).collect();
        let tensors = (variables.iter().map(|variable| &**variable))
            .chain(update.moments.iter().map(|moment| &moment.tensor))
            .chain(gradients.iter().chain(&settings));
        let operands: Vec<Operand<'_>> = tensors.map(Operand::from).collect();
        let mut new = trace.record(&update.program, &operands, (1, 1))?.into_vec().into_iter();
        for (variable, tensor) in variables.iter_mut().zip(&mut new) {
            **variable = tensor.unmarked();
        }
        update.moments.iter_mut().zip(new).for_each(|(moment, tensor)| moment.tensor = tensor);
        traced.turns += 1;
        Ok(())
    }

    /// The bytes of a setting of an update that comes so many after the next.
    pub(crate) fn setting_bytes(&self, turn: u64, index: usize) -> Vec<u8> {
        let mut settings = vec![0.0; self.rule.setting_names().len()];
        self.rule.settings(self.step + turn, self.scale, &mut settings);
        let mut bytes = Vec::new();
        push_number(&mut bytes, DType::F32, settings.get(index).copied().unwrap_or(0.0));
        bytes
    }

    /// The states that are not variables; none before the first update.
    pub(crate) fn moments_mut(&mut self) -> &mut [Moment] {
        self.update.as_mut().map_or(&mut [], |update| &mut update.moments)
    }

    /// Builds the update as `nn` does, with the states as inputs and outputs, unless it is there.
    fn prepare(
        &mut self,
        context: &Arc<Context>,
        names: &[Option<&str>],
        variables: &[&mut Tensor],
        gradients: &[Tensor],
    ) -> Result<()> {
        let types: Vec<TensorType> = variables.iter().map(|variable| (*variable.ty).clone()).collect();
        if let Some(update) = &self.update {
            if update.types == types && Arc::ptr_eq(&update.context, context) {
                return Ok(());
            }
            let reason =
                "an optimizer is for the variables that it was first applied to: use another one for others";
            return Err(Error::Argument(reason.into()));
        }
        let mut b = Builder::new(1, 1);
        let mut parameters = Vec::new();
        for (i, ty) in types.iter().enumerate() {
            let given = self.names.as_ref().and_then(|names| names.get(i).map(String::as_str));
            let name = given.or(names[i]).map_or_else(|| format!("variable{i}"), ToString::to_string);
            let value = b.named_state(name.clone(), ty.clone(), Role::Parameter, Init::Zeros);
            parameters.push(Parameter { name, value });
        }
        self.rule.check(&parameters.iter().map(|p| p.name.as_str()).collect::<Vec<_>>())?;
        let given: Vec<ValueId> = gradients.iter().map(|g| b.setting("gradient", (*g.ty).clone())).collect();
        let scalar = TensorType::scalar(DType::F32);
        let settings: Vec<ValueId> =
            self.rule.setting_names().iter().map(|name| b.setting(name, scalar.clone())).collect();
        let trained =
            parameters.iter().zip(&given).filter(|(parameter, _)| self.rule.trains(&parameter.name));
        let (trained, their): (Vec<Parameter>, Vec<ValueId>) =
            trained.map(|(parameter, &gradient)| (parameter.clone(), gradient)).unzip();
        self.rule.updates(&mut b, &trained, &their, &settings)?;
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
                append(graph, b, &mut map, Layers::Inside)?;
                let output = |s: &State| map[s.output.unwrap_or(s.input).index()];
                Ok(graph.states.iter().filter_map(output).collect())
            },
        )?;
        let eager = Eager(context.clone());
        let moment = |state: &State| {
            let ty = graph.ty(state.input);
            let tensor = match state.init {
                Init::Ones => eager.full(ty, 1.0).get()?,
                Init::Constant(value) => eager.full(ty, value).get()?,
                // Averages, too: the first update replaces what they start as.
                Init::Zeros | Init::Normal(_) | Init::Uniform(_) => eager.zeros(ty.clone())?,
            };
            Ok(Moment { name: state.name.clone(), role: state.role, tensor })
        };
        let moments = graph.states[types.len()..].iter().map(moment).collect::<Result<_>>()?;
        self.update = Some(Update { types, program, moments, context: context.clone() });
        Ok(())
    }
}

fn kept(operand: Operand<'_>) -> Option<Tensor> {
    match operand {
        Operand::Tensor(tensor) => Some(tensor.into_owned()),
        Operand::Number(_) => None,
    }
}
