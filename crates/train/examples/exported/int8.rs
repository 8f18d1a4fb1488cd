//! Models on bytes.

use super::{ROWS, all_said, predicting, random_batch, randomise, said, session, write};
use plimsoll_compress::{Int8Grids, KeptLayers, calibration};
use plimsoll_data::{Batch as Rows, Cursor, OpenOptions, Pipeline};
use plimsoll_export::{Batch, ExportGraph, Format, TfliteWeights};
use plimsoll_graph::op::ResizeMode;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_nn::zoo::{ZOO, ZooOptions};
use plimsoll_nn::{
    AdamW, AveragePool2d, BatchNorm, Conv2d, ConvTranspose2d, Dense, DepthwiseConv2d, Flatten,
    GlobalAveragePool, Layer, MaxPool2d, Model, Net, Padding, Relu, Relu6, Residual, Sequential, Sigmoid,
    Silu, Upsample, step,
};
use plimsoll_tensor::Tensor;
use plimsoll_train::{Session, Trainer};
use std::error::Error;
use std::fs;
use std::path::Path;

type Make = Box<dyn Fn() -> Box<dyn Model>>;

/// A layer by which images stay what they are: its kernel is the identity.
const SAME: &str = "same";

/// How an image and a convolution of it become one.
#[derive(Clone, Copy)]
enum Both {
    Concatenated,
    Multiplied,
    /// By a sigmoid of the convolution of their means.
    Gated,
}

impl Layer for Both {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let (n, c) = (net.shape(x)[0], net.shape(x)[3]);
        let mut y = x;
        if let Self::Gated = self {
            y = GlobalAveragePool.forward(net, x)?;
            y = net.reshape(y, [n, 1, 1, c])?;
        }
        y = net.scope("conv", |net| Conv2d::new(c, 1).forward(net, y))?;
        match self {
            Self::Concatenated => net.concat(&[x, y], 3),
            Self::Multiplied => net.mul(x, y),
            Self::Gated => {
                let gate = net.sigmoid(y)?;
                net.mul(x, gate)
            }
        }
    }
}

/// Layers one by one, then every model of the zoo at its small sizes; or these of them.
pub fn all(folder: &Path, only: &[&str]) -> Result<(), Box<dyn Error>> {
    let layers = layers().into_iter().map(|(name, make)| (format!("op-{name}"), make));
    let models = ZOO.iter().map(|entry| {
        let make: Make = Box::new(|| (entry.make)(&entry.small));
        (entry.name.to_string(), make)
    });
    for (name, make) in layers.chain(models) {
        if only.is_empty() || only.contains(&&*name) {
            random(folder, &name, &make)?;
        }
    }
    Ok(())
}

