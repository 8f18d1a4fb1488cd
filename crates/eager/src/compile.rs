//! Functions of tensors as planned steps.

use crate::context::{Context, Eager};
use crate::error::{Error, Result};
use crate::memory::{Memory, Site};
use crate::program::Batch;
use crate::states::{Slot, States};
use crate::tape::fresh;
use crate::tensor::Tensor;
use crate::trace::{Setting, Source, Trace, TraceState};
use plimsoll_graph::{Builder, Graph};
use plimsoll_plan::{Budget, ExecutionPlan, Lifetime, PlanError, PlanSet, Size, in_words, plan};
use plimsoll_runtime::{Input, KernelSession};
use plimsoll_tensor::TensorType;
use plimsoll_transform::{LOSS, optimize};
use std::panic::Location;
use std::sync::Arc;

/// A function of tensors, compiled: a session that owns its memory until it is dropped.
///
/// ```
/// use plimsoll_eager::{Tape, Tensor, compile, tensor};
/// use plimsoll_plan::MiB;
/// let step = |inputs: &[Tensor]| {
///     let [x, w] = inputs else { unreachable!("two inputs") };
///     let tape = Tape::new();
///     tape.watch(w);
///     let loss = x.matmul(w).square().sum(&[0, 1], false).get()?;
///     let gradients = tape.gradient(&loss, &[w])?;
///     Ok([vec![loss], gradients].concat())
/// };
/// let (x, w) = (tensor([[1.0f32, 2.0], [3.0, 4.0]])?, tensor([[0.5f32], [-1.0]])?);
/// let mut compiled = compile(step, &[&x, &w], MiB(1))?;
/// let found = compiled.run(&[&x, &w])?;
/// assert_eq!(found[1].to_vec::<f32>()?, [-18.0, -26.0]);
/// assert_eq!(found[1].to_vec::<f32>()?, step(&[x, w])?[1].to_vec::<f32>()?);
/// assert_eq!(compiled.trace_log().len(), 1);
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
pub struct Compiled<S: States = ()> {
    function: Box<Function<S>>,
    states: S,
    /// Where the values of the states are.
    home: Home,
    context: Arc<Context>,
    line: usize,
    trace_new_types: bool,
    /// One for each signature.
    variants: Vec<Variant>,
    plans: Option<Arc<PlanSet>>,
    prepared: Option<Box<dyn KernelSession>>,
    log: Vec<String>,
}

/// What is compiled.
type Function<S> = dyn Fn(&mut S, &[Tensor]) -> Result<Vec<Tensor>>;

/// Where the values of a compiled function's states are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Home {
    /// In their tensors.
    Tensors,
    /// In the session's memory; the tensors have none.
    Session,
    /// In the session's memory, some from before a run that failed and some from after it.
    Lost,
}

/// The function for inputs of some types.
struct Variant {
    signature: Vec<(TensorType, bool, usize)>,
    sources: Vec<Source>,
    captured: Vec<Tensor>,
    settings: Vec<Setting>,
    /// How many turns of each part a run takes.
    turns: Vec<u64>,
    /// Type and batch of each output.
    outputs: Vec<(Arc<TensorType>, Batch)>,
    graph: Arc<Graph>,
    trace: Arc<Trace>,
}

/// Traces a function on tensors like these, plans it under a line, and allocates its memory. The function runs on
/// tensors without values; reading one is an error. Tensors that it uses beside its inputs are captured with the values that they
/// have now.
pub fn compile(
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
    examples: &[&Tensor],
    line: impl Into<Size>,
) -> Result<Compiled> {
    compile_step((), move |(), inputs| function(inputs), examples, line)
}

