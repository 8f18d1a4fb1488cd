//! Checkpoints: every state and where the run stands, in one safetensors file.

use crate::tensor_file::{self, Opened, dtype_name, open, wrong};
use crate::{Control, Plateau, Saved, Session, TrainError};
use plimsoll_data::Cursor;
use plimsoll_nn::Policy;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The checkpoint's file in its folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";

/// The form of the header's notes.
const FORMAT: &str = "plimsoll checkpoint 1";
/// Bytes of a header at most: a name, a type and a shape take about a hundred and fifty.
const HEADER_BYTES: u64 = 4 << 20;
/// Steps, epochs and examples at most, so that no sum of them overflows.
const MOST: u64 = 1 << 48;
/// Before the names of a program's own notes.
const NOTE: &str = "note.";

/// Where checkpoints go, and how often.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    pub folder: PathBuf,
    /// Steps between two; `None` for one at the end alone.
    pub every: Option<u64>,
}

/// Where a run stands: with the states' elements, all that a checkpoint holds.
///
/// ```no_run
/// use plimsoll_train::TrainState;
/// let state = TrainState::read("run".as_ref())?;
/// println!("{} of {} steps of {}", state.steps_done, state.total_steps, state.model);
/// # Ok::<(), plimsoll_train::TrainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainState {
    /// Steps done: the optimizer's count, and the step of random numbers.
    pub steps_done: u64,
    /// The step at which the learning rate's schedule started.
    pub schedule_start: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// Where the training data goes on.
    pub cursor: Cursor,
    /// The seed of random numbers and of the order of examples.
    pub seed: u64,
    /// Examples per step.
    pub batch: u64,
    /// Micro-batches per step; may change when the run goes on.
    pub micro_batches: u64,
    /// Examples of the training part.
    pub examples: u64,
    /// The model's name.
    pub model: String,
    /// The optimizer with its numbers.
    pub optimizer: String,
    /// The learning rate's schedule.
    pub schedule: String,
    /// The precision, and the layers that stay f32.
    pub precision: String,
    /// What the schedule remembers of losses.
    pub plateau: Plateau,
    /// What a program noted with [`crate::Trainer::note`].
    pub notes: BTreeMap<String, String>,
}

impl TrainState {
    /// Reads where the run of a folder stands, without its states. Only [`Session::resume`] looks at the whole file, and
    /// so finds every damage.
    pub fn read(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(CHECKPOINT);
        Self::parse(&open(&path, HEADER_BYTES)?, &path)
    }

