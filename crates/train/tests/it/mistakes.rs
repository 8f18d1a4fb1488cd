//! Errors for names and types that a session does not have.

use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::{Dense, Model, Sequential, Sgd};
use plimsoll_plan::NullExecutor;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_train::Trainer;

#[test]
fn unknown_state_suggests_the_nearest_name() {
    let model = Sequential::classifier([4], 3)
        .named("two")
        .layer("hidden", Dense::new(5))
        .layer("head", Dense::new(3));
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 8, 5, part).unwrap());
    let data = Dataset::new("synthetic", source(0), source(1));
    let trainer = Trainer::new(model, Sgd::new(0.1))
        .executor(NullExecutor::default())
        .line(usize::MAX)
        .batch(4)
        .steps(1);
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    let message = session.state("head/kernal").unwrap_err().to_string();
    assert_eq!(message, "the model has no state named `head/kernal`: the nearest is `head/kernel`");
    let tensor = Tensor::zeros(TensorType::new(DType::F32, [5]));
    let message = session.set_state("hiden/bias", &tensor).unwrap_err().to_string();
    assert_eq!(message, "the model has no state named `hiden/bias`: the nearest is `hidden/bias`");
    let message = session.set_state("head/bias", &tensor).unwrap_err().to_string();
    assert_eq!(message, "`head/bias` is f32[3], f32[5] was given");
    session.set_state("hidden/bias", &tensor).unwrap();
}
