//! Pruning while training: the same bits under any line, threads and splits; masks in checkpoints; sparse weights files.

use plimsoll_compress::{Pruning, Sparsity};
use plimsoll_cpu::Cpu;
use plimsoll_data::datasets;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_nn::{AdamW, Field, Head, InitialValues, Model, Narrow, Net, Recipe, Sgd, step, zoo};
use plimsoll_tensor::Shape;
use plimsoll_testing::Scratch;
use plimsoll_train::{BatchKind, Names, Predictor, Session, Trainer, sparse_parameters};

fn trainer() -> Trainer {
    let sparsity: Sparsity = "polynomial:0.25..0.75@0..8/2".parse().unwrap();
    let optimizer = Pruning::new(sparsity).around(Recipe::new(AdamW::new(1e-3)).average(0.5));
    Trainer::new(zoo::lenet(), optimizer).batch(128).steps(12)
}

fn states(session: &Session) -> Vec<Vec<u8>> {
    let names = session.plans().states.iter().map(|state| &state.name);
    names.map(|name| session.state(name).unwrap().as_bytes().to_vec()).collect()
}

fn trained(trainer: Trainer) -> Session {
    let data = datasets::mnist().unwrap();
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    session.fit().unwrap();
    session
}

#[test]
fn pruned_runs_have_the_same_bits_in_any_split_and_with_any_threads() {
    let whole = trained(trainer());
    let kept = whole.kept().unwrap();
    assert_eq!(kept.len(), 5);
    for layer in &kept {
        let expected = layer.elements - layer.elements * 3 / 4;
        // Ties of the smallest magnitude kept stay.
        assert!((expected..=expected + 1).contains(&layer.kept), "{layer:?}");
        let weights = whole.state(&layer.parameter).unwrap();
        let zeros = weights.as_f32().unwrap().iter().filter(|w| **w == 0.0).count();
        assert_eq!(zeros, layer.elements - layer.kept, "{layer:?}");
    }
    let expected = states(&whole);
    let split = trained(trainer().micro_batches(4).executor(Cpu::new(3).unwrap()));
    assert_eq!(states(&split), expected);
    assert!(whole.plans().sheet.to_string().contains("masks"));
}

#[test]
fn a_pruned_run_resumes_to_the_same_bits() {
    let scratch = Scratch::new("pruned-resume");
    let expected = states(&trained(trainer()));
    let data = datasets::mnist().unwrap();
    let stopped = trainer().checkpoints(&scratch.0, Some(7)).keep(9);
    stopped.plan(&data).unwrap().start().unwrap().fit().unwrap();
    let last = plimsoll_train::checkpoints(&scratch.0).unwrap();
    last.iter().filter(|path| !path.to_string_lossy().contains("000000007")).for_each(|path| {
        std::fs::remove_file(path).unwrap();
    });
    let mut session = trainer().checkpoints(&scratch.0, None).plan(&data).unwrap().start().unwrap();
    assert_eq!(session.resume(&scratch.0).unwrap().state.steps_done, 7);
    session.fit().unwrap();
    assert_eq!(states(&session), expected);
}

