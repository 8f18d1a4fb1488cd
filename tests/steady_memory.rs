//! Repeated training, evaluation and prediction in one process does not grow its memory.

#![cfg(target_os = "linux")]

use plimsoll::memory;
use plimsoll::prelude::*;
use plimsoll::train::{RunLog, checkpoints};
use plimsoll_testing::Scratch;

#[test]
fn memory_after_200_rounds_is_that_after_ten() {
    memory::configure_heap();
    let scratch = Scratch::new("steady");
    let folder = &scratch.0;
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let data = Dataset::new("mnist", data.train.take(512), data.test.take(300));
    let mut tenth = 0;
    for round in 1..=200 {
        {
            let make = || {
                let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).threads(2).batch(64);
                trainer.steps(4).memory(MiB(128)).checkpoints(folder, None)
            };
            let plans = make().plan(&data).unwrap();
            let mut session = plans.clone().start().unwrap();
            session.add(RunLog::create(folder.join("log.jsonl")).unwrap());
            session.fit().unwrap();
            let loss = session.evaluate(&data.test).unwrap().loss;
            let mut rows = 0;
            let count = |outputs: &[Tensor]| {
                rows += outputs[0].ty().shape[0];
                Ok::<(), TrainError>(())
            };
            session.predict_each(&data.test, count).unwrap();
            assert!(loss.is_finite() && rows == 300);
            drop(session);
            let mut again = plans.start().unwrap();
            assert_eq!(again.resume(folder).unwrap().state.steps_done, 4);
            assert_eq!(again.evaluate(&data.test).unwrap().loss, loss);
        }
        if round == 10 {
            tenth = memory::resident().unwrap();
        }
    }
    let last = memory::resident().unwrap();
    assert_eq!(checkpoints(folder).unwrap().len(), 1);
    assert!(last <= tenth + tenth / 100, "{tenth} bytes after ten rounds, {last} after two hundred");
    assert!(last >= tenth - tenth / 100, "{tenth} bytes after ten rounds, {last} after two hundred");
}
