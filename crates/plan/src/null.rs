//! A target and an executor without a machine: for tests, and for planning elsewhere than on the machine itself.

use crate::{ExecuteError, Executor, Kernel, KernelQuery, PlanSet, Prepared, Target, Unsupported};
use plimsoll_graph::Numerics;
use plimsoll_graph::op::InPlace;
use std::sync::Arc;

/// A target with a kernel for every op, which takes a nanosecond per byte; elementwise ones work in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullTarget {
    /// Alignment of every buffer.
    pub alignment: usize,
    /// Scratch bytes of every op that is not elementwise.
    pub workspace: usize,
    /// What graphs for it are built by; elementwise kernels work in place if they may.
    pub numerics: Numerics,
}

impl Default for NullTarget {
    fn default() -> Self {
        Self { alignment: 64, workspace: 0, numerics: Numerics::default() }
    }
}

impl Target for NullTarget {
    fn name(&self) -> String {
        "null".to_string()
    }

    fn numerics(&self) -> Numerics {
        self.numerics
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        let elementwise = query.op.properties().in_place == InPlace::Elementwise;
        let mut in_place = Vec::new();
        if elementwise && self.numerics.in_place.elementwise {
            for (o, output) in query.outputs.iter().enumerate() {
                let same = |t: &&plimsoll_tensor::TensorType| {
                    t.shape == output.shape && t.dtype.bytes() == output.dtype.bytes()
                };
                in_place
                    .extend(query.inputs.iter().enumerate().filter(|(_, t)| same(t)).map(|(i, _)| (o, i)));
            }
        }
        Ok(Kernel {
            workspace: if elementwise { 0 } else { self.workspace },
            in_place,
            nanoseconds: query.op.bytes(&query.inputs, &query.outputs),
        })
    }
}

/// An executor that computes nothing: it checks sizes and returns zeros.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, Executor, NullExecutor, plan};
/// let mut b = Builder::new(2, 2);
/// let x = b.batch_input("x", "f32[2,3]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// b.output("y", y);
/// let executor = NullExecutor::default();
/// let budget = Budget::new(1 << 20, Vec::new());
/// let plans = plan(&[("predict".into(), b.finish()?)], executor.target(), &budget)?;
/// let mut prepared = executor.prepare(plans.into())?;
/// assert!(prepared.run(0, &[&[0; 24]]).is_ok());
/// assert!(prepared.run(0, &[&[0; 20]]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NullExecutor {
    /// The target it plans for.
    pub target: NullTarget,
}

impl Executor for NullExecutor {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        Ok(Box::new(NullPrepared { plans }))
    }
}

struct NullPrepared {
    plans: Arc<PlanSet>,
}

impl NullPrepared {
    fn plan(&self, plan: usize) -> Result<&crate::ExecutionPlan, ExecuteError> {
        let missing =
            || ExecuteError::Input(format!("there is no plan {plan}: there are {}", self.plans.plans.len()));
        self.plans.plans.get(plan).ok_or_else(missing)
    }

    fn check_state(&self, state: usize, offset: usize, bytes: usize) -> Result<(), ExecuteError> {
        let Some(found) = self.plans.states.get(state) else {
            let count = self.plans.states.len();
            return Err(ExecuteError::Input(format!("there is no state {state}: there are {count}")));
        };
        if offset.checked_add(bytes).is_none_or(|end| end > found.ty.bytes()) {
            let (name, all) = (&found.name, found.ty.bytes());
            return Err(ExecuteError::Input(format!(
                "state `{name}` has {all} bytes, not {bytes} from {offset} on"
            )));
        }
        Ok(())
    }
}

impl Prepared for NullPrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        let graph = &self.plan(plan)?.graph;
        if inputs.len() != graph.inputs.len() {
            let (wanted, found) = (graph.inputs.len(), inputs.len());
            return Err(ExecuteError::Input(format!("the plan takes {wanted} inputs, not {found}")));
        }
        for (input, given) in graph.inputs.iter().zip(inputs) {
            let times = if input.batched { graph.micro_batches } else { 1 };
            check_bytes(
                &format!("input `{}`", input.name),
                graph.ty(input.value).bytes() * times,
                given.len(),
            )?;
        }
        Ok(())
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let graph = &self.plan(plan)?.graph;
        let missing =
            || ExecuteError::Input(format!("there is no output {output}: there are {}", graph.outputs.len()));
        let found = graph.outputs.get(output).ok_or_else(missing)?;
        check_bytes(&format!("output `{}`", found.name), graph.ty(found.value).bytes(), into.len())?;
        into.fill(0);
        Ok(())
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.check_state(state, offset, into.len())?;
        into.fill(0);
        Ok(())
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        self.check_state(state, offset, from.len())
    }
}

fn check_bytes(what: &str, wanted: usize, given: usize) -> Result<(), ExecuteError> {
    if wanted == given {
        return Ok(());
    }
    Err(ExecuteError::Input(format!("{what} has {wanted} bytes, not {given}")))
}