/// As [`compile`], for a function that changes states from run to run: a training step with its network and optimizer. States are in
/// the session's memory, under its line, and are updated in place; their tensors have no memory meanwhile. [`Compiled::states`] brings
/// the values back. A step has the bits of the same function run on tensors.
///
/// ```
/// use plimsoll_eager::{Eager, Network, Optimizer, Tape, Tensor, compile_step};
/// use plimsoll_nn::{AdamW, Dense, Relu, Sequential};
/// use plimsoll_plan::MiB;
/// let eager = Eager::builder().build()?;
/// let model = Sequential::classifier([2], 2).push(Dense::new(8)).push(Relu).push(Dense::new(2));
/// let (net, optimizer) = (eager.model(model)?, Optimizer::new(AdamW::new(0.05)));
/// let x = eager.tensor([[0.0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])?;
/// let labels = eager.tensor([0, 1, 1, 0])?;
/// let train = |(net, optimizer): &mut (Network, Optimizer), inputs: &[Tensor]| {
///     let tape = Tape::new();
///     let loss = net.loss(&inputs[0], &inputs[1])?;
///     let gradients = tape.gradient(&loss, &net.variables())?;
///     optimizer.apply(net, &gradients)?;
///     Ok(vec![loss])
/// };
/// let mut step = compile_step((net, optimizer), train, &[&x, &labels], MiB(1))?;
/// for _ in 0..100 {
///     step.run(&[&x, &labels])?;
/// }
/// let (net, optimizer) = step.states()?;
/// assert_eq!(net.predict(&x)?.argmax(1).to_vec::<i32>()?, [0, 1, 1, 0]);
/// assert_eq!(optimizer.steps(), 100);
/// # Ok::<(), plimsoll_eager::Error>(())
/// ```
pub fn compile_step<S: States>(
    states: S,
    function: impl Fn(&mut S, &[Tensor]) -> Result<Vec<Tensor>> + 'static,
    examples: &[&Tensor],
    line: impl Into<Size>,
) -> Result<Compiled<S>> {
    let Some(first) = examples.first() else {
        return Err(Error::Argument("a compiled function needs an input".into()));
    };
    let mut compiled = Compiled {
        function: Box::new(function),
        states,
        home: Home::Tensors,
        context: first.context().clone(),
        line: line.into().bytes(usize::MAX),
        trace_new_types: false,
        variants: Vec::new(),
        plans: None,
        prepared: None,
        log: Vec::new(),
    };
    compiled.trace(examples, "compiled")?;
    compiled.store()?;
    Ok(compiled)
}

fn signature(inputs: &[&Tensor]) -> Vec<(TensorType, bool, usize)> {
    let part =
        |t: &&Tensor| ((*t.ty).clone(), t.batch.mark.axis, if t.batch.mark.axis { t.batch.block } else { 1 });
    inputs.iter().map(part).collect()
}

fn in_text(signature: &[(TensorType, bool, usize)]) -> String {
    let part = |(ty, batched, _): &(TensorType, bool, usize)| {
        format!("{ty}{}", if *batched { " batch" } else { "" })
    };
    signature.iter().map(part).collect::<Vec<_>>().join(", ")
}

impl<S: States> Compiled<S> {
    /// Traces inputs of types that were not seen before, instead of refusing them. All variants share one arena under the line.
    pub fn trace_new_types(self) -> Self {
        Self { trace_new_types: true, ..self }
    }

    /// What was traced, when and why.
    pub fn trace_log(&self) -> &[String] {
        &self.log
    }

    /// The memory of the session, in bytes: all values of the function, its inputs and its states.
    pub fn arena_bytes(&self) -> usize {
        self.plans.as_ref().map_or(0, |plans| plans.arena_bytes)
    }

