//! Batches split into micro-batches of down to one example: the same bits, or an error.

use plimsoll_conformance::{any_executor, executors, synthetic, trained_states};
use plimsoll_data::{Cursor, Dataset, Memory, Pipeline};
use plimsoll_graph::{GraphError, Init, ValueId};
use plimsoll_nn::{
    AdamW, Dense, Dice, Field, Head, Layer, Model, Net, Penalty, Sequential, WithLoss, step, zoo,
};
use plimsoll_plan::Executor;
use plimsoll_tensor::{Tensor, TensorType};
use plimsoll_train::{BatchKind, TrainError, Trainer, metrics};

/// A model with a class for each of 32 positions, so that one example is a whole block.
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

/// The states after two steps of four examples.
fn trained(
    build: fn(&mut Net, ValueId) -> Result<ValueId, GraphError>,
    split: usize,
) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
    let data = synthetic(&Positions(build), 8, 8, 3);
    let trainer = Trainer::new(Positions(build), AdamW::new(1e-2)).executor(any_executor()).line(usize::MAX);
    trained_states(&trainer.batch(4).steps(2).micro_batches(split), &data)
}

fn shared_parameters(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    // Shared values with a leading axis of one, which a batch of one example has, too.
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

/// A parameter broadcast to the batch: with one example the graph looks as if it were per-example.
fn broadcast(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let token = net.parameter("token", [1, 1, 4], Init::Normal(0.5));
    let shape = net.shape(x).clone();
    let token = net.broadcast_to(token, shape)?;
    net.add(x, token)
}

#[test]
fn a_graph_that_differs_for_one_example_is_refused() {
    assert!(trained(broadcast, 2).unwrap() == trained(broadcast, 1).unwrap());
    let error = trained(broadcast, 4).unwrap_err().to_string();
    assert!(error.contains("micro-batches of 1:") && error.contains("cannot be split"), "{error}");
}

/// Distances between all pairs of examples.
fn pairs(net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    let n = net.shape(x)[0];
    let (rows, columns) = (net.reshape(x, [n, 1, 128])?, net.reshape(x, [1, n, 128])?);
    let distance = net.sub(rows, columns)?;
    let mean = net.sum(distance, &[1], true)?;
    let mean = net.reshape(mean, [n, 32, 4])?;
    net.add(x, mean)
}

#[test]
fn ops_that_mix_the_batch_are_refused_at_every_split() {
    assert!(trained(pairs, 1).is_ok());
    for split in [2, 4] {
        let error = trained(pairs, split).unwrap_err().to_string();
        assert!(error.contains("cannot be split"), "{split}: {error}");
    }
}

/// The bits of an evaluation's loss, which runs in batches of the size of a micro-batch.
fn evaluated_loss(
    model: impl Model + 'static,
    executor: Box<dyn Executor>,
    [batch, split]: [usize; 2],
) -> u64 {
    let data = synthetic(&model, batch, 5 * batch / 2 + 1, 3);
    let trainer = Trainer::new(model, AdamW::new(1e-2)).executor(executor).line(usize::MAX);
    let plans = trainer.batch(batch).micro_batches(split).plan(&data).unwrap();
    let mut session = plans.start().unwrap();
    assert_eq!(session.batch_size(BatchKind::Evaluate), batch / split);
    session.evaluate(&data.test).unwrap().loss.to_bits()
}

#[test]
fn an_evaluation_has_the_same_loss_in_batches_of_any_size() {
    let gpt = || zoo::Gpt {
        layers: 1,
        width: 16,
        heads: 2,
        context: 32,
        vocabulary: 48,
        gpt2: false,
        key_heads: None,
        window: None,
    };
    let regression = || Sequential::regression([6], [3]).push(Dense::new(3));
    for entry in executors() {
        let mut losses: [Vec<u64>; 3] = Default::default();
        for (threads, split) in [(1, 1), (2, 2), (1, 3), (2, 6)] {
            let on = || entry.on(threads);
            losses[0].push(evaluated_loss(zoo::mlp_of(&[20], &[24], 10), on(), [192, split]));
            losses[1].push(evaluated_loss(gpt(), on(), [6, split]));
            losses[2].push(evaluated_loss(regression(), on(), [192, split]));
        }
        assert!(
            losses.iter().all(|own| own.iter().all(|loss| loss == &own[0])),
            "{}: {losses:x?}",
            entry.name
        );
    }
}

/// A loss over all labels of an example: metrics still read each label, and none may be missing.
#[test]
fn a_loss_of_whole_examples_works_with_metrics_and_refuses_missing_labels() {
    let unet = zoo::Unet { image: [16, 16, 3], classes: 3, width: 2, norm: false };
    let images = |label: f64| {
        let pixels = Tensor::zeros(TensorType::new(plimsoll_tensor::DType::F32, [4, 16, 16, 3]));
        let mut labels = vec![1.0; 4 * 256];
        labels[7] = label;
        let ty = TensorType::new(plimsoll_tensor::DType::I32, [4, 16, 16]);
        let labels = Tensor::from_f64(ty, &labels).unwrap();
        Box::new(Memory::new(vec![pixels], labels, Some(3)).unwrap())
    };
    let data = Dataset::new("images", images(2.0), images(2.0));
    let model = WithLoss::new(unet, Dice::new());
    let trainer =
        Trainer::new(model, AdamW::new(1e-2)).executor(any_executor()).line(usize::MAX).batch(4).steps(1);
    let trainer = trainer.report(step::Report::Output);
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    let mut measures = [metrics::from_name("iou", 3).unwrap()];
    session.evaluate_with(&data.test, &mut measures).unwrap();
    session.fit().unwrap();
    // A batch that is refused leaves the session usable.
    let missing = images(-1.0);
    let mut batches = Pipeline::new(missing).batch(4).start(Cursor::default()).unwrap();
    let batch = batches.next().unwrap().unwrap();
    let error = session.train_step(batch).unwrap_err().to_string();
    assert!(error.contains("label -1 at place 7"), "{error}");
    let file = std::env::temp_dir().join(format!("plimsoll-splits-{}.safetensors", std::process::id()));
    session.save(&file).unwrap();
    session.load(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
}
