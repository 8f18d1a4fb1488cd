//! `plimsoll prune`: a trained model with fewer channels.

use super::args::PruneChannelsOptions;
use super::made_folder::MadeFolder;
use super::text::escaped;
use super::trained::describe;
use super::weights::refused;
use super::{Failure, say};
use plimsoll::compress::{ChannelError, Channels};
use plimsoll::data::{Dataset, Pipeline, Schema};
use plimsoll::nn::{Model, Narrow, Sgd};
use plimsoll::train::{BatchKind, Session, TrainError, Trainer};
use serde_json::json;

/// Why channels could not be removed.
enum Refusal {
    Channels(ChannelError),
    Read(TrainError),
}

impl From<ChannelError> for Refusal {
    fn from(error: ChannelError) -> Self {
        Self::Channels(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Channels(error) => Self::usage(format!("--channels: {}", escaped(error))),
            Refusal::Read(error) => error.into(),
        }
    }
}

/// Loads a run's weights, removes channels, and writes the folder of the smaller model.
pub fn run(options: &PruneChannelsOptions) -> Result<(), Failure> {
    let run = &options.run;
    let folder = MadeFolder::new(run, &options.out)?;
    let described = describe(run)?;
    let model = described.plain_model()?;
    let mut whole = session(described.plain_model()?)?;
    whole.load(run).map_err(refused)?;
    let read = |name: &str| whole.state(name).map_err(Refusal::Read);
    let channels = Channels::smallest(&model, options.channels, read)?;
    let mut small = session(Box::new(Narrow::new(model, described.all_widths(channels.widths()))))?;
    let names: Vec<String> = small.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        small.set_state(&name, &channels.cut(&name, &whole.state(&name)?))?;
    }
    let elements = |session: &Session| session.parameters().map(|(_, ty)| ty.shape.elements()).sum::<usize>();
    let parameters = [elements(&whole), elements(&small)];
    drop(whole);
    let widths = described.all_widths(channels.widths());
    folder.write(&small, |model_options| model_options["widths"] = json!(widths))?;
    let (before, after) = channels.counts();
    say(&format!("channels     {before} before, {after} left, in {} layers", channels.widths().len()));
    say(&format!("parameters   {} before, {} left", parameters[0], parameters[1]));
    let name = escaped(options.out.display());
    say(&format!(
        "Wrote {name}; train it on with `plimsoll train --model {} --weights {name}`",
        described.name()
    ));
    Ok(())
}

/// A model with memory for its states, to read and write them.
fn session(model: Box<dyn Model>) -> Result<Session, Failure> {
    let schema = Schema::examples(model.inputs(), model.target());
    // Stands for rows that are never read.
    let rows = Pipeline::generator(schema, 0, |_| |_| Ok(false)).counted(1);
    let trainer = Trainer::new(model, Sgd::new(0.0)).kinds(&[BatchKind::Predict]).batch(1);
    Ok(trainer.plan(&Dataset::new("states", rows.clone(), rows))?.start()?)
}