    /// Inputs and values of the function in the order in which they are made, with the step that uses each last; of the variant
    /// that was traced last. [`layer`](crate::layer) names them. Dropping a tensor inside the function changes none of it.
    ///
    /// ```
    /// use plimsoll_eager::{Tensor, compile, layer, tensor};
    /// use plimsoll_plan::MiB;
    /// let function = |inputs: &[Tensor]| {
    ///     let hidden = layer("hidden", || inputs[0].matmul(&inputs[0])).get()?;
    ///     let sums = hidden.sum(&[0], true).get()?;
    ///     Ok(vec![sums.matmul(&inputs[0]).get()?])
    /// };
    /// let compiled = compile(function, &[&tensor([[1.0f32, 2.0], [3.0, 4.0]])?], MiB(1))?;
    /// let hidden = compiled.lifetimes().into_iter().find(|value| value.layer == "hidden").unwrap();
    /// assert_eq!((hidden.bytes, hidden.made, hidden.last_use), (16, 0, 1)); // the third step runs without it
    /// # Ok::<(), plimsoll_eager::Error>(())
    /// ```
    pub fn lifetimes(&self) -> Vec<Lifetime> {
        let last = self.plans.as_ref().and_then(|plans| plans.plans.last());
        last.map_or_else(Vec::new, ExecutionPlan::lifetimes)
    }

    /// The states with their values, copied to tensors: to evaluate, to save, or to change them. The next run takes them up again.
    #[track_caller]
    pub fn states(&mut self) -> Result<&mut S> {
        self.load(Location::caller())?;
        Ok(&mut self.states)
    }

    /// Ends the session: the states with their values. Its memory is free then.
    #[track_caller]
    pub fn into_states(mut self) -> Result<S> {
        self.load(Location::caller())?;
        Ok(self.states)
    }

    /// Sets what the learning rate of all optimizers is multiplied with from now on: for schedules.
    pub fn set_scale(&mut self, scale: f64) {
        self.states.parts().iter_mut().for_each(|part| part.set_scale(scale));
    }

