//! The search for non-finite values finds none in healthy steps, and changes no bit.

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::graph::NodeId;
use plimsoll::graph::Numerics;
use plimsoll::nn::zoo::ZOO;
use plimsoll::plan::{ExecuteError, Executor, PlanSet, Prepared, Target};
use plimsoll::prelude::*;
use std::sync::Arc;

/// An executor that searches every value of every step.
struct Searching(Cpu);

struct SearchingPrepared {
    plans: Arc<PlanSet>,
    prepared: Box<dyn Prepared>,
}

impl Executor for Searching {
    fn target(&self) -> &dyn Target {
        self.0.target()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        Ok(Box::new(SearchingPrepared { prepared: self.0.prepare(plans.clone())?, plans }))
    }
}

impl Prepared for SearchingPrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        let bad: Option<NodeId> = self.prepared.run_until_bad(plan, inputs)?;
        let graph = &self.plans.plans[plan].graph;
        bad.map_or(Ok(()), |node| {
            let node = graph.node(node);
            let (layer, op) = (node.layer.to_string(), node.op.name());
            Err(ExecuteError::Step { layer, op, reason: "wrote a non-finite value".into() })
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
fn steps_of_every_model_have_no_non_finite_values_and_the_same_bits() {
    for entry in &ZOO {
        let make = || (entry.make)(&entry.small);
        let model = make();
        let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
        let source = |part| Box::new(Synthetic::new(spec.clone(), 64, 0, part).unwrap());
        let data = Dataset::new("synthetic", source(0), source(1));
        let batch = 2 * step::example_block(model.as_ref(), &Numerics::default());
        let losses = |executor: Box<dyn Fn() -> Trainer>, parts: usize| {
            let trainer = executor().batch(batch).steps(2).micro_batches(parts);
            let mut session = trainer.plan(&data).unwrap().start().unwrap();
            let report = session.fit();
            let report = report.unwrap_or_else(|e| panic!("{} in {parts}: {e}", entry.name));
            (report.final_loss.to_bits(), report.evaluation.loss.to_bits())
        };
        for parts in if entry.splits { &[1, 2][..] } else { &[1] } {
            let cpu = || Cpu::new(2).unwrap();
            let plain = losses(
                Box::new(move || Trainer::new(make(), AdamW::new(1e-3)).executor(cpu()).line(usize::MAX)),
                *parts,
            );
            let searched = losses(
                Box::new(move || {
                    Trainer::new(make(), AdamW::new(1e-3)).executor(Searching(cpu())).line(usize::MAX)
                }),
                *parts,
            );
            assert_eq!(plain, searched, "{} in {parts}", entry.name);
        }
    }
}