    fn numbers(&self) -> [(&'static str, u64); 12] {
        [
            ("step", self.steps_done),
            ("schedule_start", self.schedule_start),
            ("total_steps", self.total_steps),
            ("epoch", self.cursor.epoch),
            ("example", self.cursor.example),
            ("seed", self.seed),
            ("batch", self.batch),
            ("micro_batches", self.micro_batches),
            ("examples", self.examples),
            ("plateau_best", self.plateau.best_bits),
            ("plateau_waited", self.plateau.waited),
            ("plateau_lowered", self.plateau.lowered),
        ]
    }

    fn to_notes(&self) -> BTreeMap<String, String> {
        let words = [
            ("format", FORMAT),
            ("model", &self.model),
            ("optimizer", &self.optimizer),
            ("schedule", &self.schedule),
            ("precision", &self.precision),
        ];
        let words = words.into_iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let numbers = self.numbers().into_iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let notes = self.notes.iter().map(|(key, value)| (format!("{NOTE}{key}"), value.clone()));
        words.chain(numbers).chain(notes).collect()
    }

    fn parse(file: &Opened, path: &Path) -> Result<Self, TrainError> {
        let notes = file.tensors.metadata().as_ref();
        let notes = notes.ok_or_else(|| wrong(path, "the header has no notes: this is no checkpoint"))?;
        let word = |key: &str| {
            notes.get(key).cloned().ok_or_else(|| wrong(path, format!("the header has no \"{key}\"")))
        };
        let format = word("format")?;
        if format != FORMAT {
            return Err(wrong(path, format!("the format is `{format}`, this program reads `{FORMAT}`")));
        }
        let any = |key: &str| {
            let text = word(key)?;
            text.parse::<u64>().map_err(|_| wrong(path, format!("\"{key}\" is `{text}`, not a number")))
        };
        let number = |key: &str| match any(key)? {
            value if value > MOST => Err(wrong(path, format!("\"{key}\" is {value}, more than {MOST}"))),
            value => Ok(value),
        };
        let own =
            notes.iter().filter_map(|(key, value)| Some((key.strip_prefix(NOTE)?.into(), value.clone())));
        let state = Self {
            steps_done: number("step")?,
            schedule_start: number("schedule_start")?,
            total_steps: any("total_steps")?,
            cursor: Cursor { epoch: number("epoch")?, example: number("example")? },
            seed: any("seed")?,
            batch: number("batch")?,
            micro_batches: number("micro_batches")?,
            examples: number("examples")?,
            model: word("model")?,
            optimizer: word("optimizer")?,
            schedule: word("schedule")?,
            // A file of a program that knew no other says nothing.
            precision: notes.get("precision").cloned().unwrap_or_else(|| Policy::default().description()),
            plateau: Plateau {
                best_bits: any("plateau_best")?,
                waited: number("plateau_waited")?,
                lowered: number("plateau_lowered")?,
            },
            notes: own.collect(),
        };
        if state.schedule_start > state.steps_done || state.cursor.example > state.examples {
            return Err(wrong(path, "the numbers of its steps and examples contradict each other"));
        }
        Ok(state)
    }

    /// Refuses to go on under settings that would make another run of it. Steps, micro-batches and notes may change.
    fn check(&self, trainer: &Self, path: &Path) -> Result<(), TrainError> {
        let numbers = |state: &Self| {
            [("seed", state.seed), ("batch", state.batch), ("training examples", state.examples)]
                .map(|(what, value)| (what, value.to_string()))
        };
        let words = |state: &Self| {
            [
                ("model", state.model.clone()),
                ("optimizer", state.optimizer.clone()),
                ("schedule", state.schedule.clone()),
                ("precision", state.precision.clone()),
            ]
        };
        let saved = numbers(self).into_iter().chain(words(self));
        for ((what, saved), (_, given)) in saved.zip(numbers(trainer).into_iter().chain(words(trainer))) {
            if saved != given {
                let reason =
                    format!("{what}: the checkpoint has {saved}, the trainer {given}; go on with the same");
                return Err(wrong(path, reason));
            }
        }
        Ok(())
    }
}

impl Session<'_> {
    /// Where the run stands.
    pub fn train_state(&self) -> TrainState {
        TrainState {
            steps_done: self.steps_done,
            schedule_start: self.schedule_start,
            total_steps: self.total_steps,
            cursor: self.cursor,
            seed: self.trainer.seed,
            batch: self.trainer.step_examples() as u64,
            micro_batches: self.plans.plans.first().map_or(1, |p| p.graph.micro_batches) as u64,
            examples: self.train_examples,
            model: self.trainer.model.name().to_string(),
            optimizer: self.trainer.optimizer.description(),
            schedule: self.trainer.schedule.description(self.trainer.warmup),
            precision: self.trainer.policy.description(),
            plateau: self.plateau,
            notes: self.trainer.notes.clone(),
        }
    }

    /// Saves every state and where the run stands as `checkpoint.safetensors` in a folder that exists. The file is
    /// replaced whole or not at all, and passes through one small buffer.
    pub fn checkpoint(&self, folder: &Path) -> Result<(), TrainError> {
        self.check_unspoilt()?;
        let states = self.plans.states.iter().enumerate();
        let every: Vec<(usize, &str)> = states.map(|(i, state)| (i, state.name.as_str())).collect();
        let notes = self.train_state().to_notes();
        let (prepared, mut buffer) = (self.prepared.as_ref(), self.buffer.borrow_mut());
        tensor_file::save(prepared, &self.plans, &every, Some(&notes), &mut buffer, &folder.join(CHECKPOINT))
    }

