//! Networks: models and layers of `nn` on tensors.
//!
//! `nn` builds the forward pass as a graph. It becomes a program like that of any method, with the states as operands: tapes record
//! it, traces take it up, and gradients follow from the same rules.

use crate::call::{Operand, call_program};
use crate::context::{Context, Eager};
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::program::{Batch, Layers, Program, append};
use crate::tape;
use crate::tensor::{Tensor, Value};
use crate::trace::TracedPart;
use plimsoll_graph::{BatchMark, BatchRelation, Graph, GraphError, Init, Role, ValueId};
use plimsoll_nn::step::{self, LABELS, PENALTY, WEIGHTS, example_block, input_name};
use plimsoll_nn::{EXAMPLES, Field, Head, InitialValues, Layer, Mode, Model, Net, RANDOM, first_values};
use plimsoll_tensor::{DType, TensorType};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

/// Forward passes that a network keeps, for inputs of different types.
const MOST_PASSES: usize = 16;
/// Elements of first values that are written at a time.
const CHUNK: usize = 1 << 14;

/// A model or layer of `nn` with the values of its states, in a context; made by [`Eager::model`] and [`Eager::layer`].
///
/// Tapes watch the parameters of a network that is called. Its inputs are batches; those that are not marked are marked by the
/// call. A step then has the bits of a trainer's on the same batch.
///
/// ```
/// use plimsoll_eager::{Eager, Optimizer, Tape};
/// use plimsoll_nn::{AdamW, Dense, Relu, Sequential};
/// let eager = Eager::builder().build()?;
/// let model = Sequential::classifier([2], 2).push(Dense::new(8)).push(Relu).push(Dense::new(2));
/// let (mut net, mut optimizer) = (eager.model(model)?, Optimizer::new(AdamW::new(0.05)));
/// let x = eager.tensor([[0.0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])?;
/// let labels = eager.tensor([0, 1, 1, 0])?;
/// for _ in 0..100 {
///     let tape = Tape::new();
///     let loss = net.loss(&x, &labels)?;
///     let gradients = tape.gradient(&loss, &net.variables())?;
///     optimizer.apply(&mut net, &gradients)?;
/// }
/// assert_eq!(net.predict(&x)?.argmax(1).to_vec::<i32>()?, [0, 1, 1, 0]);
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
pub struct Network {
    model: Box<dyn Model>,
    /// Whether it is a whole model, with a target and a loss.
    has_loss: bool,
    context: Arc<Context>,
    pub(crate) states: Vec<NetworkState>,
    seed: u64,
    pub(crate) step: u64,
    first_example: u64,
    penalty: Option<Tensor>,
    passes: Mutex<Vec<Arc<Pass>>>,
    /// While a step that it is a part of is traced.
    pub(crate) traced: Option<TracedPart>,
}

/// A parameter or running statistic.
pub(crate) struct NetworkState {
    pub name: String,
    pub role: Role,
    pub tensor: Tensor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Outputs(Mode),
    Loss,
}

impl Kind {
    fn trains(self) -> bool {
        self != Self::Outputs(Mode::Infer)
    }
}

/// A forward pass for inputs of some types.
struct Pass {
    kind: Kind,
    given: Vec<(Arc<TensorType>, Batch)>,
    program: Program,
    sources: Vec<Source>,
    /// The states that it reads, in the order of operands.
    reads: Vec<usize>,
    /// The states that it replaces: the last results of the program.
    writes: Vec<usize>,
    /// Whether there is a penalty between outputs and states.
    penalty: bool,
}

/// Where an operand of a pass comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Given(usize),
    /// Seed and step.
    Key,
    /// The numbers of the examples.
    Examples,
}

/// What a network is called on: a tensor, or an array of references for a model of several inputs.
pub trait Inputs {
    /// The tensors, in the model's order.
    fn tensors(self) -> Result<Vec<Tensor>>;
}

impl Inputs for &Tensor {
    fn tensors(self) -> Result<Vec<Tensor>> {
        Ok(vec![self.clone()])
    }
}

impl Inputs for Tensor {
    fn tensors(self) -> Result<Vec<Tensor>> {
        Ok(vec![self])
    }
}

