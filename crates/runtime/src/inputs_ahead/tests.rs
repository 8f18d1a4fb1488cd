//! Inputs ahead on a device that records what it queues: each run sees its own, and the program of its two streams has no race.

use crate::arena::Arena;
use crate::{Device, InputLane, Memory, Operands, Options, Queues, prepare};
use plimsoll_graph::{Builder, op::Unary};
use plimsoll_plan::sheet::NEXT_BATCH;
use plimsoll_plan::{Budget, Entry, KernelQuery, NullTarget, PlanSet, Prepared, plan};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Elements of the input.
const ELEMENTS: usize = 64;
const BYTES: usize = 4 * ELEMENTS;

/// The streams: of kernels, and of the lane.
const COMPUTE: usize = 0;
const LANE: usize = 1;

/// How much of each stream happens before a moment.
type Clock = [usize; 2];

struct Access {
    stream: usize,
    clock: Clock,
    range: Range<usize>,
    writes: bool,
}

/// What was queued so far.
#[derive(Default)]
struct Program {
    clocks: [Clock; 2],
    accesses: Vec<Access>,
    /// Copies of the lane, which are as late as can be: nothing else happens at the time of a copy's start.
    late: Vec<(usize, Vec<u8>)>,
}

impl Program {
    fn access(&mut self, stream: usize, ranges: &[(usize, usize, bool)]) {
        self.clocks[stream][stream] += 1;
        let clock = self.clocks[stream];
        self.accesses.extend(ranges.iter().map(|&(start, bytes, writes)| Access {
            stream,
            clock,
            range: start..start + bytes,
            writes,
        }));
    }

    /// What a stream does from now on comes after all of another so far.
    fn order(&mut self, before: usize, after: usize) {
        for stream in [COMPUTE, LANE] {
            self.clocks[after][stream] = self.clocks[after][stream].max(self.clocks[before][stream]);
        }
    }

    /// Pairs of accesses to the same bytes, one of them a write, with no order between them.
    fn races(&self) -> usize {
        let before = |a: &Access, b: &Access| a.clock[a.stream] <= b.clock[a.stream];
        let race = |a: &Access, b: &Access| {
            let meet = a.range.start < b.range.end && b.range.start < a.range.end;
            meet && (a.writes || b.writes) && a.stream != b.stream && !before(a, b) && !before(b, a)
        };
        let pairs = self.accesses.iter().enumerate();
        pairs.map(|(i, a)| self.accesses[i + 1..].iter().filter(|b| race(a, b)).count()).sum()
    }
}

/// A device whose kernels compute the rectified input.
#[derive(Default)]
struct Recording(Arc<Mutex<Program>>);

impl Device for Recording {
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
        let (from, to) = (operands.reads[0].cast::<f32>(), operands.writes[0].cast::<f32>());
        self.0.lock().unwrap().access(COMPUTE, &[(from as usize, BYTES, false), (to as usize, BYTES, true)]);
        for i in 0..ELEMENTS {
            // SAFETY: both have so many elements.
            unsafe { *to.add(i) = (*from.add(i)).max(0.0) };
        }
        Ok(())
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), String> {
        self.0.lock().unwrap().access(COMPUTE, &[(from as usize, bytes, false), (to as usize, bytes, true)]);
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }

    unsafe fn copy_in(&self, memory: &Arena, offset: usize, from: &[u8]) -> Result<(), String> {
        let to = memory.at(offset, from.len());
        self.0.lock().unwrap().access(COMPUTE, &[(to as usize, from.len(), true)]);
        // SAFETY: the caller's promise.
        unsafe { memory.write(offset, from) }
    }

    fn input_lane(&self) -> Result<Option<Box<dyn InputLane>>, String> {
        Ok(Some(Box::new(RecordingLane(self.0.clone()))))
    }
}

struct RecordingLane(Arc<Mutex<Program>>);

impl InputLane for RecordingLane {
    unsafe fn copy_in(&mut self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        let mut program = self.0.lock().unwrap();
        program.access(LANE, &[(to as usize, from.len(), true)]);
        program.late.push((to as usize, from.to_vec()));
        Ok(())
    }

