//! Tapes: gradients of what was computed.
//!
//! A tape records the ops on what it watches as nodes of a graph, and holds their values. For a gradient, backward is
//! appended to that graph by the rules of `transform`, and its nodes run one by one; each value is let go after its last use.
//! A value that the tape does not hold is computed again when backward asks for it: cheap ones inside a composed method,
//! and all of a [`checkpoint`].

use crate::call::{Operand, call_op, call_source};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::program::{Batch, Layers, Program, append};
use crate::tensor::{IntoOperand, Tensor};
use plimsoll_graph::{BatchMark, Builder, Node, NodeId, Origin, ValueId};
use plimsoll_transform::gradient;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// Records the ops of this thread on the tensors that it watches, and what follows from them.
///
/// A tape gives gradients once; it is done then, and lets go of all that it held. A persistent one gives any number, and
/// holds its values until it is dropped. Tapes may be nested: an outer one records the gradients that an inner one takes.
///
/// ```
/// use plimsoll_eager::{Tape, tensor};
/// let (x, w) = (tensor([[1.0f32, 2.0], [3.0, 4.0]])?, tensor([[0.5f32], [-1.0]])?);
/// let tape = Tape::new();
/// tape.watch(&w);
/// let loss = x.matmul(&w).square().sum(&[0, 1], false);
/// let gradients = tape.gradient(loss, &[&w])?;
/// assert_eq!(gradients[0].to_vec::<f32>()?, [-18.0, -26.0]);
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
pub struct Tape {
    record: Rc<RefCell<Record>>,
}

/// Contexts with their numbers, as names of layers.
type Contexts = Vec<(Arc<Context>, Arc<str>)>;

struct Record {
    persistent: bool,
    /// Whether it gave its gradients, and is done.
    used: bool,
    /// Whether it looks away, while it takes a gradient itself.
    paused: bool,
    builder: Builder,
    /// The values that it holds, by the builder's values.
    values: Vec<Option<Tensor>>,
    /// The builder's value of each tensor that is watched or was computed from such.
    known: HashMap<u64, ValueId>,
    /// And of each that is not, but is an operand beside them.
    beside: HashMap<u64, ValueId>,
    watched: HashSet<u64>,
    /// The contexts that nodes run in: the layer of a node is its context's number here, and backward's nodes have that of
    /// the node whose gradient they compute.
    contexts: Contexts,
}