impl Inputs for Value {
    fn tensors(self) -> Result<Vec<Tensor>> {
        Ok(vec![self.get()?])
    }
}

impl Inputs for &[&Tensor] {
    fn tensors(self) -> Result<Vec<Tensor>> {
        Ok(self.iter().map(|&tensor| tensor.clone()).collect())
    }
}

impl<const N: usize> Inputs for [&Tensor; N] {
    fn tensors(self) -> Result<Vec<Tensor>> {
        self[..].tensors()
    }
}

/// A layer as a model without a target.
struct OneLayer<L> {
    name: String,
    layer: L,
    input: Field,
}

impl<L: Layer> Model for OneLayer<L> {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> Vec<Field> {
        vec![self.input.clone()]
    }

    fn target(&self) -> Field {
        Field::floats([])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let value = net.scope(&self.name, |net| self.layer.forward(net, inputs[0]))?;
        Ok(Head::Outputs(vec![value]))
    }
}

impl Eager {
    /// A model with first values of its own: those of a trainer's run with seed 0, its default.
    #[track_caller]
    pub fn model(&self, model: impl Model + 'static) -> Result<Network> {
        Network::new(&self.0, Box::new(model), true, 0, Location::caller())
    }

    /// As [`Eager::model`], with another seed for first values and random numbers.
    #[track_caller]
    pub fn model_with_seed(&self, model: impl Model + 'static, seed: u64) -> Result<Network> {
        Network::new(&self.0, Box::new(model), true, seed, Location::caller())
    }

    /// A layer, or a block of layers, for batches like `example`. First values depend on its name, which must differ from those of
    /// other layers.
    ///
    /// ```
    /// use plimsoll_eager::{Eager, Tape};
    /// use plimsoll_nn::{Dense, Mode};
    /// let eager = Eager::builder().build()?;
    /// let x = eager.tensor([[1.0f32, 2.0], [3.0, 4.0]])?;
    /// let mut hidden = eager.layer("hidden", Dense::new(3), &x)?;
    /// let tape = Tape::new();
    /// let loss = hidden.call(&x, Mode::Train)?.square().sum(&[0, 1], false);
    /// let gradients = tape.gradient(loss, &hidden.variables())?;
    /// assert_eq!(gradients[0].shape()[..], [2, 3]);
    /// # Ok::<(), plimsoll_eager::Error>(())
    /// ```
    #[track_caller]
    pub fn layer(&self, name: &str, layer: impl Layer + 'static, example: &Tensor) -> Result<Network> {
        let Some((_, inside)) = example.shape().split_first() else {
            return Err(Error::Argument(format!("layer `{name}` needs a batch: axis 0 counts examples")));
        };
        let input = Field { ty: TensorType::new(example.dtype(), inside), bound: None };
        let model = OneLayer { name: name.to_string(), layer, input };
        Network::new(&self.0, Box::new(model), false, 0, Location::caller())
    }
}

impl Network {
    fn new(
        context: &Arc<Context>,
        model: Box<dyn Model>,
        has_loss: bool,
        seed: u64,
        site: Site,
    ) -> Result<Self> {
        let numerics = context.executor.target().numerics();
        let graph = match has_loss {
            true => step::forward_loss(model.as_ref(), &numerics, (1, 1))?,
            false => step::forward(model.as_ref(), &numerics, (1, 1), Mode::Train)?,
        };
        let state = |state: &plimsoll_graph::State| {
            let ty = Arc::new(graph.ty(state.input).clone());
            let given = model.initial_values().filter(|values| values.has(&state.name, &ty.shape));
            let tensor = context.filled(ty.clone(), site, |bytes| match given {
                Some(values) => read(values, &state.name, bytes),
                None => {
                    write_first_values(state.init, &state.name, seed, ty.dtype, bytes);
                    Ok(())
                }
            })?;
            Ok(NetworkState { name: state.name.clone(), role: state.role, tensor })
        };
        let states = graph.states.iter().map(state).collect::<Result<_>>()?;
        Ok(Self {
            model,
            has_loss,
            context: context.clone(),
            states,
            seed,
            step: 0,
            first_example: 0,
            penalty: None,
            passes: Mutex::default(),
            traced: None,
        })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        self.model.name()
    }

