//! Which steps become one call, on a device whose calls are a kind and a list of members.

use super::{Join, join};
use crate::arena::Arena;
use crate::lower::{Command, LoweredStep, Region};
use crate::{Device, Operands};
use plimsoll_plan::KernelQuery;

/// A call: its kind, none if it runs by itself, and its numbers of operands or, of a joined one, its members'.
struct Call(Option<&'static str>, Vec<[usize; 2]>);

struct Joiner;

impl Device for Joiner {
    type Call = Call;
    type Memory = Arena;

    fn map(&self, bytes: usize) -> Result<Arena, String> {
        Arena::new(bytes).map_err(|e| e.to_string())
    }

    fn find(&self, _: &KernelQuery<'_>) -> Option<Call> {
        None
    }

    fn workspace_bytes(&self, _: &Call) -> usize {
        0
    }

    fn joins<'c>(&self, call: &'c Call) -> Option<&'c str> {
        call.0
    }

    fn join(&self, calls: &[(&Call, [usize; 2])]) -> Option<Call> {
        Some(Call(None, calls.iter().map(|(_, operands)| *operands).collect()))
    }

    unsafe fn run(&self, _: &Call, _: &Operands<'_>) -> Result<(), String> {
        Ok(())
    }

    unsafe fn copy(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), String> {
        Ok(())
    }
}

/// Bytes of every operand.
const BYTES: usize = 64;

fn regions(at: &[usize]) -> Vec<Region> {
    at.iter().map(|offset| Region { offset: *offset, bytes: BYTES, stride: 0 }).collect()
}

/// A step of a kind that reads and writes ranges from these offsets on.
fn step(kind: &'static str, reads: &[usize], writes: &[usize]) -> LoweredStep<Call> {
    LoweredStep {
        command: Command::Kernel(Call(Some(kind), Vec::new())),
        operands: [regions(reads), regions(writes)].concat().into(),
        read_count: reads.len(),
        workspace: Region { offset: 0, bytes: 0, stride: 0 },
        waits: Box::default(),
        rematerialized: false,
        join: Join::Alone,
    }
}

/// How each step runs: `-` by itself, `=` with an earlier one, a number with so many others.
fn shape(steps: &[LoweredStep<Call>]) -> String {
    let each = steps.iter().map(|step| match &step.join {
        Join::Alone => "-".to_string(),
        Join::Later => "=".to_string(),
        Join::First(joined) => joined.call.1.len().to_string(),
    });
    each.collect()
}

/// [`shape`] of steps, those from `turn` on in the optimizer step, of so many micro-batches.
fn joined(mut steps: Vec<LoweredStep<Call>>, turn: usize, micro_batches: usize) -> String {
    join(&mut steps, |at| at >= turn, micro_batches, &Joiner);
    shape(&steps)
}

/// An update in place of the state at an offset, with the gradient right behind it.
fn update(kind: &'static str, at: usize) -> LoweredStep<Call> {
    step(kind, &[at, at + BYTES], &[at])
}

#[test]
fn independent_steps_of_a_kind_are_one_call_with_the_operands_of_all() {
    let mut steps =
        vec![update("a", 0), update("b", 128), update("a", 256), update("b", 384), update("c", 512)];
    join(&mut steps, |_| true, 1, &Joiner);
    assert_eq!(shape(&steps), "22==-");
    let Join::First(first) = &steps[0].join else { panic!("the first step is not one with others") };
    assert_eq!(first.call.1, [[2, 1], [2, 1]]);
    assert_eq!(first.reads.iter().map(|r| r.offset).collect::<Vec<_>>(), [0, 64, 256, 320]);
    assert_eq!(first.writes.iter().map(|r| r.offset).collect::<Vec<_>>(), [0, 256]);
}

#[test]
fn steps_that_depend_on_each_other_stay_apart() {
    let beside = |second| joined(vec![step("a", &[0], &[64]), second], 0, 1);
    assert_eq!(beside(step("a", &[0], &[128])), "2=");
    assert_eq!(beside(step("a", &[64], &[128])), "--", "reads what is written");
    assert_eq!(beside(step("a", &[128], &[64])), "--", "writes what is written");
    assert_eq!(beside(step("a", &[128], &[0])), "--", "writes what is read");
    assert_eq!(beside(step("a", &[127], &[192])), "--", "shares a byte");
    // The last would come forward past a step that it depends on, which is of another kind.
    assert_eq!(
        joined(vec![update("a", 0), step("b", &[128], &[192]), step("a", &[192], &[256])], 0, 1),
        "---"
    );
}

#[test]
fn nothing_comes_forward_past_a_wait_or_another_turn() {
    let waiting = |at: usize| {
        let mut steps = vec![update("a", 0), update("a", 128), update("a", 256)];
        steps[at].waits = [7].into();
        joined(steps, 0, 1)
    };
    assert_eq!((waiting(0), waiting(1), waiting(2)), ("3==".into(), "-2=".into(), "2=-".into()));
    let four = [0, 128, 256, 384].map(|at| update("a", at));
    assert_eq!(joined(four.into(), 2, 1), "2=2=");
}

#[test]
fn a_step_with_scratch_or_that_runs_again_runs_by_itself() {
    let mut steps = [0, 128, 256, 384].map(|at| update("a", at));
    steps[1].workspace.bytes = 1;
    steps[2].rematerialized = true;
    assert_eq!(joined(steps.into(), 0, 1), "----");
}

#[test]
fn every_micro_batch_counts() {
    let mut whole = step("a", &[0], &[1024]);
    whole.operands[0].stride = BYTES;
    let steps = |whole: LoweredStep<Call>| vec![whole, step("a", &[2048], &[3 * BYTES])];
    assert_eq!(joined(steps(whole), 9, 4), "--", "the last of four micro-batches is overwritten");
    let mut fewer = step("a", &[0], &[1024]);
    fewer.operands[0].stride = BYTES;
    assert_eq!(joined(steps(fewer), 9, 3), "2=");
}
