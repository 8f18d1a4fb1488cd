//! Several devices that hold the parts of one model, and run every step together, on a thread each.
//!
//! A device waits for what another one gives, and until what it gives is taken. `transform`'s `partition` gives all that passes one order,
//! in which no device waits for ever; [`check_passes`] proves it of the graphs and `verify` that each plan keeps it. If a device fails,
//! the waits of the others end.

use crate::ReplicaDevice;
use crate::shared_memory::Mailboxes;
use crate::worker::{Given, Outcome, Own, OwnPlan, Worker, outcome};
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{Graph, NodeId, Op};
use plimsoll_plan::{Connection, ExecuteError, Extra, PlanSet, Prepared, Whole, check_passes};
use std::sync::{Arc, Mutex};

/// Prepares devices that hold the parts of one model, which are `whole` together. What this returns has its states, inputs and outputs;
/// nodes are numbered device by device.
pub fn prepare_placed(
    devices: &[ReplicaDevice<'_>],
    whole: Whole,
) -> Result<Box<dyn Prepared>, ExecuteError> {
    check(devices, &whole)?;
    let graphs = devices.iter().flat_map(|device| &device.plans.plans).map(|plan| plan.graph.as_ref());
    let mailboxes = Mailboxes::new(devices.len(), graphs.map(values_that_pass).max().unwrap_or(0));
    let mut set = PlacedSet { workers: Vec::new(), mailboxes: mailboxes.clone(), whole };
    for (number, device) in devices.iter().enumerate() {
        let connection = Connection {
            transport: mailboxes.connect(number),
            parts: vec![None; device.plans.plans.len()],
            owners: Vec::new(),
        };
        let prepared = device.executor.prepare_connected(device.plans.clone(), connection)?;
        let own_plan =
            |(at, plan)| OwnPlan::new(plan, &device.plans, Some(nodes_before(devices, number, at)));
        let plans = set.whole.plans.iter().enumerate().map(own_plan).collect::<Result<Vec<_>, _>>()?;
        let home = |&(device, state): &(usize, usize)| (device == number).then_some(state);
        let states = set.whole.homes.iter().map(home).collect();
        let own = Own { device: number, plans, states, prepared: Mutex::new(prepared) };
        set.workers.push(Worker::start(own, mailboxes.clone())?);
    }
    Ok(Box::new(set))
}

/// Refuses plans that are not the parts of the same steps, or whose devices could wait for each other for ever.
fn check(devices: &[ReplicaDevice<'_>], whole: &Whole) -> Result<(), ExecuteError> {
    let refused = |reason: String| Err(ExecuteError::Input(reason));
    let names = |set: &PlanSet| set.plans.iter().map(|plan| plan.name.clone()).collect::<Vec<_>>();
    let Some(first) = devices.first() else { return refused("a run needs at least one device".into()) };
    if devices.iter().any(|device| names(&device.plans) != names(&first.plans)) {
        return refused("the devices have plans of different steps".into());
    }
    for (at, state) in whole.states.iter().enumerate() {
        if whole.states[..at].iter().any(|other| other.name == state.name) {
            return refused(format!("two devices hold `{}`", state.name));
        }
    }
    for (at, plan) in whole.plans.iter().enumerate() {
        let parts: Vec<&Graph> = devices.iter().map(|device| device.plans.plans[at].graph.as_ref()).collect();
        if let Err(reason) = check_passes(&parts) {
            return refused(format!("the devices' plans `{}`: {reason}", plan.name));
        }
    }
    Ok(())
}

/// One more than the largest number of a value that passes.
fn values_that_pass(graph: &Graph) -> usize {
    let number = |op: &Op| match op {
        Op::Exchange(Exchange::Give { chain, .. } | Exchange::Take { chain, .. }) => *chain as usize + 1,
        _ => 0,
    };
    graph.nodes.iter().map(|node| number(&node.op)).max().unwrap_or(0)
}

/// Nodes of a plan on the devices before one.
fn nodes_before(devices: &[ReplicaDevice<'_>], device: usize, plan: usize) -> u32 {
    devices[..device].iter().map(|device| device.plans.plans[plan].graph.nodes.len() as u32).sum()
}

/// All devices of a run.
struct PlacedSet {
    workers: Vec<Worker>,
    mailboxes: Arc<Mailboxes>,
    whole: Whole,
}

impl PlacedSet {
    fn run_all(&self, given: Given, inputs: &[&[u8]]) -> Outcome {
        let Some(plan) = self.whole.plans.get(given.plan) else {
            return Err(ExecuteError::Input(format!("there is no plan {}", given.plan)));
        };
        if inputs.len() != plan.inputs.len() {
            let (name, wants, has) = (&plan.name, plan.inputs.len(), inputs.len());
            return Err(ExecuteError::Input(format!(
                "the plan `{name}` takes {wants} inputs, {has} were given"
            )));
        }
        self.mailboxes.begin();
        self.workers.iter().for_each(|worker| worker.begin(given, inputs));
        // Every device has ended before anything is returned: they read each other's arenas, and the inputs.
        self.workers.iter().for_each(Worker::wait);
        let found = self.workers.iter().map(|worker| (worker.own().device, worker.finish()));
        outcome(self.mailboxes.failed(), found)
    }
}

impl Prepared for PlacedSet {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.run_all(Given { plan, check_finite: false }, inputs).map(|_| ())
    }

    fn run_until_bad(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<Option<NodeId>, ExecuteError> {
        self.run_all(Given { plan, check_finite: true }, inputs)
    }

    /// Devices work one after another, more or less.
    fn extra(&self) -> Extra {
        let each = self.workers.iter().map(|worker| worker.own().prepared().extra());
        each.fold(Extra::default(), |sum, own| Extra {
            waiting: sum.waiting + own.waiting,
            again: sum.again + own.again,
        })
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let found = self.whole.plans.get(plan).and_then(|plan| plan.outputs.get(output));
        let found =
            found.ok_or_else(|| ExecuteError::Input(format!("plan {plan} has no output {output}")))?;
        self.workers[found.device].own().prepared().read_output(plan, found.index, into)
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let (device, index) = self.home(state)?;
        self.workers[device].own().prepared().read_state(index, offset, into)
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        let (device, index) = self.home(state)?;
        self.workers[device].own().prepared().write_state(index, offset, from)
    }
}

impl PlacedSet {
    /// The device that holds a state, and its index there.
    fn home(&self, state: usize) -> Result<(usize, usize), ExecuteError> {
        let home = self.whole.homes.get(state).copied();
        home.ok_or_else(|| ExecuteError::Input(format!("there is no state {state}")))
    }
}
