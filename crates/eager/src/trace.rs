//! Traces: functions of tensors as graphs, recorded while they run on tensors without values.

use crate::call::{Operand, Outputs};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::program::{Batch, Layers, Program, append};
use crate::tape::{fresh, set_batch};
use crate::tensor::{Storage, Tensor};
use plimsoll_graph::{BatchMark, Builder, Init, Origin, Role, ValueId};
use plimsoll_tensor::TensorType;
use plimsoll_transform::gradient;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A function as it is traced.
pub(crate) struct Trace {
    pub context: Arc<Context>,
    state: Mutex<TraceState>,
}

pub(crate) struct TraceState {
    pub builder: Builder,
    /// Where each of the graph's inputs comes from.
    pub sources: Vec<Source>,
    /// Tensors that the function uses and that are not among its inputs.
    pub captured: Vec<Tensor>,
    /// The values of inputs and captured tensors.
    known: HashMap<u64, ValueId>,
    pub settings: Vec<Setting>,
    /// The states of the function's parts, by part and place in it: where they begin, and their values now.
    pub states: HashMap<(usize, usize), (ValueId, Tensor)>,
    /// What gradients were first taken of: the pass that saves values for backward needs to know.
    pub loss: Option<ValueId>,
    /// An input that is to be marked like this: the function is traced again then.
    pub mark: Option<(usize, Batch)>,
}

/// Where an input of a traced graph comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The function's.
    Input(usize),
    Captured(usize),
    Setting(usize),
}

/// A value that changes from run to run: a number of a part's that comes so many turns (training calls of a network, updates of an
/// optimizer) after its next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub part: usize,
    pub turn: u64,
    pub index: usize,
}

/// What a network or optimizer knows of the trace that it is a part of.
#[derive(Clone)]
pub(crate) struct TracedPart {
    pub trace: Arc<Trace>,
    pub part: usize,
    /// Training calls or updates so far.
    pub turns: u64,
}

impl TracedPart {
    /// A setting of the next turn.
    pub fn setting(&self, name: &str, ty: TensorType, index: usize) -> Tensor {
        let mut state = self.trace.lock();
        let value = state.builder.setting(name, ty);
        let number = state.settings.len();
        state.sources.push(Source::Setting(number));
        state.settings.push(Setting { part: self.part, turn: self.turns, index });
        self.trace.tensor(&state.builder, value)
    }

    /// A state of the part.
    pub fn state(&self, place: usize, name: String, role: Role, tensor: &Tensor) -> Tensor {
        let mut state = self.trace.lock();
        let value = state.builder.named_state(name, (*tensor.ty).clone(), role, Init::Zeros);
        state.states.insert((self.part, place), (value, tensor.clone()));
        self.trace.tensor(&state.builder, value)
    }
}

impl Trace {
    /// The trace of a function of inputs of these types and marks, and the inputs.
    pub fn new(context: &Arc<Context>, inputs: &[(TensorType, Batch)]) -> Result<(Arc<Self>, Vec<Tensor>)> {
        let state = TraceState {
            builder: Builder::new(1, 1),
            sources: Vec::new(),
            captured: Vec::new(),
            known: HashMap::new(),
            settings: Vec::new(),
            states: HashMap::new(),
            loss: None,
            mark: None,
        };
        let trace = Arc::new(Self { context: context.clone(), state: Mutex::new(state) });
        let mut state = trace.lock();
        let mut tensors = Vec::new();
        for (i, (ty, batch)) in inputs.iter().enumerate() {
            set_batch(&mut state.builder, "compile", (batch.examples, batch.block))?;
            let value = state.builder.marked_input(&format!("input{i}"), ty.clone(), batch.mark);
            state.sources.push(Source::Input(i));
            tensors.push(trace.tensor(&state.builder, value));
        }
        drop(state);
        Ok((trace, tensors))
    }

    pub fn lock(&self) -> MutexGuard<'_, TraceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tensor for a value.
    fn tensor(self: &Arc<Self>, b: &Builder, value: ValueId) -> Tensor {
        Tensor::traced(Arc::new(b.ty(value).clone()), batch_in(b, value), self.clone(), value)
    }

    /// A tensor like this one, without memory.
    pub fn placeholder(self: &Arc<Self>, tensor: &Tensor) -> Tensor {
        Tensor::traced(tensor.ty.clone(), Batch::NONE, self.clone(), ValueId(0))
    }

    /// The mark of a tensor, as the graph knows it.
    pub fn batch_of(&self, tensor: &Tensor) -> Batch {
        match tensor.storage {
            Storage::Traced(_, value) => batch_in(&self.lock().builder, value),
            Storage::Buffer(_) => tensor.batch,
        }
    }

