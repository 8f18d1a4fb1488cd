//! Plans that are run by hand.

use super::watched::Watched;
use plimsoll_plan::{BufferKind, ExecutionPlan, Executor, PlanSet, Prepared};
use std::sync::Arc;

/// Plans that are ready, with inputs of zeros.
pub struct Ready {
    plans: Arc<PlanSet>,
    prepared: Box<dyn Prepared>,
    inputs: Vec<Vec<Vec<u8>>>,
}

impl Ready {
    pub fn new(gpu: &Watched, plans: &PlanSet) -> Self {
        let plans = Arc::new(plans.clone());
        let prepared = gpu.prepare(plans.clone()).unwrap();
        let inputs = |plan: &ExecutionPlan| {
            let mut inputs = vec![Vec::new(); plan.graph.inputs.len()];
            for buffer in &plan.buffers {
                if let BufferKind::Input(i) = buffer.kind {
                    inputs[i] = vec![0; buffer.bytes];
                }
            }
            inputs
        };
        let inputs = plans.plans.iter().map(inputs).collect();
        Self { plans, prepared, inputs }
    }

    pub fn run(&mut self, plan: usize) {
        self.prepared.run(plan, &slices(&self.inputs[plan])).unwrap();
    }

    /// Runs with inputs that come ahead, and says whether there was room for any.
    pub fn run_ahead(&mut self, plan: usize, meanwhile: impl FnOnce(&mut Self)) -> bool {
        let taken = self.prepared.prefetch(plan, &slices(&self.inputs[plan])).unwrap();
        meanwhile(self);
        self.prepared.run_prefetched(plan, &slices(&self.inputs[plan])).unwrap();
        taken
    }

    pub fn write_states(&mut self) {
        for (i, state) in self.plans.states.iter().enumerate() {
            self.prepared.write_state(i, 0, &vec![1; state.ty.bytes()]).unwrap();
        }
    }

    pub fn read_states(&self) {
        for (i, state) in self.plans.states.iter().enumerate() {
            self.prepared.read_state(i, 0, &mut vec![0; state.ty.bytes()]).unwrap();
        }
    }

    pub fn read_outputs(&self, plan: usize) {
        let own = &self.plans.plans[plan];
        for (i, output) in own.graph.outputs.iter().enumerate() {
            let mut bytes = vec![0; own.graph.ty(output.value).bytes()];
            self.prepared.read_output(plan, i, &mut bytes).unwrap();
        }
    }

    /// The number of the first plan of a kind.
    pub fn plan(&self, kind: &str) -> usize {
        self.plans.plans.iter().position(|plan| plan.name.starts_with(kind)).expect("a plan of the kind")
    }
}

fn slices(inputs: &[Vec<u8>]) -> Vec<&[u8]> {
    inputs.iter().map(Vec::as_slice).collect()
}
