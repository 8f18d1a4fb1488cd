//! Batches split down to one example at a time: the same bits, or a refusal.

use plimsoll_cpu::Cpu;
use plimsoll_data::{Cursor, Dataset, Memory, Pipeline, Synthetic, SyntheticSpec};
use plimsoll_graph::{GraphError, Init, ValueId};
use plimsoll_nn::{AdamW, Dense, Dice, Field, Head, Layer, Model, Net, Penalty, WithLoss, step, zoo};
use plimsoll_tensor::{HostTensor, TensorType};
use plimsoll_train::{Control, TrainError, Trainer, metrics};

/// A model of 32 positions, each with a class, so that an example is a block of its own.
struct Positions(fn(&mut Net, ValueId) -> Result<ValueId, GraphError>);

impl Model for Positions {
    fn name(&self) -> &str {
        "positions"
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::floats([32, 4])]
    }

    fn target(&self) -> Field {
        Field::below(3, [32])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let x = (self.0)(net, inputs[0])?;
        let dense = Dense::new(3).penalty(Penalty { l1: 1e-3, l2: 1e-2 });
        Ok(Head::Outputs(vec![net.scope("head", |net| dense.forward(net, x))?]))
    }
}

fn data(model: &dyn Model) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 8, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

/// The states after two steps of four examples.
fn trained(
    build: fn(&mut Net, ValueId) -> Result<ValueId, GraphError>,
    split: usize,
) -> Result<Vec<Vec<u8>>, TrainError> {
    let data = data(&Positions(build));
    let trainer = Trainer::new(Positions(build), AdamW::new(1e-2), Cpu::new(2).unwrap());
    let trainer = trainer.batch(4).steps(2).micro_batches(split);
    let plans = trainer.plan(&data)?;
    let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
    let mut session = trainer.prepare(plans, &data)?;
    session.fit(&data, &mut |_| Control::Continue)?;
    Ok(names.iter().map(|name| session.state(name).unwrap().as_bytes().to_vec()).collect())
}

fn shared_parameters(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    // A leading one, and an einsum that makes one: what is shared meets one example alone.
    let table = net.parameter("table", [1, 32, 4], Init::Normal(0.5));
    let x = net.add(x, table)?;
    let gain = net.parameter("gain", [4], Init::Ones);
    net.einsum("bti,i->bti", x, gain)
}

#[test]
fn shared_parameters_keep_their_bits_down_to_one_example() {
    let whole = trained(shared_parameters, 1).unwrap();
    for split in [2, 4] {
        assert!(trained(shared_parameters, split).unwrap() == whole, "{split} micro-batches");
    }
}

/// A parameter repeated for every example: of one example alone it cannot be told from one that is not.
fn repeated(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let token = net.parameter("token", [1, 1, 4], Init::Normal(0.5));
    let shape = net.shape(x).clone();
    let token = net.broadcast_to(token, shape)?;
    net.add(x, token)
}

#[test]
fn a_graph_that_is_another_for_one_example_is_refused() {
    assert!(trained(repeated, 2).unwrap() == trained(repeated, 1).unwrap());
    let error = trained(repeated, 4).unwrap_err().to_string();
    assert!(error.contains("micro-batches of 1:") && error.contains("cannot be split"), "{error}");
}

/// Distances between all pairs of examples.
fn pairs(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let n = net.shape(x)[0];
    let (rows, columns) = (net.reshape(x, [n, 1, 128])?, net.reshape(x, [1, n, 128])?);
    let distance = net.sub(rows, columns)?;
    let mean = net.sum(distance, 1, 2)?;
    let mean = net.reshape(mean, [n, 32, 4])?;
    net.add(x, mean)
}

#[test]
fn what_mixes_examples_is_refused_at_every_split() {
    assert!(trained(pairs, 1).is_ok());
    for split in [2, 4] {
        let error = trained(pairs, split).unwrap_err().to_string();
        assert!(error.contains("cannot be split"), "{split}: {error}");
    }
}

/// Labels of an example taken together: metrics still look at each, and none can be left out.
#[test]
fn a_loss_of_whole_examples_works_with_metrics_and_refuses_missing_labels() {
    let unet = zoo::Unet { image: [16, 16, 3], classes: 3, width: 2, norm: false };
    let pictures = |label: f64| {
        let images = HostTensor::zeros(TensorType::new(plimsoll_tensor::DType::F32, [4, 16, 16, 3]));
        let mut labels = vec![1.0; 4 * 256];
        labels[7] = label;
        let ty = TensorType::new(plimsoll_tensor::DType::I32, [4, 16, 16]);
        let labels = HostTensor::from_f64(ty, &labels).unwrap();
        Box::new(Memory::new(vec![images], labels, Some(3)).unwrap())
    };
    let data = Dataset::new("pictures", pictures(2.0), pictures(2.0));
    let model = WithLoss::new(unet, Dice::default());
    let trainer = Trainer::new(model, AdamW::new(1e-2), Cpu::new(1).unwrap()).batch(4).steps(1);
    let trainer = trainer.report(step::Report::Output);
    let mut session = trainer.prepare(trainer.plan(&data).unwrap(), &data).unwrap();
    let mut measures = [metrics::from_name("iou", 3).unwrap()];
    session.evaluate_with(&data.test, &mut measures).unwrap();
    session.fit(&data, &mut |_| Control::Continue).unwrap();
    // A batch that is refused before anything runs spoils nothing.
    let missing = pictures(-1.0);
    let mut batches = Pipeline::new(missing).batch(4).start(Cursor::default()).unwrap();
    let batch = batches.next().unwrap().unwrap();
    let error = session.train_step(batch).unwrap_err().to_string();
    assert!(error.contains("label -1 at place 7"), "{error}");
    let file = std::env::temp_dir().join(format!("plimsoll-splits-{}.safetensors", std::process::id()));
    session.save(&file).unwrap();
    session.load(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
}