    /// Asks for an input to be marked as a batch. That is an error, after which the function is traced again; or one that says what to
    /// do, if the tensor is no input, or was used without the mark.
    pub fn mark(&self, tensor: &Tensor, batch: Batch) -> Result<Tensor> {
        let mut state = self.lock();
        let graph = state.builder.graph();
        let input = match tensor.storage {
            Storage::Traced(_, value) => match graph.origin(value) {
                Origin::Input(i) if !graph.nodes.iter().any(|node| node.inputs.contains(&value)) => Some(i),
                _ => None,
            },
            Storage::Buffer(_) => None,
        };
        let found = input.and_then(|i| match state.sources[i] {
            Source::Input(i) => Some(i),
            Source::Captured(_) | Source::Setting(_) => None,
        });
        state.mark = found.map(|i| (i, batch));
        Err(Error::Argument(format!(
            "a network takes {} as a batch, which a compiled function computed without a mark: mark the function's inputs \
             before, with `tensor.batch()`",
            tensor.ty()
        )))
    }

    /// Adds a program to the function.
    pub fn record(
        self: &Arc<Self>,
        program: &Program,
        operands: &[Operand<'_>],
        batch: (usize, usize),
    ) -> Result<Outputs> {
        let mut state = self.lock();
        set_batch(&mut state.builder, program.name, batch)?;
        let graph = &program.graph;
        let mut map = vec![None; graph.value_count()];
        for (input, operand) in graph.inputs.iter().zip(operands) {
            map[input.value.index()] = Some(match operand {
                Operand::Tensor(tensor) => state.value_of(tensor),
                Operand::Number(number) => state.builder.constant(*number, graph.ty(input.value).dtype)?,
            });
        }
        state.builder.within(current_layer(), |b| append(graph, b, &mut map, Layers::Inside))?;
        let outputs = graph.outputs.iter().filter_map(|output| map[output.value.index()]);
        Ok(Outputs::Many(outputs.map(|value| self.tensor(&state.builder, value)).collect()))
    }

    /// Adds the gradients of a loss.
    pub fn gradient(
        self: &Arc<Self>,
        loss: &Tensor,
        variables: &[&Tensor],
        watched: impl Fn(&Tensor) -> bool,
    ) -> Result<Vec<Tensor>> {
        let mut state = self.lock();
        let mut wanted = Vec::new();
        for (i, variable) in variables.iter().enumerate() {
            let value = state.value_of(variable);
            let outside = !matches!(state.builder.graph().origin(value), Origin::Node { .. });
            if outside && !watched(variable) {
                return Err(Error::NotWatched { what: format!("variable {i}"), ty: (*variable.ty).clone() });
            }
            wanted.push(value);
        }
        let loss = state.value_of(loss);
        state.loss.get_or_insert(loss);
        let numerics = self.context.executor.target().numerics();
        let found = gradient(&mut state.builder, &numerics, loss, &wanted)?;
        Ok(found.into_iter().map(|value| self.tensor(&state.builder, value)).collect())
    }
}

/// The mark of a value.
fn batch_in(b: &Builder, value: ValueId) -> Batch {
    let mark = b.batch_mark(value);
    let own = Batch { mark, examples: b.graph().examples, block: b.graph().example_block };
    if mark == BatchMark::input(false) { Batch::NONE } else { own }
}

impl TraceState {
    /// The value of a tensor; one that is not of the trace is captured.
    pub fn value_of(&mut self, tensor: &Tensor) -> ValueId {
        if let Storage::Traced(_, value) = tensor.storage {
            return value;
        }
        if let Some(&value) = self.known.get(&tensor.id) {
            return value;
        }
        let number = self.captured.len();
        let mark = fresh(tensor).mark;
        let value = self.builder.marked_input(&format!("captured{number}"), (*tensor.ty).clone(), mark);
        self.sources.push(Source::Captured(number));
        self.captured.push(tensor.clone());
        self.known.insert(tensor.id, value);
        value
    }
}

thread_local! {
    /// The path of the layer that ops of this thread are traced in.
    static LAYER: RefCell<Arc<str>> = RefCell::new(Arc::from(""));
}

pub(crate) fn current_layer() -> Arc<str> {
    LAYER.with_borrow(Clone::clone)
}

/// Runs a part of a function that is compiled as a layer of this name: [`Compiled::lifetimes`](crate::Compiled::lifetimes) then
/// tells what its values, and those of its gradients, take and until when. Layers may be nested; outside of compiled functions names
/// mean nothing.
pub fn layer<T>(name: &str, part: impl FnOnce() -> T) -> T {
    /// Sets the layer back, also when the part panics.
    struct Outer(Arc<str>);
    impl Drop for Outer {
        fn drop(&mut self) {
            LAYER.set(self.0.clone());
        }
    }
    let outer = current_layer();
    let path = if outer.is_empty() { name.to_string() } else { format!("{outer}/{name}") };
    LAYER.set(path.into());
    let _outer = Outer(outer);
    part()
}