#[test]
fn pruned_weights_are_stored_sparse_and_read_whole_or_sparse() {
    let scratch = Scratch::new("pruned-weights");
    let data = datasets::mnist().unwrap();
    let mut session = trained(trainer());
    let file = scratch.0.join("weights.safetensors");
    session.save(&file).unwrap();
    let dense = scratch.0.join("dense.safetensors");
    session.save_as(&dense, Names::Keras).unwrap();
    let bytes = |path| std::fs::metadata(path).unwrap().len();
    assert!(bytes(&file) * 3 < bytes(&dense), "{} {}", bytes(&file), bytes(&dense));
    let expected = session.evaluate(&data.test).unwrap().loss;

    let kept = sparse_parameters(&file).unwrap();
    assert_eq!(kept.len(), 5);
    assert!(sparse_parameters(&dense).unwrap().is_empty());
    let evaluation = |sparse| {
        let trainer = Trainer::new(zoo::lenet(), AdamW::new(0.0)).kinds(&[BatchKind::Evaluate]).batch(64);
        let mut session = trainer.sparse_parameters(sparse).plan(&data).unwrap().start().unwrap();
        session.load(&file).unwrap();
        let arena = session.plans().sheet.arena_bytes;
        (session.evaluate(&data.test).unwrap().loss, arena)
    };
    let (whole, whole_bytes) = evaluation(Default::default());
    let (sparse, sparse_bytes) = evaluation(kept);
    assert_eq!(whole.to_bits(), sparse.to_bits());
    // Another batch size sums the loss in another order.
    assert!((whole - expected).abs() < 1e-5 * expected, "{whole} {expected}");
    assert!(sparse_bytes + 100_000 < whole_bytes, "{sparse_bytes} {whole_bytes}");

    let pixels = [vec![[[[0.5f32; 1]; 28]; 28]; 2]];
    let answers = |path: &std::path::Path| {
        let mut predictor = Predictor::builder(zoo::lenet()).load(path).unwrap();
        predictor.predict(pixels.clone()).unwrap().output().as_f32().unwrap().to_vec()
    };
    assert_eq!(answers(&file), answers(&dense));
}

#[test]
fn damaged_sparse_weights_are_refused() {
    let scratch = Scratch::new("pruned-damaged");
    let session = trained(trainer());
    let file = scratch.0.join("weights.safetensors");
    session.save(&file).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // The first tensor is the mask of the first kernel: eighty more bits are set.
    bytes[8 + header..][..10].fill(0xff);
    std::fs::write(&file, &bytes).unwrap();
    let error = sparse_parameters(&file).unwrap_err().to_string();
    assert!(error.contains("conv1/kernel") && error.contains("damaged"), "{error}");
    let mut whole = Trainer::new(zoo::lenet(), AdamW::new(1e-3))
        .plan(&datasets::mnist().unwrap())
        .unwrap()
        .start()
        .unwrap();
    let error = whole.load(&file).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
}

/// LeNet with ones as the first values of all kernels.
struct WithOnes;

impl Model for WithOnes {
    fn name(&self) -> &str {
        "with_ones"
    }

    fn inputs(&self) -> Vec<Field> {
        zoo::lenet().inputs()
    }

    fn target(&self) -> Field {
        zoo::lenet().target()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        zoo::lenet().forward(net, inputs)
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        Some(self)
    }
}

impl InitialValues for WithOnes {
    fn has(&self, state: &str, shape: &Shape) -> bool {
        let graph = step::prediction(&zoo::lenet(), 1).unwrap();
        let own = graph.states.iter().find(|own| own.name == state && own.name.ends_with("kernel"));
        own.is_some_and(|own| graph.ty(own.input).shape == *shape)
    }

    fn read(&self, _: &str, _: usize, into: &mut [u8]) -> std::io::Result<()> {
        into.chunks_exact_mut(4).for_each(|one| one.copy_from_slice(&1f32.to_le_bytes()));
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

/// A narrowed model starts with what its model has for states whose shapes are the same.
#[test]
fn a_narrowed_model_has_the_first_values_of_what_is_not_narrowed() {
    let data = datasets::mnist().unwrap();
    let model = Narrow::new(WithOnes, [("conv2".to_string(), 7)].into());
    let run = Trainer::new(model, Sgd::new(0.1)).plan(&data).unwrap().start().unwrap();
    let ones = |name: &str| run.state(name).unwrap().to_f64().iter().all(|&x| x == 1.0);
    let kernels = ["conv1/kernel", "conv2/kernel", "dense1/kernel", "dense2/kernel"].map(ones);
    assert_eq!(kernels, [true, false, false, true]);
}
