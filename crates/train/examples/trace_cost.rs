//! What a trace of every step costs: LeNet trains in one process, every other step is recorded, and the times of the two kinds are compared.
//!
//!     cargo run --release -p plimsoll-train --example trace_cost [STEPS] [with]
//!
//! With `with`, those steps also go to a log of events and to a TensorBoard file. What threads beside the steps do is not in these times.
//! Steps lie beside each other, so that a machine whose speed changes is as slow for both kinds. A pair is two steps in a random order;
//! the cost is the median of the pairs' differences, and its error that of a median, 1.25 standard errors.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use plimsoll_data::datasets;
use plimsoll_nn::{AdamW, zoo};
use plimsoll_trace::Trace;
use plimsoll_train::{Callback, Control, RunLog, TensorBoard, TrainError, TrainEvent, Trainer};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// Passes the events of some steps on.
struct Sometimes<C> {
    now: Rc<Cell<bool>>,
    to: C,
}

impl<C: Callback> Callback for Sometimes<C> {
    fn on(&mut self, event: &TrainEvent<'_>) -> Result<Control, TrainError> {
        if self.now.get() { self.to.on(event) } else { Ok(Control::Continue) }
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        self.to.flush()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps = std::env::args().nth(1).map_or(Ok(4000), |steps| steps.parse())?;
    let with = std::env::args().nth(2).is_some_and(|word| word == "with");
    let folder = std::env::temp_dir().join(format!("plimsoll-trace-cost-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let path = folder.join("trace");
    let data = datasets::mnist()?;
    let trainer =
        Trainer::new(zoo::lenet(), AdamW::new(1e-3)).threads(2).batch(64).steps(steps).validate_every(steps);
    let trace = Trace::create(&path)?;
    let mut run = trainer.plan(&data)?.start()?;
    let (mut pairs, mut first) = (Vec::new(), None);
    let mut state = 1_u64;
    let mut recorded = false;
    let now = Rc::new(Cell::new(false));
    if with {
        run.add(Sometimes { now: now.clone(), to: RunLog::create(folder.join("events.jsonl"))? });
        run.add(Sometimes { now: now.clone(), to: TensorBoard::create(folder.join("board"), 0)? });
    }
    let mut before = Instant::now();
    run.fit_with(&mut |event| {
        if let TrainEvent::Step { step, .. } = event {
            let time = before.elapsed().as_secs_f64() * 1e6;
            match first.take() {
                None => first = Some(time),
                Some(other) => pairs.push(if recorded { [other, time] } else { [time, other] }),
            }
            // A pair's second step is of the other kind.
            recorded = if step % 2 == 1 {
                !recorded
            } else {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 63 == 1
            };
            trace.record(recorded);
            now.set(recorded);
            before = Instant::now();
        }
        Control::Continue
    })?;
    drop(trace);
    let bytes = std::fs::metadata(&path)?.len();
    std::fs::remove_dir_all(&folder)?;
    let mut differences = pairs.iter().map(|[without, with]| with - without).collect::<Vec<_>>();
    let mut without = pairs.iter().map(|[without, _]| *without).collect::<Vec<_>>();
    differences.sort_by(f64::total_cmp);
    without.sort_by(f64::total_cmp);
    let (count, step) = (pairs.len(), without[pairs.len() / 2]);
    let (cost, spread) = (differences[count / 2], differences[3 * count / 4] - differences[count / 4]);
    let error = 1.25 * spread / 1.35 / (count as f64).sqrt();
    println!("a step: {step:.0} us; watching it: {cost:.1} us +- {error:.1}, {:.2} %", 100.0 * cost / step);
    println!("{:.0} bytes of trace a step", bytes as f64 / count as f64);
    Ok(())
}