    /// The trained parameters, in the model's order.
    pub fn variables(&self) -> Vec<&Tensor> {
        self.states.iter().filter(|state| state.role == Role::Parameter).map(|state| &state.tensor).collect()
    }

    /// All states by name: parameters and running statistics.
    pub fn states(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.states.iter().map(|state| (state.name.as_str(), &state.tensor))
    }

    /// Replaces a state, like `dense/kernel`: for weights that come from elsewhere.
    pub fn set_state(&mut self, name: &str, values: &plimsoll_tensor::Tensor) -> Result<()> {
        let Some(state) = self.states.iter_mut().find(|state| state.name == name) else {
            let model = self.model.name();
            return Err(Error::Argument(format!("`{model}` has no state `{name}`: see `network.states()`")));
        };
        if state.tensor.ty() != values.ty() {
            let wanted = state.tensor.ty();
            return Err(Error::Argument(format!("the state `{name}` is {wanted}, not {}", values.ty())));
        }
        state.tensor = Eager(self.context.clone()).tensor(values.clone())?;
        Ok(())
    }

    /// Calls on which it trains so far: the step that random numbers are drawn for.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Sets the step that the next call draws random numbers for, and the number of its batch's first example (0 unless set):
    /// to go on where a run stopped, or to draw what a trainer does. A compiled step keeps the number of the first example that it
    /// was traced with.
    pub fn set_position(&mut self, step: u64, first_example: u64) {
        (self.step, self.first_example) = (step, first_example);
    }

    /// What layers added to the loss in the last call with [`Mode::Train`], if any. [`Network::loss`] has it in the loss.
    pub fn penalty(&self) -> Option<&Tensor> {
        self.penalty.as_ref()
    }

    /// A tensor marked as a batch of this model: as [`Tensor::batch`], in the model's blocks, which are smaller where a loss has
    /// several rows per example. Calls mark what is not marked.
    pub fn batch(&self, tensor: &Tensor) -> Tensor {
        tensor.batch_in_blocks(self.block())
    }

    fn block(&self) -> usize {
        let numerics = self.context.executor.target().numerics();
        match self.has_loss {
            true => example_block(self.model.as_ref(), &numerics),
            false => numerics.block_rows.next_power_of_two(),
        }
    }

    /// Its first output on a batch. With [`Mode::Train`] batch norm uses the batch's statistics and the running ones move, and
    /// dropout drops.
    #[track_caller]
    pub fn call(&mut self, inputs: impl Inputs, mode: Mode) -> Result<Tensor> {
        self.run_and_update(Kind::Outputs(mode), inputs.tensors()?, Location::caller()).and_then(first)
    }

    /// As [`Network::call`], with all outputs.
    #[track_caller]
    pub fn outputs(&mut self, inputs: impl Inputs, mode: Mode) -> Result<Vec<Tensor>> {
        self.run_and_update(Kind::Outputs(mode), inputs.tensors()?, Location::caller())
    }

    /// [`Network::call`] with [`Mode::Infer`], which changes nothing.
    #[track_caller]
    pub fn predict(&self, inputs: impl Inputs) -> Result<Tensor> {
        self.run(Kind::Outputs(Mode::Infer), inputs.tensors()?, Location::caller())
            .and_then(|(found, _)| first(found))
    }

    /// The model's loss on a batch while training, one float: the mean over rows, and what layers add to it.
    #[track_caller]
    pub fn loss(&mut self, inputs: impl Inputs, targets: &Tensor) -> Result<Tensor> {
        let (inputs, site) = (inputs.tensors()?, Location::caller());
        let rule = self.model.loss();
        let classes = self.model.target().bound.unwrap_or(0);
        if (0..classes as i32).any(|label| rule.label_weight(label) != 1.0) {
            let reason = "this loss weighs classes: give each row's weight to `weighted_loss`";
            return Err(Error::Argument(format!("`{}`: {reason}", self.model.name())));
        }
        let examples = inputs.first().and_then(|x| x.shape().first().copied()).unwrap_or(0);
        let rows = TensorType::new(DType::F32, [&[examples], &step::rows(self.model.as_ref())[..]].concat());
        let weights = Eager(self.context.clone()).full(&rows, 1.0 / rows.shape.elements() as f64).get()?;
        self.loss_of(inputs, targets, weights, site)
    }