thread_local! {
    static TAPES: RefCell<Vec<Rc<RefCell<Record>>>> = const { RefCell::new(Vec::new()) };
    /// How many there are: looked at by every op.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// The records that an op on these operands belongs to. Operands that a tape watches count as from outside.
#[inline]
pub(crate) fn recorders(operands: &mut [Operand<'_>]) -> Recorders {
    if COUNT.get() == 0 { Recorders(Vec::new()) } else { recorders_of(operands) }
}

fn recorders_of(operands: &mut [Operand<'_>]) -> Recorders {
    for operand in operands.iter_mut() {
        if let Operand::Tensor(tensor) = operand
            && is_watched(tensor)
        {
            let tensor = tensor.to_mut();
            tensor.batch = fresh(tensor);
        }
    }
    let tapes = TAPES.with_borrow(|tapes| tapes.clone());
    let knows = |record: &Record| {
        let known =
            |operand: &Operand<'_>| matches!(operand, Operand::Tensor(t) if record.known.contains_key(&t.id));
        !record.paused && !record.used && operands.iter().any(known)
    };
    Recorders(tapes.into_iter().filter(|tape| knows(&tape.borrow())).collect())
}

/// Gives an operand that a tape watches the mark of one from outside.
pub(crate) fn from_outside(tensor: &mut Tensor) {
    if COUNT.get() > 0 && is_watched(tensor) {
        tensor.batch = fresh(tensor);
    }
}

/// Whether a tape of this thread watches a tensor.
fn is_watched(tensor: &Tensor) -> bool {
    let watches = |tape: &Rc<RefCell<Record>>| tape.borrow().watched.contains(&tensor.id);
    TAPES.with_borrow(|tapes| tapes.iter().any(watches))
}

/// The tapes of this thread that record.
fn recording() -> Vec<Rc<RefCell<Record>>> {
    if COUNT.get() == 0 {
        return Vec::new();
    }
    let records = |tape: &Rc<RefCell<Record>>| {
        let record = tape.borrow();
        !record.paused && !record.used
    };
    TAPES.with_borrow(|tapes| tapes.iter().filter(|tape| records(tape)).cloned().collect())
}

/// Lets all tapes of this thread watch tensors.
pub(crate) fn watch_on_all<'t>(tensors: impl Iterator<Item = &'t Tensor> + Clone) {
    for tape in recording() {
        let record = &mut *tape.borrow_mut();
        tensors.clone().for_each(|tensor| record.watch(tensor));
    }
}

/// Whether a tape of this thread knows a tensor.
pub(crate) fn is_recorded(tensor: &Tensor) -> bool {
    recording().iter().any(|tape| tape.borrow().known.contains_key(&tensor.id))
}

/// Lets the tapes that know a tensor know its copy on another device: to them it is the same value.
pub(crate) fn follow(tensor: &Tensor, mut copy: Tensor) -> Tensor {
    let mut operands = [Operand::from(tensor)];
    for record in recorders(&mut operands).0 {
        let mut record = record.borrow_mut();
        if let Some(&value) = record.known.get(&tensor.id) {
            record.known.insert(copy.id, value);
        }
    }
    let [Operand::Tensor(operand)] = operands else { return copy };
    copy.batch = operand.batch;
    copy
}

pub(crate) struct Recorders(Vec<Rc<RefCell<Record>>>);

impl Recorders {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a program that ran, with the values of its graph to be kept, and its outputs.
    pub fn record(
        &self,
        program: &Program,
        operands: &[Operand<'_>],
        values: &[(ValueId, Tensor)],
        outputs: &[Tensor],
        batch: (usize, usize),
    ) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|record| record.borrow_mut().add(program, operands, values, outputs, batch))
    }
}

/// The mark of a tensor that counts as from outside.
pub(crate) fn fresh(tensor: &Tensor) -> Batch {
    match tensor.batch.mark.axis {
        true => Batch { mark: BatchMark::input(true), ..tensor.batch },
        false => Batch::NONE,
    }
}

/// Makes a builder one of this batch; an error if it is of another.
pub(crate) fn set_batch(b: &mut Builder, op: &'static str, batch: (usize, usize)) -> Result<()> {
    let first = (b.graph().examples, b.graph().example_block);
    if batch == (1, 1) || first == batch {
        return Ok(());
    }
    if first != (1, 1) {
        return Err(Error::Batches { op, first, second: batch });
    }
    b.set_batch(batch.0, batch.1);
    Ok(())
}

impl Record {
    /// The builder's value of a tensor: one that is known, or a new one from outside.
    fn value_of(&mut self, tensor: &Tensor) -> ValueId {
        let found = self.known.get(&tensor.id).or_else(|| self.beside.get(&tensor.id));
        if let Some(&value) = found {
            return value;
        }
        let value = self.builder.marked_input("tensor", (*tensor.ty).clone(), tensor.batch.mark);
        self.beside.insert(tensor.id, value);
        self.hold(value, tensor);
        value
    }

    /// The number of a context, as a layer's name.
    fn number_of(&mut self, context: &Arc<Context>) -> Arc<str> {
        if let Some((_, number)) = self.contexts.iter().find(|(other, _)| Arc::ptr_eq(other, context)) {
            return number.clone();
        }
        let number: Arc<str> = self.contexts.len().to_string().into();
        self.contexts.push((context.clone(), number.clone()));
        number
    }

    fn watch(&mut self, tensor: &Tensor) {
        if tensor.trace().is_none() && !self.known.contains_key(&tensor.id) {
            // A batch of another size is an error of the first op on it.
            let batch = fresh(tensor);
            let _ = set_batch(&mut self.builder, "watch", (batch.examples, batch.block));
            let value = self.builder.marked_input("watched", (*tensor.ty).clone(), batch.mark);
            self.known.insert(tensor.id, value);
            self.hold(value, tensor);
        }
        self.watched.insert(tensor.id);
    }

    fn hold(&mut self, value: ValueId, tensor: &Tensor) {
        self.values.resize(self.builder.graph().value_count(), None);
        self.values[value.index()] = Some(tensor.clone());
    }

    fn add(
        &mut self,
        program: &Program,
        operands: &[Operand<'_>],
        values: &[(ValueId, Tensor)],
        outputs: &[Tensor],
        batch: (usize, usize),
    ) -> Result<()> {
        set_batch(&mut self.builder, program.name, batch)?;
        let graph = &program.graph;
        let context = outputs.first().map(|output| self.number_of(output.context())).unwrap_or_default();
        let mut map = vec![None; graph.value_count()];
        for (input, operand) in graph.inputs.iter().zip(operands) {
            let dtype = graph.ty(input.value).dtype;
            map[input.value.index()] = Some(match operand {
                Operand::Tensor(tensor) => self.value_of(tensor),
                Operand::Number(number) => {
                    self.builder.within(context.clone(), |b| b.constant(*number, dtype))?
                }
            });
        }
        self.builder.within(context, |b| append(graph, b, &mut map, Layers::Replaced))?;
        self.values.resize(self.builder.graph().value_count(), None);
        for (value, tensor) in values {
            let Some(own) = map[value.index()] else { continue };
            // By its name an outer tape knows it in the gradient that an inner one takes.
            self.known.insert(tensor.id, own);
            self.values[own.index()] = Some(tensor.clone());
        }
        for (output, tensor) in graph.outputs.iter().zip(outputs) {
            if let Some(own) = map[output.value.index()] {
                self.known.insert(tensor.id, own);
                self.hold(own, tensor);
            }
        }
        Ok(())
    }

    /// Lets go of everything, and returns the graph with the values.
    fn take(&mut self) -> (Builder, Vec<Option<Tensor>>) {
        self.used = true;
        self.known.clear();
        self.beside.clear();
        let builder = std::mem::replace(&mut self.builder, Builder::new(1, 1));
        (builder, std::mem::take(&mut self.values))
    }
}

impl Default for Tape {
    fn default() -> Self {
        Self::new()
    }
}

impl Tape {
    /// A tape that gives gradients once.
    pub fn new() -> Self {
        Self::with(false)
    }

    /// A tape that gives gradients any number of times.
    pub fn persistent() -> Self {
        Self::with(true)
    }

    fn with(persistent: bool) -> Self {
        let record = Rc::new(RefCell::new(Record {
            persistent,
            used: false,
            paused: false,
            builder: Builder::new(1, 1),
            values: Vec::new(),
            known: HashMap::new(),
            beside: HashMap::new(),
            watched: HashSet::new(),
            contexts: Vec::new(),
        }));
        TAPES.with_borrow_mut(|tapes| tapes.push(record.clone()));
        COUNT.set(COUNT.get() + 1);
        Self { record }
    }

    /// Watches a tensor: the ops on it that follow are recorded. In them it counts as from outside, whatever it was computed
    /// from.
    pub fn watch(&self, tensor: &Tensor) {
        self.record.borrow_mut().watch(tensor);
    }

    /// The gradients of a loss, which is one float, with respect to tensors that are watched or were computed from such.
    #[track_caller]
    pub fn gradient(&self, loss: impl IntoOperand, variables: &[&Tensor]) -> Result<Vec<Tensor>> {
        let loss = loss.tensor()?;
        if self.record.borrow().used {
            return Err(Error::TapeUsed);
        }
        if let Some(trace) = loss.trace() {
            let watched = |t: &Tensor| self.record.borrow().watched.contains(&t.id);
            let found = trace.gradient(&loss, variables, watched)?;
            let mut record = self.record.borrow_mut();
            record.used = !record.persistent;
            return Ok(found);
        }
        let find = |tensor: &Tensor, what: String| {
            let known = self.record.borrow().known.get(&tensor.id).copied();
            known.ok_or_else(|| Error::NotWatched { what, ty: (*tensor.ty).clone() })
        };
        let loss_value = find(&loss, "the loss".into())?;
        let wanted = variables.iter().enumerate().map(|(i, v)| find(v, format!("variable {i}")));
        let wanted = wanted.collect::<Result<Vec<_>>>()?;
        let (mut builder, values) = {
            let mut record = self.record.borrow_mut();
            if record.persistent { (record.builder.clone(), record.values.clone()) } else { record.take() }
        };
        let context = loss.context().clone();
        drop(loss);
        let forward = builder.graph().nodes.len();
        let numerics = context.executor.target().numerics();
        let gradients = gradient(&mut builder, &numerics, loss_value, &wanted)?;
        let contexts = self.record.borrow().contexts.clone();
        let site = Location::caller();
        let mut backward = Backward::new(&builder, (context, contexts), values, &gradients, site);
        self.record.borrow_mut().paused = true;
        let ran = builder.graph().node_ids().skip(forward).try_for_each(|node| backward.run(node));
        let missing = |v: &ValueId| Error::Argument(format!("{v} of a tape has no value"));
        let values = &backward.values;
        // A gradient is where its variable is.
        let there = |(v, variable): (&ValueId, &&Tensor)| {
            let gradient = values[v.index()].as_ref().ok_or_else(|| missing(v))?;
            gradient.copy_to(variable.context(), site)
        };
        let found = ran.and_then(|()| gradients.iter().zip(variables).map(there).collect());
        self.record.borrow_mut().paused = false;
        found
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        TAPES.with_borrow_mut(|tapes| tapes.retain(|other| !Rc::ptr_eq(other, &self.record)));
        COUNT.set(TAPES.with_borrow(Vec::len));
    }
}

/// Runs a part of a computation whose values the tapes of this thread do not keep, but for its result: backward computes
/// them again.
///
/// ```
/// use plimsoll_eager::{Tape, checkpoint, tensor};
/// let x = tensor([0.5f32, 1.0])?;
/// let tape = Tape::new();
/// tape.watch(&x);
/// let y = checkpoint(|| x.exp().sin().exp().get())?;
/// let dx = tape.gradient(y.sum(&[0], false), &[&x])?;
/// assert_eq!(dx[0].shape()[..], [2]);
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
pub fn checkpoint(segment: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let tapes = TAPES.with_borrow(|tapes| tapes.clone());
    let before: Vec<usize> = tapes.iter().map(|tape| tape.borrow().values.len()).collect();
    let result = segment()?;
    for (tape, first) in tapes.iter().zip(before) {
        let record = &mut *tape.borrow_mut();
        let own = record.known.get(&result.id).copied();
        for (index, held) in record.values.iter_mut().enumerate().skip(first) {
            let value = ValueId(index as u32);
            let inner = matches!(record.builder.graph().origin(value), Origin::Node { .. });
            if inner && own != Some(value) {
                *held = None;
            }
        }
    }
    Ok(result)
}

/// A recorded graph with backward appended, as it runs.
struct Backward<'a> {
    builder: &'a Builder,
    /// The loss's, and those of the record.
    context: Arc<Context>,
    contexts: Contexts,
    values: Vec<Option<Tensor>>,
    /// How often each value is still read.
    uses: Vec<usize>,
    /// The nodes that are to run.
    needed: Vec<bool>,
    site: Site,
}

impl<'a> Backward<'a> {
    fn new(
        builder: &'a Builder,
        (context, contexts): (Arc<Context>, Contexts),
        mut values: Vec<Option<Tensor>>,
        wanted: &[ValueId],
        site: Site,
    ) -> Self {
        let graph = builder.graph();
        values.resize(graph.value_count(), None);
        let (mut uses, mut needed) = (vec![0; values.len()], vec![false; graph.nodes.len()]);
        let mut stack = wanted.to_vec();
        while let Some(value) = stack.pop() {
            uses[value.index()] += 1;
            if values[value.index()].is_none()
                && let Some(node) = graph.producer(value)
                && !std::mem::replace(&mut needed[node.index()], true)
            {
                stack.extend(&graph.node(node).inputs);
            }
        }
        // What backward does not read is let go before it begins.
        values.iter_mut().zip(&uses).filter(|(_, uses)| **uses == 0).for_each(|(value, _)| *value = None);
        Self { builder, context, contexts, values, uses, needed, site }
    }

    /// Runs a node, after those that write its inputs if they are not there.
    fn run(&mut self, node: NodeId) -> Result<()> {
        let builder = self.builder;
        let mut stack = vec![node];
        while let Some(&top) = stack.last() {
            if !self.needed[top.index()] {
                stack.pop();
                continue;
            }
            let inputs = &builder.graph().node(top).inputs;
            let missing = inputs.iter().filter(|v| self.values[v.index()].is_none());
            let before = stack.len();
            stack.extend(missing.filter_map(|&v| builder.graph().producer(v)));
            if stack.len() == before {
                stack.pop();
                self.needed[top.index()] = false;
                self.run_one(builder.graph().node(top))?;
            }
        }
        Ok(())
    }

    /// Runs a node whose inputs are there.
    fn run_one(&mut self, node: &Node) -> Result<()> {
        let graph = self.builder.graph();
        let marked = |&value: &ValueId| {
            let mark = self.builder.batch_mark(value);
            let own = Batch { mark, examples: graph.examples, block: graph.example_block };
            let batch = if mark == BatchMark::input(false) { Batch::NONE } else { own };
            Some(Tensor { batch, ..self.values[value.index()].clone()? })
        };
        let inputs: Vec<Tensor> = node.inputs.iter().filter_map(marked).collect();
        for value in &node.inputs {
            let uses = &mut self.uses[value.index()];
            *uses -= 1;
            if *uses == 0 {
                self.values[value.index()] = None;
            }
        }
        let context = self.contexts.iter().find(|(_, number)| *number == node.layer);
        let context = context.map_or(&self.context, |(context, _)| context);
        let outputs = match inputs.is_empty() {
            true => call_source(context, &node.op, self.site)?,
            false => {
                let here = inputs.iter().map(|tensor| tensor.copy_to(context, self.site));
                let here = here.collect::<Result<Vec<_>>>()?;
                drop(inputs);
                call_op(&node.op, here, self.site)?
            }
        };
        for (value, tensor) in node.outputs.iter().zip(outputs) {
            if self.uses[value.index()] > 0 {
                self.values[value.index()] = Some(tensor);
            }
        }
        Ok(())
    }
}
