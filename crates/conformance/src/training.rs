//! Short training runs on synthetic data.

use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::Model;
use plimsoll_train::{TrainError, Trainer};

/// Synthetic data for a model: this many examples to train on and to test on.
pub fn synthetic(model: &dyn Model, train: usize, test: usize, seed: u64) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |examples, part| {
        Box::new(Synthetic::new(spec.clone(), examples, seed, part).expect("fields of a model"))
    };
    Dataset::new("synthetic", source(train, 0), source(test, 1))
}

/// Trains, and returns the name and the bytes of every state.
pub fn trained_states(trainer: &Trainer, data: &Dataset) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
    let plans = trainer.plan(data)?;
    let names: Vec<String> = plans.states().map(|s| s.name.clone()).collect();
    let mut session = plans.start()?;
    session.fit()?;
    names.into_iter().map(|name| Ok((name.clone(), session.state(&name)?.as_bytes().to_vec()))).collect()
}
