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
use plimsoll_graph::NodeId;
use plimsoll_plan::{
    BatchPart, Connection, ExecuteError, ExecutionPlan, Executor, Extra, PlanSet, Prepared, exchange_order,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

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
    let prepared = prepare((0, first))?;
    let mut set = ReplicaSet { first: prepared, workers: Vec::new(), mailboxes: mailboxes.clone() };
    for (at, device) in others.iter().enumerate() {
        let own = prepare((at + 1, device))?;
        let plans = (0..first.plans.plans.len()).map(|plan| OwnPlan::new(&first.plans, plan, &device.plans));
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

/// A device's own plan for one of the first device's.
struct OwnPlan {
    plan: usize,
    /// Where its inputs are among the first device's.
    inputs: Vec<usize>,
    /// Whether its nodes are those of the first device's plan.
    same_nodes: bool,
}

impl OwnPlan {
    fn new(first: &PlanSet, plan: usize, own: &PlanSet) -> Result<Option<Self>, ExecuteError> {
        let theirs = &first.plans[plan];
        let Some(plan) = own.plans.iter().position(|p| p.name == theirs.name) else { return Ok(None) };
        let graph = &own.plans[plan].graph;
        let position = |name: &str| theirs.graph.inputs.iter().position(|input| input.name == name);
        let inputs = graph.inputs.iter().map(|input| {
            position(&input.name)
                .ok_or_else(|| ExecuteError::Input(format!("nothing feeds the input `{}`", input.name)))
        });
        let same_nodes = graph.nodes.len() == theirs.graph.nodes.len();
        Ok(Some(Self { plan, inputs: inputs.collect::<Result<_, _>>()?, same_nodes }))
    }
}

/// What a device found in a run.
type Outcome = Result<Option<NodeId>, ExecuteError>;

/// A device that is not the first, and its thread.
struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A device with its memory.
struct Own {
    device: usize,
    /// By the first device's plans.
    plans: Vec<Option<OwnPlan>>,
    /// Where the first device's states are among its own.
    states: Vec<Option<usize>>,
    prepared: Mutex<Box<dyn Prepared>>,
}

struct Shared {
    own: Own,
    mailboxes: Arc<Mailboxes>,
    task: Mutex<Task>,
    changed: Condvar,
}

#[derive(Default)]
struct Task {
    /// What to run, from when it is given until the thread has taken it.
    given: Option<Given>,
    inputs: Vec<Input>,
    outcome: Option<Outcome>,
    started: bool,
    closing: bool,
}

#[derive(Clone, Copy)]
struct Given {
    /// The first device's plan.
    plan: usize,
    check_finite: bool,
}

/// An input of a run: a slice that outlives it.
#[derive(Clone, Copy)]
struct Input {
    start: *const u8,
    bytes: usize,
}

// SAFETY: who gives a task waits until it is done, so the slice stays borrowed; it is only read.
unsafe impl Send for Input {}

impl Worker {
    fn start(own: Own, mailboxes: Arc<Mailboxes>) -> Result<Self, ExecuteError> {
        let (device, inputs) = (own.device, own.most_inputs());
        let task = Mutex::new(Task { inputs: Vec::with_capacity(inputs), ..Task::default() });
        let shared = Arc::new(Shared { own, mailboxes, task, changed: Condvar::new() });
        let worker = shared.clone();
        let thread = std::thread::Builder::new().name(format!("replica {device}"));
        let thread = thread.spawn(move || worker.work());
        let thread =
            thread.map_err(|e| ExecuteError::Input(format!("no thread for device {device}: {e}")))?;
        // A thread allocates while it starts: that is over before the first step.
        drop(shared.wait_until(|task| task.started));
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether the device has a plan for one of the first device's.
    fn runs(&self, plan: usize) -> bool {
        self.shared.own.plans.get(plan).is_some_and(Option::is_some)
    }

    /// Starts a run. Until [`Worker::finish`] returns, the inputs must stay as they are.
    fn begin(&self, given: Given, inputs: &[&[u8]]) {
        let Some(Some(own)) = self.shared.own.plans.get(given.plan) else { return };
        let mut task = self.shared.lock();
        task.inputs.clear();
        // An input that is not there is an error of the run.
        let found = own.inputs.iter().map(|&at| inputs.get(at).copied().unwrap_or_default());
        task.inputs.extend(found.map(|bytes| Input { start: bytes.as_ptr(), bytes: bytes.len() }));
        (task.given, task.outcome) = (Some(given), None);
        self.shared.changed.notify_all();
    }

    /// Waits until the run is over.
    fn wait(&self) -> MutexGuard<'_, Task> {
        self.shared.wait_until(|task| task.outcome.is_some())
    }

    /// What the run found.
    fn finish(&self) -> Outcome {
        self.wait().outcome.take().unwrap_or(Ok(None))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was caught and told as an error of its step.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Task> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, condition: impl Fn(&Task) -> bool) -> MutexGuard<'_, Task> {
        let task = self.lock();
        self.changed.wait_while(task, |task| !condition(task)).unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: runs what is given until the worker is dropped.
    fn work(&self) {
        let mut inputs: Vec<&[u8]> = Vec::with_capacity(self.own.most_inputs());
        self.lock().started = true;
        self.changed.notify_all();
        loop {
            let mut task = self.wait_until(|task| task.closing || task.given.is_some());
            let Some(given) = task.given.take() else { return };
            inputs.clear();
            // SAFETY: who gave the task waits for its outcome, and keeps the inputs until then.
            inputs
                .extend(task.inputs.iter().map(|i| unsafe { std::slice::from_raw_parts(i.start, i.bytes) }));
            drop(task);
            let ran = catch_unwind(AssertUnwindSafe(|| self.own.run(given, &inputs)));
            let outcome = ran.unwrap_or_else(|_| {
                Err(ExecuteError::Input(format!("a kernel of device {} panicked", self.own.device)))
            });
            inputs.clear();
            if !matches!(outcome, Ok(None)) {
                self.mailboxes.fail(self.own.device);
            }
            self.lock().outcome = Some(outcome);
            self.changed.notify_all();
        }
    }
}

impl Own {
    fn most_inputs(&self) -> usize {
        self.plans.iter().flatten().map(|plan| plan.inputs.len()).max().unwrap_or(0)
    }

    fn prepared(&self) -> MutexGuard<'_, Box<dyn Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, given: Given, inputs: &[&[u8]]) -> Outcome {
        let Some(Some(own)) = self.plans.get(given.plan) else { return Ok(None) };
        let mut prepared = self.prepared();
        if given.check_finite && own.same_nodes {
            return prepared.run_until_bad(own.plan, inputs);
        }
        prepared.run(own.plan, inputs).map(|()| None)
    }
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
        self.workers.iter().for_each(|worker| drop(worker.wait()));
        let first = first.unwrap_or_else(|panic| resume_unwind(panic));
        let failed = self.mailboxes.failed();
        let others = self.workers.iter().map(|worker| (worker.shared.own.device, worker.finish()));
        let mut outcome = Ok(None);
        for (device, found) in std::iter::once((0, first)).chain(others) {
            match (&outcome, found) {
                (Ok(Some(_)), _) | (_, Ok(None)) => {}
                (_, Ok(bad)) => outcome = Ok(bad),
                // The errors of the others only say that this one failed.
                (_, Err(error)) if failed == Some(device) => outcome = Err(error),
                (_, Err(_)) => {}
            }
        }
        outcome
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
            let own = &worker.shared.own;
            if let Some(Some(state)) = own.states.get(state) {
                own.prepared().write_state(*state, offset, from)?;
            }
        }
        self.first.write_state(state, offset, from)
    }
}
