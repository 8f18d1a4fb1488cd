//! Plans on a device that keeps what it queues: their results, and when it is asked to.

use crate::arena::Arena;
use crate::{Device, Operands, Options, Queues, Recording, StepTimes, prepare};
use plimsoll_graph::{Builder, op::Unary};
use plimsoll_plan::{Budget, KernelQuery, NullTarget, PlanSet, Prepared, plan};
use std::sync::{Arc, Mutex};

const ELEMENTS: usize = 64;

/// A kernel of the step: the addresses of its input and output.
type Launch = (usize, usize);

/// What was queued.
#[derive(Default)]
struct Log {
    /// Run one by one.
    single: Vec<Launch>,
    /// Kept, while it is recorded.
    kept: Option<Vec<Launch>>,
    /// Of each recording, what it has.
    recorded: Vec<Vec<Launch>>,
    /// Runs of recordings.
    replayed: usize,
}

/// A device that negates, and keeps what is queued unless it is `unable`.
#[derive(Default)]
struct Keeper {
    log: Arc<Mutex<Log>>,
    unable: bool,
}

fn negate((from, to): Launch) {
    for i in 0..ELEMENTS {
        // SAFETY: the operands of a kernel, which have so many elements.
        unsafe { *(to as *mut f32).add(i) = -*(from as *const f32).add(i) };
    }
}

struct Kept(Vec<Launch>, Arc<Mutex<Log>>);

impl Recording for Kept {
    unsafe fn run(&self) -> Result<(), String> {
        self.1.lock().unwrap().replayed += 1;
        self.0.iter().for_each(|launch| negate(*launch));
        Ok(())
    }
}

impl Device for Keeper {
    type Call = ();
    type Memory = Arena;

    fn map(&self, bytes: usize) -> Result<Arena, String> {
        Arena::new(bytes).map_err(|e| e.to_string())
    }

    fn find(&self, _: &KernelQuery<'_>) -> Option<()> {
        Some(())
    }

    fn workspace_bytes(&self, (): &()) -> usize {
        0
    }

    unsafe fn run(&self, (): &(), operands: &Operands<'_>) -> Result<(), String> {
        let launch = (operands.reads[0] as usize, operands.writes[0] as usize);
        let mut log = self.log.lock().unwrap();
        match &mut log.kept {
            Some(kept) => kept.push(launch),
            None => {
                log.single.push(launch);
                negate(launch);
            }
        }
        Ok(())
    }

    fn record(&self, queue: &mut dyn FnMut() -> Result<(), String>) -> Option<Box<dyn Recording>> {
        self.log.lock().unwrap().kept = Some(Vec::new());
        let queued = queue();
        let mut log = self.log.lock().unwrap();
        let kept = log.kept.take()?;
        log.recorded.push(kept.clone());
        queued.ok().filter(|()| !self.unable)?;
        Some(Box::new(Kept(kept, self.log.clone())))
    }

    unsafe fn copy(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), String> {
        Err("nothing is copied".into())
    }
}

/// Two plans that negate their input thrice.
fn prepared(device: Keeper, options: &Options) -> Box<dyn Prepared> {
    let graph = || {
        let mut b = Builder::new(1, 1);
        let mut x = b.batch_input("x", format!("f32[1,{ELEMENTS}]").parse().unwrap());
        for _ in 0..3 {
            x = b.unary(Unary::Neg, x).unwrap();
        }
        b.output("y", x);
        b.finish().unwrap()
    };
    let graphs = [("first".to_string(), graph()), ("second".to_string(), graph())];
    let plans = plan(&graphs, &NullTarget::default(), &Budget::new(1 << 20, Vec::new())).unwrap();
    let queues = |_: &PlanSet| Ok(Queues::default());
    prepare(Arc::new(plans), &NullTarget::default(), Arc::new(device), queues, options).unwrap()
}

/// Runs a plan, and checks what it gives.
fn run(prepared: &mut dyn Prepared, plan: usize, number: usize) {
    let values = (0..ELEMENTS).map(|i| (number * ELEMENTS + i) as f32);
    let input: Vec<u8> = values.clone().flat_map(f32::to_ne_bytes).collect();
    prepared.run(plan, &[&input]).unwrap();
    let mut output = vec![0; input.len()];
    prepared.read_output(plan, 0, &mut output).unwrap();
    assert!(output == values.flat_map(|x| (-x).to_ne_bytes()).collect::<Vec<_>>(), "run {number}");
}

#[test]
fn each_plan_is_kept_from_its_second_run_on_and_sees_the_inputs_of_every_run() {
    let device = Keeper::default();
    let log = device.log.clone();
    let mut prepared = prepared(device, &Options::default());
    for number in 0..4 {
        run(prepared.as_mut(), 0, 2 * number);
        run(prepared.as_mut(), 1, 2 * number + 1);
    }
    let log = log.lock().unwrap();
    assert_eq!((log.single.len(), log.recorded.len(), log.replayed), (6, 2, 6));
    assert_eq!(log.recorded.concat(), log.single, "what is kept is what was queued one by one");
}

#[test]
fn what_a_device_cannot_keep_is_queued_one_by_one() {
    let device = Keeper { unable: true, ..Keeper::default() };
    let log = device.log.clone();
    let mut prepared = prepared(device, &Options::default());
    (0..4).for_each(|number| run(prepared.as_mut(), 0, number));
    let log = log.lock().unwrap();
    assert_eq!((log.single.len(), log.recorded.len(), log.replayed), (12, 1, 0), "it was asked once");
}

#[test]
fn nothing_is_kept_where_single_steps_are_looked_at() {
    let times = Arc::new(StepTimes::default());
    for options in [
        Options { checked: true, ..Options::default() },
        Options { times: Some(times.clone()), ..Options::default() },
    ] {
        let device = Keeper::default();
        let log = device.log.clone();
        let mut prepared = prepared(device, &options);
        (0..3).for_each(|number| run(prepared.as_mut(), 0, number));
        let log = log.lock().unwrap();
        assert_eq!((log.single.len(), log.recorded.len()), (9, 0));
    }
}
