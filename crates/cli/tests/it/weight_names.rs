//! Weights under the names of PyTorch and Keras.

use crate::support;

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::prelude::*;
use plimsoll::train::{BatchKind, Names};
use safetensors::SafeTensors;
use support::{Scratch, json, number, plimsoll, states};

#[test]
fn weights_round_trip_through_torch_and_keras_names() {
    let model = zoo::resnet20();
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 4, 0, part).unwrap());
    let data = Dataset::new("synthetic", source(0), source(1));
    let trainer = |seed| {
        let trainer =
            Trainer::new(zoo::resnet20(), Sgd::new(0.0)).executor(Cpu::new(1).unwrap()).line(usize::MAX);
        trainer.batch(2).seed(seed).kinds(&[BatchKind::Predict])
    };
    let (one, other) = (trainer(1), trainer(2));
    let saved = one.plan(&data).unwrap().start().unwrap();
    let scratch = Scratch::new("names");
    let path = scratch.0.join("weights.safetensors");
    for (names, kernel, shape, gain, bias) in [
        (Names::Own, "conv/kernel", [3, 3, 3, 16], "norm/gain", "norm/bias"),
        (Names::Torch, "conv.weight", [16, 3, 3, 3], "norm.weight", "norm.bias"),
        (Names::Keras, "conv/kernel", [3, 3, 3, 16], "norm/gamma", "norm/beta"),
    ] {
        saved.save_as(&path, names).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor(kernel).unwrap().shape(), shape, "{names:?}");
        assert!(tensors.tensor(gain).is_ok() && tensors.tensor(bias).is_ok(), "{names:?}");
        if names == Names::Torch {
            // Output 5, input 2, row 1, column 0.
            let (there, here) = (((5 * 3 + 2) * 3 + 1) * 3, (3 * 3 + 2) * 16 + 5);
            let element = &tensors.tensor(kernel).unwrap().data()[4 * there..][..4];
            let own = saved.state("conv/kernel").unwrap();
            assert_eq!(f32::from_le_bytes(element.try_into().unwrap()), own.as_f32().unwrap()[here]);
        }
        let mut loaded = other.plan(&data).unwrap().start().unwrap();
        assert!(states(&loaded) != states(&saved));
        loaded.load(&path).unwrap();
        assert!(states(&loaded) == states(&saved), "{names:?}");
    }
}

#[test]
fn evaluation_reads_every_weight_naming() {
    let scratch = Scratch::new("weight-names");
    let run = |names: &str| {
        let out = scratch.path(names);
        json(&plimsoll(&["train", "--json", "--steps=3", "--weight-names", names, "--out", &out]));
        number(&json(&plimsoll(&["evaluate", "--json", &out])), "loss")
    };
    let own = run("own");
    assert_eq!([run("torch"), run("keras")], [own; 2]);
}
