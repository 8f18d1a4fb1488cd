//! Weights that a run starts from, and what is wrong with weights in users' words.

use super::args::RunOptions;
use super::text::escaped;
use super::{Failure, say};
use plimsoll::train::{Loaded, Session, TrainError, Trainer, WEIGHTS_FILE, checkpoints};
use std::path::Path;

/// The most tensors of a list that are named.
const MOST_NAMED: usize = 24;

/// Refuses weights that are not there, before anything else is done.
pub fn check(options: &RunOptions) -> Result<(), Failure> {
    let Some(path) = &options.weights else { return Ok(()) };
    let shown = escaped(path.display());
    let reason = match path.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "there is no such file or folder".to_string(),
        Err(e) => e.to_string(),
        Ok(found) if found.is_dir() => {
            let trained =
                path.join(WEIGHTS_FILE).exists() || checkpoints(path).is_ok_and(|list| !list.is_empty());
            match trained {
                true => return Ok(()),
                false => format!("the folder holds neither {WEIGHTS_FILE} nor a checkpoint"),
            }
        }
        Ok(_) => return Ok(()),
    };
    Err(Failure::usage(format!(
        "--weights {shown}: {reason}; give a safetensors file, or a folder in which `train --out` left a run"
    )))
}

/// Refuses weights of another model, before anything is planned.
pub fn check_shapes(trainer: &Trainer, options: &RunOptions) -> Result<(), Failure> {
    match &options.weights {
        Some(path) if options.new_head => trainer.check_matching_weights(path).map_err(refused),
        Some(path) => trainer.check_weights(path).map_err(differ),
        None => Ok(()),
    }
}

/// Loads the weights of `--weights` and tells what they are.
pub fn start_from(session: &mut Session, path: &Path, new_head: bool) -> Result<(), Failure> {
    let loaded = match new_head {
        true => session.load_matching(path).map_err(refused)?,
        false => session.load(path).map(|()| Loaded::default()).map_err(differ)?,
    };
    say(&format!("Starting from {}", escaped(path.display())));
    if new_head {
        say(&format!("  loaded       {} tensors", loaded.loaded.len()));
        say(&format!("  left out     {}", named(&loaded.left_out)));
        say(&format!("  new          {}", named(&loaded.fresh)));
    }
    Ok(())
}

/// Weights that are written anew without being trained were wrong before: numbers that are not finite are wrong input.
pub fn of_weights(error: TrainError) -> Failure {
    match &error {
        TrainError::NotFinite { .. } => Failure::usage(escaped(error)),
        _ => error.into(),
    }
}

/// Weights of another model may be loaded in part.
fn differ(error: TrainError) -> Failure {
    match &error {
        TrainError::WeightsDiffer { .. } => {
            let offer = "add --new-head to load the tensors that fit and train the others from new values";
            Failure::usage(format!("{}; {offer}", escaped(error)))
        }
        _ => refused(error),
    }
}

/// A file of weights that must change is wrong input, other failures are not.
pub fn refused(error: TrainError) -> Failure {
    match error {
        TrainError::Weights { .. } | TrainError::WeightsDiffer { .. } | TrainError::File { .. } => {
            Failure::usage(escaped(error))
        }
        error => error.into(),
    }
}

/// Names of tensors as a list.
fn named(names: &[String]) -> String {
    let listed: Vec<_> = names.iter().take(MOST_NAMED).map(escaped).collect();
    match names.len().saturating_sub(MOST_NAMED) {
        _ if names.is_empty() => "nothing".to_string(),
        0 => listed.join(", "),
        more => format!("{}, and {more} more", listed.join(", ")),
    }
}
