//! Runs graphs on any executor, through the planner and its verifier.

use crate::{ExecutorEntry, compare, kernel_sets};
use plimsoll_eager::Eager;
use plimsoll_graph::{Builder, Graph, Op};
use plimsoll_plan::{Budget, Executor, PlanSet, Prepared, plan, verify};
use plimsoll_reference::evaluate;
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Tensor, TensorType};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A graph, planned, verified and ready to run.
pub struct Harness {
    plans: Arc<PlanSet>,
    prepared: Box<dyn Prepared>,
}

impl Harness {
    /// Plans a graph without a memory limit, verifies the plan, and prepares it.
    pub fn new(executor: &dyn Executor, graph: Graph) -> Result<Self, String> {
        let budget = Budget::new(usize::MAX, Vec::new());
        let plans = plan(&[("test".into(), graph)], executor.target(), &budget).map_err(|e| e.to_string())?;
        verify(&plans).map_err(|e| e.to_string())?;
        let plans = Arc::new(plans);
        let prepared = executor.prepare(plans.clone()).map_err(|e| e.to_string())?;
        Ok(Self { plans, prepared })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.plans.plans[0].graph
    }

    /// Runs a step and returns the outputs.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let bytes: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
        self.prepared.run(0, &bytes).map_err(|e| e.to_string())?;
        let graph = self.plans.plans[0].graph.clone();
        let read = |i: usize, ty: &TensorType| {
            let mut bytes = vec![0; ty.bytes()];
            self.prepared.read_output(0, i, &mut bytes).map_err(|e| e.to_string())?;
            Ok(tensor(ty, &bytes))
        };
        graph.outputs.iter().enumerate().map(|(i, o)| read(i, graph.ty(o.value))).collect()
    }

    /// Every state with its name.
    pub fn states(&self) -> Vec<(String, Tensor)> {
        let read = |i: usize, ty: &TensorType| {
            let mut bytes = vec![0; ty.bytes()];
            self.prepared.read_state(i, 0, &mut bytes).expect("a planned state");
            tensor(ty, &bytes)
        };
        self.plans.states.iter().enumerate().map(|(i, s)| (s.name.clone(), read(i, &s.ty))).collect()
    }

    /// Sets every state to a function of its name and type.
    pub fn set_states(&mut self, mut value: impl FnMut(&str, &TensorType) -> Tensor) {
        for (i, state) in self.plans.states.iter().enumerate() {
            let tensor = value(&state.name, &state.ty);
            self.prepared.write_state(i, 0, tensor.as_bytes()).expect("a planned state");
        }
    }
}

fn tensor(ty: &TensorType, bytes: &[u8]) -> Tensor {
    let mut tensor = Tensor::zeros(ty.clone());
    tensor.copy_from_bytes(bytes);
    tensor
}

/// Runs one op. `batched` marks the inputs whose axis 0 is the batch; sums over the batch then fold in blocks of `block`.
pub fn run_op(
    executor: &dyn Executor,
    op: &Op,
    inputs: &[Tensor],
    batched: &[bool],
    block: usize,
) -> Result<Vec<Tensor>, String> {
    let first = batched.iter().position(|&b| b).map(|i| &inputs[i]);
    let examples = first.and_then(|t| t.ty().shape.first().copied()).unwrap_or(1).max(1);
    let mut b = Builder::new(examples, block);
    let mut values = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let is_batched = batched.get(i).copied().unwrap_or(false);
        values.push(b.input(&format!("x{i}"), input.ty().clone(), is_batched));
    }
    let outputs = b.node(op.clone(), &values).map_err(|e| e.to_string())?;
    outputs.into_iter().enumerate().for_each(|(i, v)| b.output(&format!("y{i}"), v));
    Harness::new(executor, b.finish().map_err(|e| e.to_string())?)?.run(inputs)
}

