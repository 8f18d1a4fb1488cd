//! Models as ONNX files beside what they say here, for `benches/export_peers.py`.
//!
//!     exported zoo DIR [NAME]...  every model of the zoo, or these, at its small sizes: NAME.onnx, TFLite files, inputs and outputs
//!     exported read FILE INPUT OUTPUT   what the model of an ONNX file says of an input
//!     exported narrow FILE INPUT OUTPUT NEW    removes half of the channels of an ONNX file's model: the smaller one's file, and what it
//!                                 says; neither where it has no channels to remove
//!     exported int8 DIR [NAME]... layers of bytes one by one (op-NAME), and models of the zoo on bytes, or these of them: NAME.onnx,
//!                                 NAME.tflite, inputs and outputs
//!     exported trained DIR NAME DATA STEPS EXAMPLES    a model of the zoo, trained and then put on bytes, with that many examples of the
//!                                 test part
//!     exported train FILE STEPS   trains the model of an ONNX file on random examples, and prints the first and the last loss
//!
//! Arrays are raw elements in `.bin` files (f32, tokens i32), with their shapes in `.json` files beside them.

mod int8;

use plimsoll_compress::{ChannelError, Channels};
use plimsoll_data::{Dataset, Memory, Pipeline};
use plimsoll_export::{Batch, Format, OnnxModel, TfliteWeights};
use plimsoll_nn::zoo::ZOO;
use plimsoll_nn::{Adam, Field, Model, Narrow, Sgd};
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_train::{BatchKind, Session, TrainError, Trainer};
use std::error::Error;
use std::fs;
use std::path::Path;

/// How weights are stored in TFLite files.
const LITE: [(&str, TfliteWeights); 3] =
    [("f32", TfliteWeights::F32), ("f16", TfliteWeights::F16), ("range", TfliteWeights::DynamicRange)];

/// Rows of every batch.
const ROWS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["zoo", folder, only @ ..] => zoo(folder.as_ref(), only),
        ["int8", folder, only @ ..] => int8::all(folder.as_ref(), only),
        ["trained", folder, name, data, steps, examples] => {
            int8::trained(folder.as_ref(), name, data, steps.parse()?, examples.parse()?)
        }
        ["read", file, input, output] => read(file.as_ref(), input.as_ref(), output.as_ref()),
        ["narrow", file, input, output, new] => {
            narrow(file.as_ref(), input.as_ref(), output.as_ref(), new.as_ref())
        }
        ["train", file, steps] => train(file.as_ref(), steps.parse()?),
        _ => Err("the first lines of this file say which words it takes".into()),
    }
}

fn zoo(folder: &Path, only: &[&str]) -> Result<(), Box<dyn Error>> {
    for entry in ZOO.iter().filter(|entry| only.is_empty() || only.contains(&entry.name)) {
        let model = (entry.make)(&entry.small);
        let inputs: Vec<Tensor> =
            model.inputs().iter().enumerate().map(|(i, field)| random_batch(field, i as u64)).collect();
        let mut session = session((entry.make)(&entry.small), &inputs)?;
        randomise(&mut session)?;
        session.export(folder.join(format!("{}.onnx", entry.name)), Format::Onnx, Batch::Dynamic)?;
        for (kind, stored) in LITE {
            let path = folder.join(format!("{}-{kind}.tflite", entry.name));
            // What TFLite lacks is told by name.
            if let Err(error) = session.export(&path, Format::Tflite(stored), Batch::Fixed(ROWS)) {
                fs::write(path.with_extension("refused"), error.to_string())?;
            }
        }
        for (i, input) in inputs.iter().enumerate() {
            write(&folder.join(format!("{}.input{i}", entry.name)), input)?;
        }
        write(&folder.join(format!("{}.output", entry.name)), &said(&mut session)?)?;
    }
    Ok(())
}

fn read(file: &Path, input: &Path, output: &Path) -> Result<(), Box<dyn Error>> {
    let model = OnnxModel::open(file)?;
    let rows = rows(&model, input)?;
    let mut session = session(model, &[rows])?;
    Ok(fs::write(output, said(&mut session)?.as_bytes())?)
}

/// The rows of a model's input in a file.
fn rows(model: &OnnxModel, file: &Path) -> Result<Tensor, Box<dyn Error>> {
    let field = model.inputs().swap_remove(0);
    let bytes = fs::read(file)?;
    let rows = bytes.len() / field.ty.bytes();
    let mut tensor = Tensor::zeros(TensorType::new(field.ty.dtype, [&[rows], &field.ty.shape[..]].concat()));
    tensor.copy_from_bytes(&bytes);
    Ok(tensor)
}

