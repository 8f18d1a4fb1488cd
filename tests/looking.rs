//! Looking for numbers that are not finite finds none in steps that are well, and changes no bit of them.

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::graph::NodeId;
use plimsoll::nn::zoo::ZOO;
use plimsoll::plan::{ExecuteError, Executor, PlanSet, Prepared, Target};
use plimsoll::prelude::*;
use std::sync::Arc;

/// An executor that looks at all that is written, in every step.
struct Looking(Cpu);

struct Looked {
    plans: Arc<PlanSet>,
    prepared: Box<dyn Prepared>,
}

impl Executor for Looking {
    fn target(&self) -> &dyn Target {
        self.0.target()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        Ok(Box::new(Looked { prepared: self.0.prepare(plans.clone())?, plans }))
    }
}

impl Prepared for Looked {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        let bad: Option<NodeId> = self.prepared.run_until_bad(plan, inputs)?;
        let graph = &self.plans.plans[plan].graph;
        bad.map_or(Ok(()), |node| {
            let node = graph.node(node);
            let (layer, op) = (node.layer.to_string(), node.op.name());
            Err(ExecuteError::Step { layer, op, reason: "wrote what is not finite".into() })
        })
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.prepared.read_output(plan, output, into)
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.prepared.read_state(state, offset, into)
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        self.prepared.write_state(state, offset, from)
    }
}

#[test]
fn healthy_steps_of_every_model_are_found_healthy() {
    for entry in &ZOO {
        let make = || (entry.make)(&entry.small);
        let model = make();
        let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
        let source = |part| Box::new(Synthetic::new(spec.clone(), 64, 0, part).unwrap());
        let data = Dataset::new("synthetic", source(0), source(1));
        let batch = 2 * step::example_block(model.as_ref());
        let losses = |executor: Box<dyn Fn() -> Trainer>, parts: usize| {
            let trainer = executor().batch(batch).steps(2).micro_batches(parts);
            let mut session = trainer.prepare(trainer.plan(&data).unwrap(), &data).unwrap();
            let report = session.fit(&data, &mut |_| Control::Continue);
            let report = report.unwrap_or_else(|e| panic!("{} in {parts}: {e}", entry.name));
            (report.final_loss.to_bits(), report.evaluation.loss.to_bits())
        };
        for parts in if entry.splits { &[1, 2][..] } else { &[1] } {
            let cpu = || Cpu::new(2).unwrap();
            let plain = losses(Box::new(move || Trainer::new(make(), AdamW::new(1e-3), cpu())), *parts);
            let looked =
                losses(Box::new(move || Trainer::new(make(), AdamW::new(1e-3), Looking(cpu()))), *parts);
            assert_eq!(plain, looked, "{} in {parts}", entry.name);
        }
    }
}
