//! A device of several that runs its plans on a thread of its own.

use crate::shared_memory::Mailboxes;
use plimsoll_graph::NodeId;
use plimsoll_plan::{ExecuteError, PlanSet, Prepared, WholePlan};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A device's own plan for one of the run's.
pub struct OwnPlan {
    plan: usize,
    /// Where its inputs are among the run's, each with its part of how many equal ones.
    inputs: Vec<(usize, (usize, usize))>,
    /// The number of its first node among the run's; `None`: the run does not know its nodes.
    first_node: Option<u32>,
}

impl OwnPlan {
    /// The plan of this name among a device's; `None` if it has none.
    pub fn new(
        whole: &WholePlan,
        own: &PlanSet,
        first_node: Option<u32>,
    ) -> Result<Option<Self>, ExecuteError> {
        let Some(plan) = own.plans.iter().position(|p| p.name == whole.name) else { return Ok(None) };
        let inputs = own.plans[plan].graph.inputs.iter().map(|input| {
            let position = whole.inputs.iter().position(|name| *name == input.name);
            let position = position
                .ok_or_else(|| ExecuteError::Input(format!("nothing feeds the input `{}`", input.name)))?;
            // Where the body has all micro-batches, each has its rows as an input.
            let parts = if input.batched { own.plans[plan].graph.unrolled } else { 1 };
            Ok::<_, ExecuteError>((position, (input.part, parts)))
        });
        Ok(Some(Self { plan, inputs: inputs.collect::<Result<_, _>>()?, first_node }))
    }
}

/// What a device found in a run.
pub type Outcome = Result<Option<NodeId>, ExecuteError>;

/// A device and its thread.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A device with its memory.
pub struct Own {
    /// Its number.
    pub device: usize,
    /// By the run's plans.
    pub plans: Vec<Option<OwnPlan>>,
    /// Where the run's states are among its own.
    pub states: Vec<Option<usize>>,
    /// Its plans and arena.
    pub prepared: Mutex<Box<dyn Prepared>>,
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

/// What a device is to run.
#[derive(Clone, Copy)]
pub struct Given {
    /// The run's plan.
    pub plan: usize,
    /// Whether it stops at the first number that is not finite.
    pub check_finite: bool,
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
    pub fn start(own: Own, mailboxes: Arc<Mailboxes>) -> Result<Self, ExecuteError> {
        let (device, inputs) = (own.device, own.most_inputs());
        let task = Mutex::new(Task { inputs: Vec::with_capacity(inputs), ..Task::default() });
        let shared = Arc::new(Shared { own, mailboxes, task, changed: Condvar::new() });
        let worker = shared.clone();
        let thread = std::thread::Builder::new().name(format!("device {device}"));
        let thread = thread.spawn(move || worker.work());
        let thread =
            thread.map_err(|e| ExecuteError::Input(format!("no thread for device {device}: {e}")))?;
        // A thread allocates while it starts: that is over before the first step.
        drop(shared.wait_until(|task| task.started));
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The device.
    pub fn own(&self) -> &Own {
        &self.shared.own
    }

    /// Whether the device has a plan for one of the run's.
    pub fn runs(&self, plan: usize) -> bool {
        self.shared.own.plans.get(plan).is_some_and(Option::is_some)
    }

    /// Starts a run. Until [`Worker::finish`] returns, the inputs must stay as they are.
    pub fn begin(&self, given: Given, inputs: &[&[u8]]) {
        let Some(Some(own)) = self.shared.own.plans.get(given.plan) else { return };
        let mut task = self.shared.lock();
        task.inputs.clear();
        // An input that is not there is an error of the run.
        let found = own.inputs.iter().map(|&(at, (part, parts))| {
            let bytes = inputs.get(at).copied().unwrap_or_default();
            match bytes.len().is_multiple_of(parts) {
                true => &bytes[part * (bytes.len() / parts)..(part + 1) * (bytes.len() / parts)],
                false => bytes,
            }
        });
        task.inputs.extend(found.map(|bytes| Input { start: bytes.as_ptr(), bytes: bytes.len() }));
        (task.given, task.outcome) = (Some(given), None);
        self.shared.changed.notify_all();
    }

    /// Waits until the run is over.
    pub fn wait(&self) {
        drop(self.shared.wait_until(|task| task.outcome.is_some()));
    }

    /// What the run found.
    pub fn finish(&self) -> Outcome {
        let mut task = self.shared.wait_until(|task| task.outcome.is_some());
        task.outcome.take().unwrap_or(Ok(None))
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

    /// Its plans and arena, while it does not run.
    pub fn prepared(&self) -> MutexGuard<'_, Box<dyn Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, given: Given, inputs: &[&[u8]]) -> Outcome {
        let Some(Some(own)) = self.plans.get(given.plan) else { return Ok(None) };
        let mut prepared = self.prepared();
        match own.first_node.filter(|_| given.check_finite) {
            Some(first) => {
                let bad = prepared.run_until_bad(own.plan, inputs)?;
                Ok(bad.map(|node| NodeId(first + node.0)))
            }
            None => prepared.run(own.plan, inputs).map(|()| None),
        }
    }
}

/// What all devices found: the first node that made a bad number, or the error of the device that failed first.
pub fn outcome(failed: Option<usize>, found: impl Iterator<Item = (usize, Outcome)>) -> Outcome {
    let mut outcome = Ok(None);
    for (device, found) in found {
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