    /// Runs the function.
    #[track_caller]
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let site = Location::caller();
        let given = signature(inputs);
        let find = |variants: &[Variant]| variants.iter().position(|v| v.signature == given);
        let variant = match find(&self.variants) {
            Some(variant) => variant,
            None if self.trace_new_types => {
                self.load(site)?;
                self.trace(inputs, "new types")?;
                self.variants.len() - 1
            }
            None => {
                let compiled: Vec<String> = self.variants.iter().map(|v| in_text(&v.signature)).collect();
                return Err(Error::Signature { compiled: compiled.join("; "), given: in_text(&given) });
            }
        };
        self.execute(variant, inputs, site)
    }

    fn execute(&mut self, variant: usize, inputs: &[&Tensor], site: Site) -> Result<Vec<Tensor>> {
        let mut buffers = Vec::new();
        for tensor in inputs.iter().copied().chain(&self.variants[variant].captured) {
            if !Arc::ptr_eq(tensor.context(), &self.context) {
                return Err(tensor.elsewhere("compiled function", &self.context));
            }
            let traced = || Error::Tracing { what: "running a compiled function", ty: (*tensor.ty).clone() };
            buffers.push(tensor.handle().ok_or_else(traced)?.buffer);
        }
        self.store()?;
        let Variant { sources, settings, turns, outputs, .. } = &self.variants[variant];
        let mut parts = self.states.parts();
        let settings: Vec<Vec<u8>> =
            settings.iter().map(|setting| parts[setting.part].setting(setting.turn, setting.index)).collect();
        let Some(prepared) = &mut self.prepared else {
            return Err(Error::Argument("the function has no session: compile it again".into()));
        };
        // Kernels of one device run one at a time.
        let mut state = self.context.lock();
        state.values.memory.bring(&buffers, "compiled function")?;
        let given = sources.iter().map(|source| match *source {
            Source::Input(i) => state.values.memory.input(buffers[i]),
            Source::Captured(i) => state.values.memory.input(buffers[inputs.len() + i]),
            Source::Setting(i) => Input::Host(&settings[i]),
        });
        let given: Vec<Input<'_>> = given.collect();
        // SAFETY: the buffers are live and in memory, where they stay while it is locked. Inputs are copied first, and kernels
        // that write to their memory later are queued behind that.
        if let Err(error) = unsafe { prepared.run_on_device(variant, &given) } {
            if self.home == Home::Session {
                self.home = Home::Lost;
            }
            return Err(error.into());
        }
        drop(given);
        drop(state);
        parts.iter_mut().zip(turns).for_each(|(part, &turns)| part.advance(turns));
        let read = |(i, (ty, batch)): (usize, &(Arc<TensorType>, Batch))| {
            let copy = |memory: &mut Memory, buffer: u32| -> Result<()> {
                // SAFETY: a new buffer of the output's type, which nobody else knows.
                Ok(unsafe { prepared.copy_output(variant, i, memory.address(buffer), ty.bytes()) }?)
            };
            let tensor = self.context.made(ty.clone(), site, copy)?;
            Ok(Tensor { batch: *batch, ..tensor })
        };
        outputs.iter().enumerate().map(read).collect()
    }

    /// Moves the values of the states to the session.
    fn store(&mut self) -> Result<()> {
        match self.home {
            Home::Session => return Ok(()),
            Home::Lost => return Err(lost()),
            Home::Tensors => {}
        }
        let (Some(prepared), Some(plans)) = (&mut self.prepared, &self.plans) else { return Ok(()) };
        let trace = self.variants.last().map(|variant| variant.trace.clone());
        for (number, part) in self.states.parts().iter_mut().enumerate() {
            for slot in part.slots(number) {
                let Some(i) = plans.states.iter().position(|state| state.name == slot.name) else { continue };
                slot.check(&self.context, &plans.states[i].ty)?;
                let Some(handle) = slot.tensor.handle() else { continue };
                let mut state = self.context.lock();
                state.values.memory.bring(&[handle.buffer], "compiled function")?;
                prepared.write_state(i, 0, &state.values.memory.bytes(handle.buffer)?)?;
            }
        }
        // Only now that all are there are the tensors' own let go.
        let Some(trace) = trace else { return Ok(()) };
        for (number, part) in self.states.parts().iter_mut().enumerate() {
            for slot in part.slots(number) {
                if plans.states.iter().any(|state| state.name == slot.name) {
                    *slot.tensor = trace.placeholder(slot.tensor);
                }
            }
        }
        self.home = Home::Session;
        Ok(())
    }

    /// Copies the values of the states back to tensors.
    fn load(&mut self, site: Site) -> Result<()> {
        match self.home {
            Home::Tensors => return Ok(()),
            Home::Lost => return Err(lost()),
            Home::Session => {}
        }
        let (Some(prepared), Some(plans)) = (&self.prepared, &self.plans) else { return Ok(()) };
        // Of runs that a device has queued, what failed is told before values leave the session that may be wrong.
        if let Err(error) = Eager(self.context.clone()).finish() {
            self.home = Home::Lost;
            return Err(error);
        }
        let mut parts = self.states.parts();
        let mut found = Vec::new();
        for (number, part) in parts.iter_mut().enumerate() {
            for slot in part.slots(number) {
                let Some(i) = plans.states.iter().position(|state| state.name == slot.name) else { continue };
                let read = |bytes: &mut [u8]| Ok(prepared.read_state(i, 0, bytes)?);
                found.push(self.context.filled(slot.tensor.ty.clone(), site, read)?);
            }
        }
        let mut found = found.into_iter();
        for (number, part) in parts.iter_mut().enumerate() {
            for slot in part.slots(number) {
                if plans.states.iter().any(|state| state.name == slot.name)
                    && let Some(tensor) = found.next()
                {
                    *slot.tensor = tensor;
                }
            }
        }
        drop(parts);
        self.home = Home::Tensors;
        Ok(())
    }

    /// Traces the function, and plans it together with the variants that there are. The states' values are in their tensors.
    fn trace(&mut self, inputs: &[&Tensor], why: &str) -> Result<()> {
        let variant = self.traced(inputs)?;
        let mut graphs: Vec<(String, Arc<Graph>)> = (self.variants.iter().enumerate())
            .map(|(i, v)| (format!("variant {i}"), v.graph.clone()))
            .collect();
        graphs.push((format!("variant {}", graphs.len()), variant.graph.clone()));
        let executor = self.context.executor.as_ref();
        let budget = Budget { rematerialize: true, ..Budget::new(self.line, Vec::new()) };
        let budget = budget.offload_to(executor.tiers());
        let plans = plan(&graphs, executor.target(), &budget).map_err(|e: PlanError| Box::new(e))?;
        // The memory of the session before is free before that of the next is mapped.
        self.prepared = None;
        let plans = Arc::new(plans);
        self.plans = Some(plans.clone());
        self.prepared = Some(executor.prepare_session(plans)?);
        let nodes = variant.graph.nodes.len();
        let arena = in_words(self.arena_bytes());
        let types = in_text(&variant.signature);
        self.log.push(format!("{why} for ({types}): {nodes} kernels, {arena} for all variants"));
        self.variants.push(variant);
        Ok(())
    }

    /// The function as a graph. Inputs that networks want as batches are marked, and the function is traced again.
    fn traced(&mut self, inputs: &[&Tensor]) -> Result<Variant> {
        let mut types: Vec<(TensorType, Batch)> =
            inputs.iter().map(|t| ((*t.ty).clone(), fresh(t))).collect();
        loop {
            let (trace, tensors) = Trace::new(&self.context, &types)?;
            let mut parts = self.states.parts();
            for (number, part) in parts.iter_mut().enumerate() {
                for slot in part.slots(number) {
                    slot.check(&self.context, &slot.tensor.ty)?;
                }
            }
            parts.iter_mut().enumerate().for_each(|(number, part)| part.begin(number, &trace));
            drop(parts);
            let results = (self.function)(&mut self.states, &tensors);
            let mut state = trace.lock();
            let turns = self.end_trace(&mut state);
            let results = match results {
                Ok(results) => results,
                Err(error) => match state.mark.take() {
                    Some((input, batch)) if !types[input].1.mark.axis => {
                        types[input].1 = batch;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            let mut outputs = Vec::new();
            for (i, result) in results.iter().enumerate() {
                let value = state.value_of(result);
                outputs.push((result.ty.clone(), result.batch));
                state.builder.output(&format!("output{i}"), value);
            }
            if let Some(loss) = state.loss {
                state.builder.output(LOSS, loss);
            }
            let graph = std::mem::replace(&mut state.builder, Builder::new(1, 1)).finish()?;
            let graph = Arc::new(optimize(graph, &self.context.executor.target().numerics(), &[])?);
            let captured = std::mem::take(&mut state.captured);
            let (sources, settings) =
                (std::mem::take(&mut state.sources), std::mem::take(&mut state.settings));
            let signature = signature(inputs);
            drop(state);
            return Ok(Variant { signature, sources, captured, settings, turns, outputs, graph, trace });
        }
    }

    /// Sets the new versions of the states, and gives the parts their tensors back; returns the turns of each part.
    fn end_trace(&mut self, state: &mut TraceState) -> Vec<u64> {
        let mut turns = Vec::new();
        for (number, part) in self.states.parts().iter_mut().enumerate() {
            for (place, Slot { tensor, .. }) in part.slots(number).into_iter().enumerate() {
                let Some((start, before)) = state.states.remove(&(number, place)) else { continue };
                let new = state.value_of(tensor);
                if new != start {
                    state.builder.set_state(start, new);
                }
                *tensor = before;
            }
            turns.push(part.end());
        }
        turns
    }
}

fn lost() -> Error {
    let reason =
        "a run failed midway, and some states were updated: compile the step again from states of before";
    Error::Argument(reason.into())
}