    /// Takes every state and where the run stands from a folder's checkpoint: the next [`Session::fit`] goes on as if
    /// the run had never been interrupted, to the last bit. The trainer must be the same, but for its steps or epochs,
    /// line, threads and micro-batches. A file that is damaged or another run's is refused.
    pub fn resume(&mut self, folder: &Path) -> Result<TrainState, TrainError> {
        let path = &folder.join(CHECKPOINT);
        let file = open(path, HEADER_BYTES)?;
        let state = TrainState::parse(&file, path)?;
        state.check(&self.train_state(), path)?;
        let mut places = Vec::with_capacity(self.plans.states.len());
        for (i, wanted) in self.plans.states.iter().enumerate() {
            let (name, ty) = (&wanted.name, &wanted.ty);
            let info = file.tensors.info(name);
            let info = info.ok_or_else(|| wrong(path, format!("there is no `{name}`")))?;
            if info.shape[..] != ty.shape[..] || dtype_name(ty.dtype) != format!("{:?}", info.dtype) {
                let has = format!("{:?} {:?}", info.dtype, info.shape);
                return Err(wrong(path, format!("`{name}` is {has}, the model needs {ty}")));
            }
            places.push((i, info.data_offsets.0 as u64..info.data_offsets.1 as u64));
        }
        let (held, needed) = (file.tensors.tensors().len(), places.len());
        if held != needed {
            return Err(wrong(path, format!("it holds {held} states, the model has {needed}")));
        }
        places.sort_unstable_by_key(|(_, place)| (place.start, place.end));
        let end = file.start.saturating_add(places.last().map_or(0, |(_, place)| place.end));
        if end != file.length {
            let length = file.length;
            return Err(wrong(path, format!("the states end at byte {end}, the file has {length}")));
        }
        // Nothing may be half read and then saved.
        self.spoilt = true;
        file.read_checked(self.prepared.as_mut(), &places, self.buffer.get_mut(), path)?;
        self.spoilt = false;
        self.steps_done = state.steps_done;
        self.schedule_start = state.schedule_start;
        self.plateau = state.plateau;
        self.cursor = state.cursor;
        self.resumed = true;
        Ok(state)
    }

    /// Saves a checkpoint at the end of a run, and every so many steps.
    pub(crate) fn save_if_due(&self, step: u64, last: bool) -> Result<(), TrainError> {
        let every = self.trainer.checkpoints.as_ref().and_then(|c| c.every);
        if last || every.is_some_and(|every| step.is_multiple_of(every.max(1))) {
            self.save_checkpoint()?;
        }
        Ok(())
    }

    /// Saves, and ends the run, if that is what a listener wants.
    pub(crate) fn leave_if_asked(&self, step: u64, control: Control) -> Result<(), TrainError> {
        if control != Control::Leave {
            return Ok(());
        }
        Err(TrainError::Interrupted { step, saved: self.save_to_leave() })
    }

    /// Saves before the run ends, whatever comes of it.
    pub(crate) fn save_to_leave(&self) -> Saved {
        match self.save_checkpoint() {
            Ok(Some(folder)) => Saved::In(folder),
            Ok(None) => Saved::Nowhere,
            Err(error) => Saved::Failed(error.to_string()),
        }
    }

    /// Saves where the trainer says; returns the folder.
    fn save_checkpoint(&self) -> Result<Option<PathBuf>, TrainError> {
        let Some(Checkpoints { folder, .. }) = &self.trainer.checkpoints else { return Ok(None) };
        self.checkpoint(folder)?;
        Ok(Some(folder.clone()))
    }
}