/// Runs one op as [`run_op`] does, on eager tensors.
pub fn eager_op(
    eager: &Eager,
    op: &Op,
    inputs: &[Tensor],
    batched: &[bool],
    block: usize,
) -> Result<Vec<Tensor>, String> {
    let tensor = |(i, input): (usize, &Tensor)| {
        let tensor = eager.tensor(input.clone())?;
        Ok(if batched.get(i) == Some(&true) { tensor.batch_in_blocks(block) } else { tensor })
    };
    let run = || {
        let tensors = inputs.iter().enumerate().map(tensor).collect::<plimsoll_eager::Result<Vec<_>>>()?;
        let outputs = match tensors.is_empty() {
            true => eager.source(op)?,
            false => plimsoll_eager::op(op, &tensors.iter().collect::<Vec<_>>())?,
        };
        outputs.iter().map(plimsoll_eager::Tensor::to_host).collect::<plimsoll_eager::Result<_>>()
    };
    run().map_err(|e| e.to_string())
}

/// The outputs of one op on the reference executor.
pub fn reference_op(op: &Op, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
    let outputs = op.infer(&types).map_err(|e| e.to_string())?;
    let operands: Vec<&Tensor> = inputs.iter().collect();
    evaluate(op, &operands, &[], &outputs.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())
}

/// A set of kernels with its memory checker on, and eager tensors on it.
struct Checked {
    executor: Box<dyn Executor>,
    eager: Eager,
}

thread_local! {
    /// Every set that this thread has checked, by name.
    static CHECKED: RefCell<BTreeMap<&'static str, Rc<Checked>>> = const { RefCell::new(BTreeMap::new()) };
}

fn checked(entry: &ExecutorEntry) -> Rc<Checked> {
    let make = || Rc::new(Checked { executor: entry.checked(2), eager: entry.eager(2) });
    CHECKED.with_borrow_mut(|all| all.entry(entry.name).or_insert_with(make).clone())
}

/// Runs one op as [`run_op`] does on every kernel set, with the memory checker, and compares with the reference;
/// `relative` gives the error allowed for an output of this type. Eager tensors must have the same bits. Returns the
/// reference's outputs.
pub fn check_op(
    op: &Op,
    inputs: &[Tensor],
    batched: &[bool],
    block: usize,
    relative: impl Fn(&TensorType) -> f64,
) -> Result<Vec<Tensor>, String> {
    let expected = reference_op(op, inputs)?;
    for entry in kernel_sets() {
        let Checked { executor, eager } = &*checked(entry);
        let on = |e| format!("on {}: {e}", entry.name);
        let found = run_op(executor, op, inputs, batched, block).map_err(on)?;
        for (found, expected) in found.iter().zip(&expected) {
            compare(found, expected, relative(expected.ty())).map_err(on)?;
        }
        let eager = eager_op(eager, op, inputs, batched, block).map_err(on)?;
        if eager.iter().map(Tensor::as_bytes).ne(found.iter().map(Tensor::as_bytes)) {
            return Err(on("eager tensors have other bits".to_string()));
        }
    }
    Ok(expected)
}

/// A tensor with its floats in another float type.
pub fn cast(tensor: &Tensor, dtype: DType) -> Tensor {
    if !tensor.ty().dtype.is_float() {
        return tensor.clone();
    }
    let ty = TensorType::new(dtype, tensor.ty().shape.clone());
    Tensor::from_f64(ty, &tensor.to_f64()).expect("the same number of elements")
}

/// A tensor of standard normal floats, or of integers below `bound`.
pub fn random(name: &str, ty: &TensorType, bound: u32) -> Tensor {
    let stream = Stream::new(1, 0, name);
    let value = |i: u64| {
        if ty.dtype.is_float() {
            f64::from(stream.normal(0, i))
        } else {
            f64::from(stream.below(0, i, bound))
        }
    };
    let values: Vec<f64> = (0..ty.shape.elements() as u64).map(value).collect();
    Tensor::from_f64(ty.clone(), &values).expect("as many values as elements")
}
