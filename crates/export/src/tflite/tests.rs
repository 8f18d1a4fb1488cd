//! Which models leave as TFLite, and how large their files are. That they run is checked by `benches/export_peers.py`.

use super::{TfliteWeights, tflite};
use crate::{Batch, ExportError, ExportGraph, Weights};
use plimsoll_nn::zoo::{self, ZOO};
use plimsoll_testing::Scratch;
use std::fs;

struct Ones;

impl Weights for Ones {
    fn read(&self, _: usize, _: usize, into: &mut [u8]) -> Result<(), ExportError> {
        into.chunks_mut(4).for_each(|element| element.copy_from_slice(&1.0f32.to_le_bytes()));
        Ok(())
    }
}

#[test]
fn classifiers_segmentations_and_dense_models_leave_and_others_say_why() {
    let scratch = Scratch::new("tflite-zoo");
    let path = scratch.0.join("model.tflite");
    let mut refused = Vec::new();
    for entry in &ZOO {
        let step = ExportGraph::new((entry.make)(&entry.small).as_ref(), Batch::Fixed(2)).unwrap();
        match tflite(&step, &Ones, &path, TfliteWeights::F32) {
            Ok(exported) => {
                let bytes = fs::read(&path).unwrap();
                assert_eq!(&bytes[4..8], b"TFL3", "{}", entry.name);
                assert_eq!(exported.bytes, bytes.len() as u64, "{}", entry.name);
            }
            Err(error) => refused.push((entry.name, error.to_string())),
        }
    }
    let names: Vec<&str> = refused.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["gpt", "gpt2"], "{refused:?}");
    let said = &refused[0].1;
    assert_eq!(said, "layer `block1/attention`: TFLite has no op for `attention` with a mask");
}

#[test]
fn weights_of_fewer_bits_take_fewer_bytes() {
    let scratch = Scratch::new("tflite-bytes");
    let model = zoo::mlp_of(&[64], &[256, 256], 10);
    let step = ExportGraph::new(&model, Batch::Fixed(1)).unwrap();
    let bytes = [TfliteWeights::F32, TfliteWeights::F16, TfliteWeights::DynamicRange].map(|stored| {
        let path = scratch.0.join("mlp.tflite");
        tflite(&step, &Ones, &path, stored).unwrap().bytes as f64
    });
    let [f16, range] = [bytes[1] / bytes[0], bytes[2] / bytes[0]];
    assert!((0.5..0.52).contains(&f16) && (0.25..0.28).contains(&range), "{bytes:?}");
}
