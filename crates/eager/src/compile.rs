//! Compiled functions: traced once, planned under a line, run many times.

use crate::call::{Operand, Outputs};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::program::{Batch, Program, append};
use crate::tape::{fresh, set_batch};
use crate::tensor::{Storage, Tensor};
use plimsoll_graph::{BatchMark, Builder, Graph, Origin, ValueId};
use plimsoll_plan::{Budget, ExecutionPlan, Lifetime, PlanError, PlanSet, Prepared, Size, in_words, plan};
use plimsoll_tensor::TensorType;
use plimsoll_transform::{LOSS, gradient, optimize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A function as it is traced.
pub(crate) struct Trace {
    pub context: Arc<Context>,
    state: Mutex<TraceState>,
}

struct TraceState {
    builder: Builder,
    /// Tensors that the function uses and that are not among its inputs.
    captured: Vec<Tensor>,
    /// The values of inputs and captured tensors.
    known: HashMap<u64, ValueId>,
    /// What gradients were first taken of: the pass that saves values for backward needs to know.
    loss: Option<ValueId>,
}

impl Trace {
    fn lock(&self) -> MutexGuard<'_, TraceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tensor for a value.
    fn tensor(self: &Arc<Self>, b: &Builder, value: ValueId) -> Tensor {
        let mark = b.batch_mark(value);
        let own = Batch { mark, examples: b.graph().examples, block: b.graph().example_block };
        let batch = if mark == BatchMark::input(false) { Batch::NONE } else { own };
        Tensor::traced(Arc::new(b.ty(value).clone()), batch, self.clone(), value)
    }

    /// Adds a program to the function.
    pub fn record(
        self: &Arc<Self>,
        program: &Program,
        operands: &[Operand],
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
        state.builder.within(current_layer(), |b| append(graph, b, &mut map))?;
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
            let outside = matches!(state.builder.graph().origin(value), Origin::Input(_));
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

thread_local! {
    /// The path of the layer that ops of this thread are traced in.
    static LAYER: RefCell<Arc<str>> = RefCell::new(Arc::from(""));
}

pub(crate) fn current_layer() -> Arc<str> {
    LAYER.with_borrow(Clone::clone)
}

/// Runs a part of a function that is compiled as a layer of this name: [`Compiled::lifetimes`] then tells what its values, and
/// those of its gradients, take and until when. Layers may be nested; outside of compiled functions names mean nothing.
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

impl TraceState {
    /// The value of a tensor; one that is not of the trace is captured.
    fn value_of(&mut self, tensor: &Tensor) -> ValueId {
        if let Storage::Traced(_, value) = tensor.storage {
            return value;
        }
        if let Some(&value) = self.known.get(&tensor.id) {
            return value;
        }
        let name = format!("captured{}", self.captured.len());
        let value = self.builder.marked_input(&name, (*tensor.ty).clone(), fresh(tensor).mark);
        self.captured.push(tensor.clone());
        self.known.insert(tensor.id, value);
        value
    }
}

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
pub struct Compiled {
    function: Box<Function>,
    context: Arc<Context>,
    line: usize,
    trace_new_types: bool,
    /// One for each signature.
    variants: Vec<Variant>,
    plans: Option<Arc<PlanSet>>,
    prepared: Option<Box<dyn Prepared>>,
    log: Vec<String>,
}

/// What is compiled.
type Function = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// The function for inputs of some types.
struct Variant {
    signature: Vec<(TensorType, bool, usize)>,
    captured: Vec<Tensor>,
    /// Type and batch of each output.
    outputs: Vec<(Arc<TensorType>, Batch)>,
    graph: Arc<Graph>,
}

/// Traces a function on tensors like these, plans it under a line, and allocates its memory. The function runs once, on
/// tensors without values; reading one is an error. Tensors that it uses beside its inputs are captured with the values that they
/// have now.
pub fn compile(
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
    examples: &[&Tensor],
    line: impl Into<Size>,
) -> Result<Compiled> {
    let Some(first) = examples.first() else {
        return Err(Error::Argument("a compiled function needs an input".into()));
    };
    let mut compiled = Compiled {
        function: Box::new(function),
        context: first.context().clone(),
        line: line.into().bytes(usize::MAX),
        trace_new_types: false,
        variants: Vec::new(),
        plans: None,
        prepared: None,
        log: Vec::new(),
    };
    compiled.trace(examples, "compiled")?;
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

impl Compiled {
    /// Traces inputs of types that were not seen before, instead of refusing them. All variants share one arena under the line.
    pub fn trace_new_types(self) -> Self {
        Self { trace_new_types: true, ..self }
    }

    /// What was traced, when and why.
    pub fn trace_log(&self) -> &[String] {
        &self.log
    }

    /// The memory of the session, in bytes: all values of the function, and its inputs.
    pub fn arena_bytes(&self) -> usize {
        self.plans.as_ref().map_or(0, |plans| plans.arena_bytes)
    }

    /// Inputs and values of the function in the order in which they are made, with the step that uses each last; of the variant
    /// that was traced last. [`layer`] names them. Dropping a tensor inside the function changes none of it.
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

    /// Runs the function.
    #[track_caller]
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let site = Location::caller();
        let given = signature(inputs);
        let find = |variants: &[Variant]| variants.iter().position(|v| v.signature == given);
        let variant = match find(&self.variants) {
            Some(variant) => variant,
            None if self.trace_new_types => {
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
        let Variant { captured, outputs, .. } = &self.variants[variant];
        let mut buffers = Vec::new();
        for tensor in inputs.iter().copied().chain(captured) {
            if !Arc::ptr_eq(tensor.context(), &self.context) {
                return Err(tensor.elsewhere("compiled function", &self.context));
            }
            let traced = || Error::Tracing { what: "running a compiled function", ty: (*tensor.ty).clone() };
            buffers.push(tensor.handle().ok_or_else(traced)?.buffer);
        }
        let Some(prepared) = &mut self.prepared else {
            return Err(Error::Argument("the function has no session: compile it again".into()));
        };
        // Kernels of one device run one at a time.
        let mut state = self.context.lock();
        prepared.run(variant, &state.memory.read(&buffers, "compiled function")?)?;
        drop(state);
        let read = |(i, (ty, batch)): (usize, &(Arc<TensorType>, Batch))| {
            let read = |bytes: &mut [u8]| Ok(prepared.read_output(variant, i, bytes)?);
            let tensor = self.context.filled(ty.clone(), site, read)?;
            Ok(Tensor { batch: *batch, ..tensor })
        };
        outputs.iter().enumerate().map(read).collect()
    }

    /// Traces the function, and plans it together with the variants that there are.
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
        self.prepared = Some(executor.prepare(plans)?);
        let nodes = variant.graph.nodes.len();
        let arena = in_words(self.arena_bytes());
        let types = in_text(&variant.signature);
        self.log.push(format!("{why} for ({types}): {nodes} kernels, {arena} for all variants"));
        self.variants.push(variant);
        Ok(())
    }

    fn traced(&self, inputs: &[&Tensor]) -> Result<Variant> {
        let (builder, captured, known) = (Builder::new(1, 1), Vec::new(), HashMap::new());
        let state = Mutex::new(TraceState { builder, captured, known, loss: None });
        let trace = Arc::new(Trace { context: self.context.clone(), state });
        let mut traced = Vec::new();
        for (i, tensor) in inputs.iter().enumerate() {
            let batch = fresh(tensor);
            let mut state = trace.lock();
            set_batch(&mut state.builder, "compile", (batch.examples, batch.block))?;
            let value = state.builder.marked_input(&format!("input{i}"), (*tensor.ty).clone(), batch.mark);
            traced.push(trace.tensor(&state.builder, value));
        }
        let results = (self.function)(&traced)?;
        let mut state = trace.lock();
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
        let graph = optimize(graph, &self.context.executor.target().numerics(), &[])?;
        let captured = std::mem::take(&mut state.captured);
        Ok(Variant { signature: signature(inputs), captured, outputs, graph: Arc::new(graph) })
    }
}