    /// As [`Network::loss`], with a weight for each row: `[examples]`, or `[examples, rows..]` where a target has several.
    #[track_caller]
    pub fn weighted_loss(
        &mut self,
        inputs: impl Inputs,
        targets: &Tensor,
        weights: &Tensor,
    ) -> Result<Tensor> {
        self.loss_of(inputs.tensors()?, targets, weights.clone(), Location::caller())
    }

    fn loss_of(
        &mut self,
        mut given: Vec<Tensor>,
        targets: &Tensor,
        weights: Tensor,
        site: Site,
    ) -> Result<Tensor> {
        if !self.has_loss {
            let reason = "is a layer, which has no loss: call it, and compute one from its output";
            return Err(Error::Argument(format!("`{}` {reason}", self.model.name())));
        }
        given.extend([targets.clone(), weights]);
        self.run_and_update(Kind::Loss, given, site).and_then(first)
    }

    fn run_and_update(&mut self, kind: Kind, given: Vec<Tensor>, site: Site) -> Result<Vec<Tensor>> {
        if !kind.trains() {
            return self.run(kind, given, site).map(|(found, _)| found);
        }
        let traced = given.iter().any(|tensor| tensor.trace().is_some());
        let (mut found, pass) = self.run(kind, given, site)?;
        if let Some(noted) = &mut self.traced {
            noted.turns += 1;
        } else if traced && !pass.writes.is_empty() {
            return Err(self.captured());
        } else {
            self.step += 1;
        }
        let states = found.split_off(found.len() - pass.writes.len());
        for (&i, tensor) in pass.writes.iter().zip(states) {
            self.states[i].tensor = tensor.unmarked();
        }
        if kind == Kind::Outputs(Mode::Train) {
            self.penalty = if pass.penalty { found.pop() } else { None };
        }
        Ok(found)
    }

    /// The error of training on tensors of a trace that does not know of the network.
    fn captured(&self) -> Error {
        let reason =
            "is trained inside a compiled function: give it to `compile_step`, which keeps its states";
        Error::Argument(format!("`{}` {reason}", self.model.name()))
    }

    /// All results of a pass. While training they end in the penalty, if there is one, and the new states.
    fn run(&self, kind: Kind, given: Vec<Tensor>, site: Site) -> Result<(Vec<Tensor>, Arc<Pass>)> {
        self.check(kind, &given)?;
        let mut given = self.marked(given)?;
        given.iter_mut().for_each(tape::from_outside);
        tape::watch_on_all(self.states.iter().filter(|s| s.role == Role::Parameter).map(|s| &s.tensor));
        let pass = self.pass(kind, &given)?;
        let mut operands = Vec::new();
        for &source in &pass.sources {
            operands.push(Operand::from(match source {
                Source::Given(i) => given[i].clone(),
                Source::Key => self.key(&given)?,
                Source::Examples => {
                    let numbers = (0..given[0].shape()[0] as u64).map(|i| (self.first_example + i) as i32);
                    let numbers = Eager(self.context.clone()).tensor(numbers.collect::<Vec<i32>>())?;
                    let batch = Batch { mark: BatchMark::input(true), ..given[0].batch };
                    Tensor { batch, ..numbers }
                }
            }));
        }
        drop(given);
        operands.extend(pass.reads.iter().map(|&i| Operand::from(self.states[i].tensor.unmarked())));
        let found = call_program(&pass.program, &mut operands, site)?;
        Ok((found, pass))
    }

    /// The key of the random numbers of a training call: seed and step.
    fn key(&self, given: &[Tensor]) -> Result<Tensor> {
        match &self.traced {
            Some(noted) => Ok(noted.setting(RANDOM, TensorType::new(DType::I64, [2]), 0)),
            None if given.iter().any(|tensor| tensor.trace().is_some()) => Err(self.captured()),
            None => Eager(self.context.clone()).key(self.seed, self.step),
        }
    }

