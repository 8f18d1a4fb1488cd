//! Four of five weights become zero while a model trains: masks of one bit per weight are states in the load sheet; stripped weights
//! are stored sparse, and a prediction holds them so.
//!
//!     cargo run --release --example pruning

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;
use plimsoll::train::sparse_parameters;

fn lenet() -> Sequential {
    zoo::lenet()
}

/// Trains LeNet dense and pruned, and compares what they take.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = datasets::mnist()?;
    let steps = 750;
    let trainer =
        |optimizer: Box<dyn Optimizer>| Trainer::new(lenet(), optimizer).memory(MiB(64)).steps(steps).seed(3);

    let mut dense = trainer(Box::new(AdamW::new(2e-3))).plan(&data)?.start()?;
    dense.fit()?;
    let dense_accuracy = dense.evaluate(&data.test)?.accuracy.unwrap_or_default();

    // From nothing to 0.8 in the first half of the run, with new masks every 25 steps. The first layer has few weights: it stays.
    let sparsity = Sparsity::polynomial(0.0, 0.8, 0, steps / 2)?.every(25)?;
    let pruning = Pruning::new(sparsity).layers("conv2").layers("dense*");
    let plan = trainer(Box::new(pruning.around(AdamW::new(2e-3)))).plan(&data)?;
    let masks = plan.load_sheet().arena.iter().find(|entry| entry.name == "masks");
    println!("masks in the load sheet: {} bytes", masks.map_or(0, |entry| entry.bytes));
    let mut run = plan.start()?;
    run.fit()?;
    let accuracy = run.evaluate(&data.test)?.accuracy.unwrap_or_default();
    for layer in run.kept()? {
        println!("  {:<16} {} of {} weights are left", layer.parameter, layer.kept, layer.elements);
        assert!(layer.kept * 5 <= layer.elements + 5);
    }
    println!("test accuracy {:.2} % dense, {:.2} % pruned", 100.0 * dense_accuracy, 100.0 * accuracy);
    assert!(dense_accuracy > 0.95 && accuracy > dense_accuracy - 0.015);

    // Saving strips: no masks, no moments, and only the weights that are left. Other frameworks' names stand for whole kernels.
    let folder = std::env::temp_dir().join(format!("plimsoll-pruning-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let [whole, stripped] = ["whole.safetensors", "stripped.safetensors"].map(|name| folder.join(name));
    run.save_as(&whole, Names::Keras)?;
    run.save(&stripped)?;
    let bytes = [std::fs::metadata(&whole)?.len(), std::fs::metadata(&stripped)?.len()];
    println!("weights files: {} bytes whole, {} bytes stripped", bytes[0], bytes[1]);
    assert!(bytes[1] * 3 < bytes[0]);

    // A predictor holds the weights that are left and their masks, and a layer's whole kernel only while it computes.
    println!("{} parameters of the file are sparse", sparse_parameters(&stripped)?.len());
    let mut predictors = [
        Predictor::builder(lenet()).batch(64).load(&whole)?,
        Predictor::builder(lenet()).batch(64).load(&stripped)?,
    ];
    let arenas = predictors.each_ref().map(|predictor| predictor.load_sheet().arena_bytes);
    println!("arena of a prediction: {} bytes whole, {} bytes stripped", arenas[0], arenas[1]);
    assert!(arenas[1] < arenas[0]);
    let [first, second] = &mut predictors;
    let same = first.part(&data.test)?.output() == second.part(&data.test)?.output();
    println!("the same answers, bit for bit: {same}");
    assert!(same);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