/// Models of one layer; those that images need to be on bytes for are behind a layer by which they stay the same.
fn layers() -> Vec<(&'static str, Make)> {
    /// A model from images of four channels to this shape.
    fn make<const N: usize>(target: [usize; N], build: impl Fn(Sequential) -> Sequential + 'static) -> Make {
        Box::new(move || Box::new(build(Sequential::regression([9, 9, 4], target))))
    }
    fn same(model: Sequential) -> Sequential {
        model.layer(SAME, Conv2d::new(4, 1).without_bias())
    }
    fn add(model: Sequential) -> Sequential {
        same(model).layer("same2", Residual::new(Conv2d::new(4, 1).without_bias()))
    }
    const fn bilinear(align_corners: bool) -> ResizeMode {
        ResizeMode::Bilinear { align_corners }
    }
    let conv = |window: usize| Conv2d::new(5, window);
    vec![
        ("conv", make([9, 9, 5], move |m| m.layer("conv", conv(3)))),
        ("conv-stride", make([5, 5, 5], move |m| m.layer("conv", conv(3).stride(2)))),
        (
            "conv-valid-relu",
            make([5, 5, 5], move |m| m.layer("conv", conv(5).padding(Padding::Valid)).layer("relu", Relu)),
        ),
        (
            "conv-padded",
            make([10, 9, 5], move |m| m.layer("conv", conv(3).padding(Padding::Explicit([[2, 1], [0, 2]])))),
        ),
        (
            "conv-dilated",
            make([5, 5, 5], move |m| m.layer("conv", conv(3).dilation(2).padding(Padding::Valid))),
        ),
        (
            "depthwise-relu6",
            make([9, 9, 4], |m| m.layer("conv", DepthwiseConv2d::new(3)).layer("relu6", Relu6)),
        ),
        ("dense", make([11], |m| m.layer("flatten", Flatten).layer("dense", Dense::new(11)))),
        ("add", make([9, 9, 4], add)),
        ("add-relu", make([9, 9, 4], |m| add(m).layer("relu", Relu))),
        ("mean", make([4], |m| same(m).layer("mean", GlobalAveragePool))),
        ("concat", make([9, 9, 8], |m| same(m).layer("both", Both::Concatenated))),
        ("mul", make([9, 9, 4], |m| same(m).layer("both", Both::Multiplied))),
        ("gate", make([9, 9, 4], |m| same(m).layer("both", Both::Gated))),
        ("sigmoid", make([9, 9, 4], |m| same(m).layer("sigmoid", Sigmoid))),
        ("swish", make([9, 9, 4], |m| same(m).layer("silu", Silu))),
        (
            "norm",
            make([4, 4, 4], |m| {
                same(m).layer("max", MaxPool2d::new(2)).layer("norm", BatchNorm::new()).layer("relu", Relu)
            }),
        ),
        ("average", make([4, 4, 4], |m| same(m).layer("average", AveragePool2d::new(2)))),
        (
            "average-padded",
            make([5, 5, 4], |m| {
                same(m).layer("average", AveragePool2d::new(3).stride(2).padding(Padding::Same))
            }),
        ),
        (
            "grow",
            make([18, 18, 5], |m| {
                m.layer("grow", ConvTranspose2d::new(5, 2).stride(2).padding(Padding::Valid))
            }),
        ),
        ("nearest", make([18, 18, 4], |m| same(m).layer("larger", Upsample::new(2)))),
        ("bilinear", make([18, 18, 4], |m| same(m).layer("larger", Upsample::new(2).mode(bilinear(false))))),
        (
            "bilinear-corners",
            make([27, 27, 4], |m| same(m).layer("larger", Upsample::new(3).mode(bilinear(true)))),
        ),
        ("max", make([4, 4, 4], |m| same(m).layer("max", MaxPool2d::new(2)))),
        (
            "max-padded",
            make([5, 5, 4], |m| {
                same(m).layer("max", MaxPool2d::new(3).stride(2).padding(Padding::Around(1)))
            }),
        ),
    ]
}

/// A model with random weights and rows.
fn random(folder: &Path, name: &str, make: &Make) -> Result<(), Box<dyn Error>> {
    let model = make();
    let inputs: Vec<Tensor> =
        model.inputs().iter().enumerate().map(|(i, field)| random_batch(field, i as u64)).collect();
    let mut floats = session(make(), &inputs)?;
    randomise(&mut floats)?;
    let names: Vec<String> = floats.parameters().map(|(name, _)| name.to_string()).collect();
    for name in names.iter().filter(|name| name.starts_with(SAME) && name.ends_with("kernel")) {
        let ty = floats.state(name)?.ty().clone();
        let (rows, columns) = (ty.shape[2], ty.shape[3]);
        let values: Vec<f64> =
            (0..rows * columns).map(|i| f64::from(u8::from(i / columns == i % columns))).collect();
        floats.set_state(name, &Tensor::from_f64(ty, &values)?)?;
    }
    on_bytes(folder, name, make, &floats, &inputs, &inputs, ROWS)
}

