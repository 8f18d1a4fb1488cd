//! Several devices that run one training step together, each on its part of the batch, on a thread each.
//!
//! No device waits for ever. A device waits only for sums that the one before it in the chain sent: in the same micro-batch, or,
//! the first device, in the one before. So in the first micro-batch the first device never waits, then the second finds all
//! that it waits for, and so on, whatever the order of the steps in each one's plan; and then the next micro-batch. The
//! whole sums are shared in one node, which comes after all that a device sends. If a device fails, the waits of the others end.
//!
//! Sums that the same step goes on with (batch norm) are shared in the midst of it: there all devices wait for the last one. What is
//! exchanged between two such meetings is the same on every device (`verify` proves it of a plan and its graph, and the graphs are
//! compared), so the argument holds from meeting to meeting: in each part the first device never waits, then the second one, and the
//! last one comes to the meeting.

use crate::shared_memory::Mailboxes;
use crate::worker::{Given, Outcome, Own, OwnPlan, Worker, outcome};
use plimsoll_graph::NodeId;
use plimsoll_plan::{
    BatchPart, Connection, ExecuteError, ExecutionPlan, Executor, Extra, PlanSet, Prepared, Whole,
    exchange_order,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

/// A device of several, with its plans.
pub struct ReplicaDevice<'e> {
    /// What runs the plans.
    pub executor: &'e dyn Executor,
    /// Its plans. Those that run on all devices have the same names everywhere; others are the first device's.
    pub plans: Arc<PlanSet>,
}

/// Prepares all devices. What this returns has the first one's plans, and takes whole batches. States are the same on every device.
pub fn prepare_replicas(devices: &[ReplicaDevice<'_>]) -> Result<Box<dyn Prepared>, ExecuteError> {
    let Some((first, others)) = devices.split_first() else {
        return Err(ExecuteError::Input("a run needs at least one device".into()));
    };
    check_order(devices)?;
    let plans = devices.iter().flat_map(|device| &device.plans.plans);
    let chains = plans.map(|plan| plan.graph.accumulators.len()).max().unwrap_or(0);
    let mailboxes = Mailboxes::new(devices.len(), chains);
    let prepare = |(index, device): (usize, &ReplicaDevice<'_>)| {
        let connection = Connection {
            transport: mailboxes.connect(index),
            parts: parts(devices, index),
            owners: Vec::new(),
        };
        device.executor.prepare_connected(device.plans.clone(), connection)
    };
    let (prepared, whole) = (prepare((0, first))?, Whole::new([first.plans.as_ref()]));
    let mut set = ReplicaSet { first: prepared, workers: Vec::new(), mailboxes: mailboxes.clone() };
    for (at, device) in others.iter().enumerate() {
        let own = prepare((at + 1, device))?;
        let plans = whole.plans.iter().zip(&first.plans.plans).map(|(plan, theirs)| {
            // Nodes are told as those of the first device's plan.
            let own = device.plans.plans.iter().find(|own| own.name == plan.name);
            let same = own.is_some_and(|own| own.graph.nodes.len() == theirs.graph.nodes.len());
            OwnPlan::new(plan, &device.plans, same.then_some(0))
        });
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let state = |name: &str| device.plans.states.iter().position(|state| state.name == name);
        let states = first.plans.states.iter().map(|theirs| state(&theirs.name)).collect();
        let own = Own { device: at + 1, plans, states, prepared: Mutex::new(own) };
        set.workers.push(Worker::start(own, mailboxes.clone())?);
    }
    Ok(Box::new(set))
}

/// Refuses plans that exchange in different orders.
fn check_order(devices: &[ReplicaDevice<'_>]) -> Result<(), ExecuteError> {
    let takes_examples = |plan: &&ExecutionPlan| plan.graph.inputs.iter().any(|input| input.batched);
    for plan in &devices[0].plans.plans {
        let order = exchange_order(&plan.graph);
        let others = devices[1..].iter().flat_map(|device| &device.plans.plans);
        let mut others = others.filter(|other| other.name == plan.name).filter(takes_examples);
        if others.any(|other| exchange_order(&other.graph) != order) {
            let name = &plan.name;
            return Err(ExecuteError::Input(format!(
                "the devices' plans `{name}` exchange in different orders"
            )));
        }
    }
    Ok(())
}

/// The parts of the batch that a device's plans take: the devices' examples follow each other in every micro-batch. Plans that not
/// all devices have take whole batches.
fn parts(devices: &[ReplicaDevice<'_>], device: usize) -> Vec<Option<BatchPart>> {
    let part = |plan: &ExecutionPlan| {
        let examples = |other: &ReplicaDevice<'_>| {
            let own = other.plans.plans.iter().find(|own| own.name == plan.name)?;
            // A device that only does the update has no inputs of the batch.
            let takes_examples = own.graph.inputs.iter().any(|input| input.batched);
            Some(if takes_examples { own.graph.examples } else { 0 })
        };
        let examples = devices.iter().map(examples).collect::<Option<Vec<usize>>>()?;
        Some(BatchPart { first: examples[..device].iter().sum(), stride: examples.iter().sum() })
    };
    devices[device].plans.plans.iter().map(part).collect()
}

/// All devices of a run. Plans that only the first one has run there alone.
struct ReplicaSet {
    /// Dropped first: their threads may read the first device's arena.
    workers: Vec<Worker>,
    first: Box<dyn Prepared>,
    mailboxes: Arc<Mailboxes>,
}

impl ReplicaSet {
    fn run_all(&mut self, given: Given, inputs: &[&[u8]]) -> Outcome {
        let run = |first: &mut dyn Prepared| match given.check_finite {
            true => first.run_until_bad(given.plan, inputs),
            false => first.run(given.plan, inputs).map(|()| None),
        };
        if !self.workers.iter().all(|worker| worker.runs(given.plan)) {
            return run(self.first.as_mut());
        }
        self.mailboxes.begin();
        self.workers.iter().for_each(|worker| worker.begin(given, inputs));
        let first = catch_unwind(AssertUnwindSafe(|| run(self.first.as_mut())));
        if !matches!(first, Ok(Ok(None))) {
            self.mailboxes.fail(0);
        }
        // Every device has ended before anything is returned: the others read this one's arena, and the inputs.
        self.workers.iter().for_each(Worker::wait);
        let first = first.unwrap_or_else(|panic| resume_unwind(panic));
        let failed = self.mailboxes.failed();
        let others = self.workers.iter().map(|worker| (worker.own().device, worker.finish()));
        outcome(failed, std::iter::once((0, first)).chain(others))
    }
}

impl Prepared for ReplicaSet {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.run_all(Given { plan, check_finite: false }, inputs).map(|_| ())
    }

    fn run_until_bad(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<Option<NodeId>, ExecuteError> {
        self.run_all(Given { plan, check_finite: true }, inputs)
    }

    fn extra(&self) -> Extra {
        self.first.extra()
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.first.read_output(plan, output, into)
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.first.read_state(state, offset, into)
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        for worker in &self.workers {
            let own = worker.own();
            if let Some(Some(state)) = own.states.get(state) {
                own.prepared().write_state(*state, offset, from)?;
            }
        }
        self.first.write_state(state, offset, from)
    }
}