fn narrow(file: &Path, input: &Path, output: &Path, new: &Path) -> Result<(), Box<dyn Error>> {
    let model = OnnxModel::open(file)?;
    let rows = rows(&model, input)?;
    let whole = session(OnnxModel::open(file)?, std::slice::from_ref(&rows))?;
    let found = Channels::smallest(&model, 0.5, |name| whole.state(name).map_err(Box::<dyn Error>::from));
    let channels = match found {
        Err(error) if matches!(error.downcast_ref(), Some(ChannelError::None { .. })) => return Ok(()),
        found => found?,
    };
    let mut small = session(Narrow::new(model, channels.widths().clone()), &[rows])?;
    let names: Vec<String> = small.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        small.set_state(&name, &channels.cut(&name, &whole.state(&name)?))?;
    }
    small.export(new, Format::Onnx, Batch::Dynamic)?;
    Ok(fs::write(output, said(&mut small)?.as_bytes())?)
}

fn train(file: &Path, steps: u64) -> Result<(), Box<dyn Error>> {
    let model = OnnxModel::open(file)?;
    let model = if model.has_batch_norm() { model.train_batch_norm() } else { model };
    let inputs: Vec<Tensor> =
        model.inputs().iter().enumerate().map(|(i, field)| random_batch(field, i as u64)).collect();
    let target = random_batch(&model.target(), 99);
    let rows = Memory::new(inputs, target, model.target().bound)?;
    let data = Dataset::new("random", Pipeline::new(rows.clone()), Pipeline::new(rows));
    let mut session = Trainer::new(model, Adam::new(1e-3)).batch(ROWS).steps(steps).plan(&data)?.start()?;
    let before = session.evaluate(&data.test)?.loss;
    session.fit()?;
    let after = session.evaluate(&data.test)?.loss;
    fs::write("/dev/stdout", format!("{before} {after}\n"))?;
    Ok(())
}

/// A session of a model for these inputs.
fn session(model: impl Model + 'static, inputs: &[Tensor]) -> Result<Session, Box<dyn Error>> {
    let (trainer, data) = predicting(model, inputs)?;
    Ok(trainer.plan(&data)?.start()?)
}

/// A trainer that only predicts, for these inputs as one batch.
fn predicting(model: impl Model + 'static, inputs: &[Tensor]) -> Result<(Trainer, Dataset), Box<dyn Error>> {
    let rows = Pipeline::new(Memory::unlabelled(inputs.to_vec(), &model.target())?);
    let data = Dataset::new("rows", rows.clone(), rows);
    let batch = inputs[0].ty().shape[0];
    Ok((Trainer::new(model, Sgd::new(0.0)).kinds(&[BatchKind::Predict]).batch(batch), data))
}

/// The first output for the session's rows, which are one batch.
fn said(session: &mut Session) -> Result<Tensor, Box<dyn Error>> {
    Ok(all_said(session)?.swap_remove(0))
}

/// The outputs for the session's rows, which are one batch.
fn all_said(session: &mut Session) -> Result<Vec<Tensor>, Box<dyn Error>> {
    let (rows, mut said) = (session.data().test.clone(), Vec::new());
    session.predict_each(&rows, |outputs| {
        said = outputs.to_vec();
        Ok::<(), TrainError>(())
    })?;
    if said.is_empty() { Err("the model said nothing".into()) } else { Ok(said) }
}

/// Gives norms and biases values that show.
fn randomise(session: &mut Session) -> Result<(), Box<dyn Error>> {
    let states: Vec<String> = session.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in states {
        let (middle, spread) = match name.rsplit('/').next() {
            Some("gain") => (1.0, 0.3),
            Some("bias" | "recurrent_bias" | "running_mean" | "class_token") => (0.0, 0.2),
            Some("running_variance") => (1.0, 0.5),
            _ => continue,
        };
        let ty = session.state(&name)?.ty().clone();
        let stream = Stream::new(7, 0, &name);
        let values: Vec<f64> = (0..ty.shape.elements())
            .map(|i| middle + spread * (f64::from(stream.uniform_block(0, i as u32)[0]) * 2.0 - 1.0))
            .collect();
        session.set_state(&name, &Tensor::from_f64(ty, &values)?)?;
    }
    Ok(())
}

/// Random rows of a field.
fn random_batch(field: &Field, seed: u64) -> Tensor {
    let ty = TensorType::new(field.ty.dtype, [&[ROWS], &field.ty.shape[..]].concat());
    let stream = Stream::new(seed, 1, "rows");
    let values: Vec<f64> = (0..ty.shape.elements())
        .map(|i| match field.ty.dtype {
            DType::F32 => f64::from(stream.normal_block(0, i as u32)[0]),
            _ => (f64::from(stream.uniform_block(0, i as u32)[0]) * field.bound.unwrap_or(2) as f64).floor(),
        })
        .collect();
    Tensor::from_f64(ty.clone(), &values).unwrap_or_else(|_| Tensor::zeros(ty))
}

fn write(path: &Path, tensor: &Tensor) -> Result<(), Box<dyn Error>> {
    fs::write(path.with_extension(format!("{}.bin", extension(path))), tensor.as_bytes())?;
    let shape = format!("{{\"dtype\": \"{}\", \"shape\": {}}}", tensor.ty().dtype, tensor.ty().shape);
    Ok(fs::write(path.with_extension(format!("{}.json", extension(path))), shape)?)
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().into_owned()).unwrap_or_default()
}
