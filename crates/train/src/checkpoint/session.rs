//! A session's way into checkpoints and out of them.

use super::folder::{file_name, newest, tidy};
use super::{Checkpoints, HEADER_BYTES, TrainState};
use crate::layout::Kept;
use crate::tensor_file::{self, dtype_name, open, wrong};
use crate::{Saved, Session, TrainError};
use std::path::{Path, PathBuf};

/// A run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Where it stands.
    pub state: TrainState,
    /// The checkpoint that it goes on from.
    pub path: PathBuf,
    /// Newer checkpoints that were refused, each with its name and the reason.
    pub refused: Vec<String>,
    /// What lets the bits differ from those of a run that was never stopped, in words.
    pub differs: Option<String>,
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
            monitor: self.trainer.monitor.name().to_string(),
            best: self.best,
            validated: self.validated,
            instructions: self.trainer.executor.target().instructions(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            notes: self.trainer.notes.clone(),
        }
    }

    /// Saves every state and where the run stands, as a file with the number of steps in its name, in a folder that
    /// exists. The file is there whole or not at all, and passes through one small buffer. Then what the trainer does not
    /// keep ([`crate::Trainer::keep`]) is removed. States that are not finite are not saved.
    pub fn checkpoint(&self, folder: &Path) -> Result<PathBuf, TrainError> {
        self.check_unspoilt()?;
        let path = folder.join(file_name(self.steps_done));
        let states = self.plans.states.iter().enumerate();
        let every: Vec<Kept<'_>> = states.map(|(i, state)| Kept::same(i, &state.name)).collect();
        let notes = self.train_state().to_notes();
        let (prepared, mut buffer) = (self.prepared.as_ref(), self.buffer.borrow_mut());
        tensor_file::save(prepared, &self.plans, &every, Some(&notes), &mut buffer, &path)?;
        tidy(folder, self.steps_done, self.trainer.keep, self.best.step)?;
        Ok(path)
    }

    /// Takes every state and where the run stands from a folder's newest good checkpoint: the next [`Session::fit`] goes
    /// on as if the run had never been interrupted, to the last bit. The trainer must be the same, but for its steps or
    /// epochs, line, threads and micro-batches. A file that is damaged or another run's is refused, and the one before it
    /// is tried.
    pub fn resume(&mut self, folder: &Path) -> Result<Resumed, TrainError> {
        let ((state, path), refused) =
            newest(folder, |path| Ok((self.resume_from(path)?, path.to_path_buf())))?;
        self.resumed = true;
        let differs = state.differences(&self.train_state());
        Ok(Resumed { state, path, refused, differs })
    }

    /// Takes everything from one checkpoint.
    pub(crate) fn resume_from(&mut self, path: &Path) -> Result<TrainState, TrainError> {
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
        self.best = state.best;
        self.validated = state.validated;
        self.cursor = state.cursor;
        Ok(state)
    }

    /// Goes back to the best validation; `None` where no checkpoint of it is kept.
    pub(crate) fn restore_best(&mut self) -> Result<Option<u64>, TrainError> {
        let Some(Checkpoints { folder, .. }) = &self.trainer.checkpoints else { return Ok(None) };
        let path = folder.join(file_name(self.best.step));
        if self.best.step == 0 || !path.exists() {
            return Ok(None);
        }
        Ok(Some(self.resume_from(&path)?.steps_done))
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
    pub(crate) fn save_checkpoint(&self) -> Result<Option<PathBuf>, TrainError> {
        let Some(Checkpoints { folder, .. }) = &self.trainer.checkpoints else { return Ok(None) };
        self.checkpoint(folder)?;
        Ok(Some(folder.clone()))
    }
}