/// A model of the zoo, trained.
pub fn trained(
    folder: &Path,
    name: &str,
    data: &str,
    steps: u64,
    examples: usize,
) -> Result<(), Box<dyn Error>> {
    let entry = ZOO.iter().find(|entry| entry.name == name).ok_or("there is no such model")?;
    let make: Make = Box::new(|| (entry.make)(&ZooOptions::default()));
    let mut options = OpenOptions::default();
    if let [height, width, channels] = make().inputs()[0].ty.shape[..] {
        options.images.size = [height, width, channels];
    }
    let data = plimsoll_data::open(data, &options)?;
    let mut run = Trainer::new(make(), AdamW::new(2e-3)).batch(64).steps(steps).plan(&data)?.start()?;
    run.fit()?;
    let rows = |part: Pipeline, count: usize| -> Result<Vec<Tensor>, Box<dyn Error>> {
        let mut batches = part.take(count).batch(count).start_epoch(Cursor::default())?;
        Ok(batches.next()?.map(Rows::input_tensors).ok_or("there is no data")?)
    };
    let (ranges, test) = (rows(data.train.clone(), 512)?, rows(data.test.clone(), examples)?);
    let count = test[0].ty().shape[0];
    on_bytes(folder, name, &make, &run, &ranges, &test, count)
}

/// Measures ranges, puts a model on bytes, and writes its files beside what it says of rows.
fn on_bytes(
    folder: &Path,
    name: &str,
    make: &Make,
    floats: &Session,
    calibrated: &[Tensor],
    rows: &[Tensor],
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let graph = step::prediction(&make(), 1)?;
    let (trainer, data) = predicting(make(), calibrated)?;
    let mut measuring =
        trainer.inference_pass(|graph| calibration(graph, &KeptLayers::default())).plan(&data)?.start()?;
    copy(floats, &mut measuring)?;
    let outputs = all_said(&mut measuring)?;
    let range = |pair: &[Tensor]| {
        let of = |tensor: &Tensor, f: fn(f32, f32) -> f32| {
            tensor.as_f32().unwrap_or_default().iter().copied().reduce(f).unwrap_or(0.0)
        };
        (of(&pair[1], f32::min), of(&pair[0], f32::max))
    };
    let places = plimsoll_compress::places(&graph, &KeptLayers::default()).len();
    let ranges: Vec<(f32, f32)> = outputs[outputs.len() - 2 * places..].chunks_exact(2).map(range).collect();
    let grids = Int8Grids::of_ranges(&ranges);
    let states = grids.states(&graph, |name| floats.state(name))?;
    let (trainer, data) = predicting(make(), rows)?;
    let kept = grids.clone();
    let mut bytes = trainer.inference_pass(move |graph| kept.apply(graph)).plan(&data)?.start()?;
    copy(floats, &mut bytes)?;
    for (name, state) in &states {
        bytes.set_state(name, state)?;
    }
    let step = |batch| ExportGraph::on_bytes(&make(), batch, |graph| grids.apply_with_grids(graph));
    let onnx = folder.join(format!("{name}.onnx"));
    let lite = folder.join(format!("{name}.tflite"));
    let format = Format::Tflite(TfliteWeights::F32);
    let written = |path: &Path, format, batch| -> Result<(), Box<dyn Error>> {
        if let Err(error) =
            step(batch).map_err(Into::into).and_then(|step| bytes.export_step(path, format, &step))
        {
            fs::write(path.with_extension("refused"), error.to_string())?;
        }
        Ok(())
    };
    written(&onnx, Format::Onnx, Batch::Dynamic)?;
    written(&lite, format, Batch::Fixed(count))?;
    floats.export(folder.join(format!("{name}-f32.tflite")), format, Batch::Fixed(count)).ok();
    for (i, input) in rows.iter().enumerate() {
        write(&folder.join(format!("{name}.input{i}")), input)?;
    }
    write(&folder.join(format!("{name}.output")), &said(&mut bytes)?)
}

/// Copies the states that both have.
fn copy(from: &Session, to: &mut Session) -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = to.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        if let Ok(state) = from.state(&name) {
            to.set_state(&name, &state)?;
        }
    }
    Ok(())
}
