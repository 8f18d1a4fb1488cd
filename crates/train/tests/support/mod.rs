//! A deep model and its data.

use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::{Activation, Dense, Model, Sequential};

/// Dense layers, each followed by a tanh, and a head.
pub fn deep(layers: usize) -> Sequential {
    let mut model = Sequential::classifier([24], 5).named("deep");
    for i in 0..layers {
        model = model.layer(format!("dense{i}"), Dense::new(40)).layer(format!("tanh{i}"), Activation::Tanh);
    }
    model.layer("head", Dense::new(5))
}

/// 640 synthetic examples for a model.
pub fn data(model: &dyn Model) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 640, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}