    /// The bytes of the key of a training call that comes so many after the next.
    pub(crate) fn key_bytes(&self, call: u64) -> Vec<u8> {
        [self.seed, self.step + call].into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// An error if tensors are not what the model takes.
    fn check(&self, kind: Kind, given: &[Tensor]) -> Result<()> {
        let (name, inputs) = (self.model.name(), self.model.inputs());
        let count = given.len() - if kind == Kind::Loss { 2 } else { 0 };
        if count != inputs.len() || count == 0 {
            let wanted = inputs.len();
            let reason =
                format!("`{name}` takes {wanted} inputs, not {count}: call it on `[&a, &b]` with all");
            return Err(Error::Argument(reason));
        }
        let examples = given[0].shape().first().copied().unwrap_or(0);
        let mut fields = inputs;
        if kind == Kind::Loss {
            let rows = Field::floats(step::rows(self.model.as_ref()));
            fields.extend([self.model.target(), rows]);
        }
        for (i, (field, tensor)) in fields.iter().zip(given).enumerate() {
            let fits = tensor.dtype() == field.ty.dtype
                && tensor
                    .shape()
                    .split_first()
                    .is_some_and(|(&n, rest)| n == examples && n > 0 && *rest == field.ty.shape[..]);
            if fits {
                continue;
            }
            let what = match i.checked_sub(count) {
                None if count == 1 => "an input".to_string(),
                None => format!("input {i}"),
                Some(0) => "targets".to_string(),
                Some(_) => "row weights".to_string(),
            };
            let sizes: Vec<String> = field.ty.shape.iter().map(ToString::to_string).collect();
            let batch = if i == 0 { "batch".to_string() } else { examples.to_string() };
            let wanted = [vec![batch], sizes].concat().join(",");
            return Err(Error::Argument(format!(
                "`{name}` takes {what} {}[{wanted}], not {}: reshape or cast the tensor first",
                field.ty.dtype,
                tensor.ty()
            )));
        }
        Ok(())
    }

    /// Tensors as batches: those without a mark get that of the others, or the model's.
    fn marked(&self, given: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let own = |tensor: &Tensor| match tensor.trace() {
            Some(trace) => trace.batch_of(tensor),
            None => tensor.batch,
        };
        let batch = given.iter().map(own).find(|batch| batch.mark.axis);
        let batch = batch.unwrap_or_else(|| Batch {
            mark: BatchMark::input(true),
            examples: given[0].shape()[0],
            block: self.block(),
        });
        let mark = |tensor: Tensor| {
            let own = own(&tensor);
            if own.mark.axis {
                return Ok(Tensor { batch: own, ..tensor });
            }
            let fresh = Batch { mark: BatchMark::input(true), ..batch };
            if own.mark.relation != BatchRelation::Independent || tape::is_recorded(&tensor) {
                return Err(Error::Argument(format!(
                    "`{}` takes batches, and {} was computed or watched without a mark: mark it before, with \
                     `network.batch(&tensor)`",
                    self.model.name(),
                    tensor.ty()
                )));
            }
            match tensor.trace().cloned() {
                Some(trace) => trace.mark(&tensor, fresh),
                None => Ok(Tensor { batch: fresh, ..tensor }),
            }
        };
        given.into_iter().map(mark).collect()
    }

    /// The pass for tensors of these types: kept, or made.
    fn pass(&self, kind: Kind, given: &[Tensor]) -> Result<Arc<Pass>> {
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |pass: &&Arc<Pass>| {
            let types = pass.given.iter().map(|(ty, batch)| (ty, *batch));
            pass.kind == kind && types.eq(given.iter().map(|tensor| (&tensor.ty, tensor.batch)))
        };
        if let Some(found) = passes.iter().find(same) {
            return Ok(found.clone());
        }
        let made = Arc::new(self.new_pass(kind, given)?);
        if passes.len() >= MOST_PASSES {
            passes.remove(0);
        }
        passes.push(made.clone());
        Ok(made)
    }

    fn new_pass(&self, kind: Kind, given: &[Tensor]) -> Result<Pass> {
        let numerics = self.context.executor.target().numerics();
        let Batch { examples, block, .. } = given[0].batch;
        let (model, batch) = (self.model.as_ref(), (examples, block));
        let graph = match kind {
            Kind::Outputs(mode) => step::forward(model, &numerics, batch, mode)?,
            Kind::Loss => step::forward_loss(model, &numerics, batch)?,
        };
        let count = model.inputs().len();
        let source = |name: &str| match name {
            RANDOM => Some(Source::Key),
            EXAMPLES => Some(Source::Examples),
            LABELS => Some(Source::Given(count)),
            WEIGHTS => Some(Source::Given(count + 1)),
            _ => (0..count).find(|&i| input_name(i) == name).map(Source::Given),
        };
        let lost = |what: &str| Error::Argument(format!("nothing gives `{what}` of `{}`", model.name()));
        let sources = graph.inputs.iter().map(|input| source(&input.name).ok_or_else(|| lost(&input.name)));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let index = |state: &plimsoll_graph::State| {
            self.states.iter().position(|own| own.name == state.name).ok_or_else(|| lost(&state.name))
        };
        let reads = graph.states.iter().map(index).collect::<Result<Vec<_>>>()?;
        let written = graph.states.iter().zip(&reads).filter(|(state, _)| state.output.is_some());
        let writes: Vec<usize> = written.map(|(_, &i)| i).collect();
        let program = self.program(&graph, &sources, given, batch)?;
        let penalty = graph.output(PENALTY).is_some();
        let given = given.iter().map(|tensor| (tensor.ty.clone(), tensor.batch)).collect();
        Ok(Pass { kind, given, program, sources, reads, writes, penalty })
    }

    /// The graph as a program: operands are its inputs and states, results its outputs and new states.
    fn program(
        &self,
        graph: &Graph,
        sources: &[Source],
        given: &[Tensor],
        batch: (usize, usize),
    ) -> Result<Program> {
        let inputs = graph.inputs.iter().zip(sources).map(|(input, source)| {
            let mark = match source {
                Source::Given(i) => given[*i].batch.mark,
                Source::Key | Source::Examples => BatchMark::input(input.batched),
            };
            (input.value, mark)
        });
        let states = graph.states.iter().map(|state| (state.input, BatchMark::input(false)));
        let operands: Vec<(ValueId, BatchMark)> = inputs.chain(states).collect();
        let types: Vec<_> =
            operands.iter().map(|&(value, mark)| (Arc::new(graph.ty(value).clone()), mark)).collect();
        let executor = self.context.executor.as_ref();
        Program::new(executor, "network", &types, batch, |b, values| {
            let mut map = vec![None; graph.value_count()];
            operands.iter().zip(values).for_each(|((old, _), new)| map[old.index()] = Some(*new));
            append(graph, b, &mut map, Layers::Inside)?;
            let outputs = graph.outputs.iter().map(|output| output.value);
            let results = outputs.chain(graph.states.iter().filter_map(|state| state.output));
            Ok(results.filter_map(|value| map[value.index()]).collect())
        })
    }
}

fn first(tensors: Vec<Tensor>) -> Result<Tensor> {
    let found = tensors.into_iter().next();
    found.ok_or_else(|| Error::Argument("the network has no output".into()))
}

/// Reads a state's first values from where the model has them.
fn read(values: &dyn InitialValues, name: &str, bytes: &mut [u8]) -> Result<()> {
    let mut offset = 0;
    for chunk in bytes.chunks_mut(CHUNK * 4) {
        values.read(name, offset, chunk)?;
        offset += chunk.len();
    }
    Ok(())
}

fn write_first_values(init: Init, name: &str, seed: u64, dtype: DType, bytes: &mut [u8]) {
    let (size, mut chunk) = (dtype.bytes(), Vec::new());
    let elements = bytes.len() / size;
    for first in (0..elements).step_by(CHUNK) {
        let last = elements.min(first + CHUNK);
        chunk.clear();
        first_values(init, name, seed, dtype, first..last, &mut chunk);
        bytes[first * size..last * size].copy_from_slice(&chunk);
    }
}