    fn join(&mut self) -> Result<(), String> {
        let mut program = self.0.lock().unwrap();
        program.order(LANE, COMPUTE);
        for (to, from) in program.late.drain(..) {
            // SAFETY: the caller's promise of `copy_in`.
            unsafe { (to as *mut u8).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), String> {
        self.0.lock().unwrap().order(COMPUTE, LANE);
        Ok(())
    }
}

/// Two plans of a step that rectifies its input twice, with memory for inputs ahead.
fn plans(ahead_bytes: usize) -> PlanSet {
    let graph = || {
        let mut b = Builder::new(1, 1);
        let x = b.batch_input("x", format!("f32[1,{ELEMENTS}]").parse().unwrap());
        let y = b.unary(Unary::Relu, x).unwrap();
        let z = b.unary(Unary::Relu, y).unwrap();
        b.output("z", z);
        b.finish().unwrap()
    };
    let graphs = [("first".to_string(), graph()), ("second".to_string(), graph())];
    let mut plans = plan(&graphs, &NullTarget::default(), &Budget::new(1 << 20, Vec::new())).unwrap();
    plans.sheet.add_computing(Entry::new(NEXT_BATCH, ahead_bytes, ""));
    plans
}

fn prepared(ahead_bytes: usize) -> (Box<dyn Prepared>, Arc<Mutex<Program>>) {
    let device = Recording::default();
    let program = device.0.clone();
    let (plans, options) = (Arc::new(plans(ahead_bytes)), Options::default());
    let queues = |_: &PlanSet| Ok(Queues::default());
    (prepare(plans, &NullTarget::default(), Arc::new(device), queues, &options).unwrap(), program)
}

fn batch(number: usize) -> Vec<u8> {
    (0..ELEMENTS).flat_map(|i| ((number * ELEMENTS + i) as f32).to_ne_bytes()).collect()
}

#[test]
fn each_run_has_its_own_inputs_and_nothing_races() {
    let (mut prepared, program) = prepared(2 * BYTES);
    let check = |prepared: &dyn Prepared, plan: usize, number: usize| {
        let mut found = vec![0; BYTES];
        prepared.read_output(plan, 0, &mut found).unwrap();
        assert!(found == batch(number), "not the result of batch {number}");
    };
    prepared.run(0, &[&batch(1)]).unwrap();
    check(prepared.as_ref(), 0, 1);
    // The run is given other bytes here, so that it shows which were used.
    for number in 2..5 {
        assert!(prepared.prefetch(0, &[&batch(number)]).unwrap());
        check(prepared.as_ref(), 0, if number == 2 { 1 } else { number - 1 });
        prepared.run_prefetched(0, &[&batch(100)]).unwrap();
        check(prepared.as_ref(), 0, number);
    }
    // Inputs ahead are for one run: of their plan, that says so.
    prepared.run_prefetched(0, &[&batch(5)]).unwrap();
    check(prepared.as_ref(), 0, 5);
    assert!(prepared.prefetch(0, &[&batch(100)]).unwrap());
    prepared.run(0, &[&batch(6)]).unwrap();
    check(prepared.as_ref(), 0, 6);
    prepared.run_prefetched(0, &[&batch(7)]).unwrap();
    check(prepared.as_ref(), 0, 7);
    assert!(prepared.prefetch(0, &[&batch(100)]).unwrap());
    prepared.run_prefetched(1, &[&batch(8)]).unwrap();
    check(prepared.as_ref(), 1, 8);
    // The last ones given count, and a run that fails has used them up.
    assert!(prepared.prefetch(1, &[&batch(100)]).unwrap());
    assert!(prepared.prefetch(1, &[&batch(9)]).unwrap());
    prepared.run_prefetched(1, &[&batch(100)]).unwrap();
    check(prepared.as_ref(), 1, 9);
    assert!(prepared.prefetch(1, &[&batch(100)]).unwrap());
    assert!(prepared.run_prefetched(1, &[&[0; 4]]).is_err());
    prepared.run_prefetched(1, &[&batch(10)]).unwrap();
    check(prepared.as_ref(), 1, 10);
    assert!(prepared.prefetch(1, &[&batch(11)]).unwrap());
    prepared.run_prefetched(1, &[&batch(100)]).unwrap();
    check(prepared.as_ref(), 1, 11);
    let program = program.lock().unwrap();
    assert!(program.accesses.iter().any(|access| access.stream == LANE));
    assert_eq!(program.races(), 0);
}

#[test]
fn what_has_no_room_or_another_length_is_copied_with_its_run() {
    let (mut without, _) = prepared(0);
    assert!(!without.prefetch(0, &[&batch(1)]).unwrap());
    let (mut small, _) = prepared(BYTES - 1);
    assert!(!small.prefetch(0, &[&batch(1)]).unwrap());
    small.run_prefetched(0, &[&batch(2)]).unwrap();
    let (mut prepared, _) = prepared(2 * BYTES);
    assert!(!prepared.prefetch(0, &[&[]]).unwrap());
    assert!(!prepared.prefetch(0, &[&[0; 8]]).unwrap());
    assert!(!prepared.prefetch(2, &[&batch(1)]).unwrap());
}
