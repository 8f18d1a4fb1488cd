//! A session's way into checkpoints and out of them.

use super::{Saved, Session};
use crate::TrainError;
use crate::files::checkpoint_folder::{checkpoints, file_name, newest, tidy};
use crate::files::layout::Kept;
use crate::files::tensor_file::{self, dtype_name, open, wrong};
use crate::files::{Checkpoints, TrainState, most_header_bytes};
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
            model: self.trainer.model_in_words(),
            optimizer: self.trainer.optimizer.description(),
            schedule: self.trainer.schedule.description(self.trainer.warmup),
            precision: self.trainer.policy.description(),
            plateau: self.plateau,
            monitor: self.trainer.monitor.description(),
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
        let every = self.every_state();
        let notes = self.train_state().to_notes();
        let (prepared, mut buffer) = (self.prepared.as_ref(), self.buffer.borrow_mut());
        tensor_file::save(prepared, &self.plans, &every, Some(&notes), &mut buffer, &path)?;
        let (state, best) = (self.train_state(), self.best.step);
        let foreign =
            |path: &Path| TrainState::read_file(path).is_ok_and(|other| other.other(&state).is_some());
        tidy(folder, self.steps_done, self.trainer.keep, (best > 0).then_some(best), foreign)?;
        Ok(path)
    }

    /// Refuses a folder in which another run left checkpoints: a run that starts there would remove them, or go on with them
    /// later. [`Session::fit`] asks first.
    pub fn check_folder(&self, folder: &Path) -> Result<(), TrainError> {
        let state = self.train_state();
        for path in checkpoints(folder).unwrap_or_default() {
            if let Ok(Some(what)) = TrainState::read_file(&path).map(|other| other.other(&state)) {
                return Err(TrainError::Setting(format!(
                    "{} is another run's ({what}): name another folder, remove it, or go on with that run",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Refuses a run whose checkpoints could not be read again.
    pub(crate) fn check_checkpoints(&self, fresh: bool) -> Result<(), TrainError> {
        let Some(Checkpoints { folder, .. }) = &self.trainer.checkpoints else { return Ok(()) };
        if fresh {
            self.check_folder(folder)?;
        }
        let notes = self.train_state().to_notes();
        let bytes = tensor_file::header(&self.plans, &self.every_state(), Some(&notes)).len() as u64;
        let most = most_header_bytes(self.plans.states.len());
        if bytes > most {
            return Err(TrainError::Setting(format!(
                "names and notes take {bytes} bytes of a checkpoint, at most {most} can be read: make them shorter"
            )));
        }
        Ok(())
    }

    /// Every state under its own name.
    fn every_state(&self) -> Vec<Kept<'_>> {
        self.plans.states.iter().enumerate().map(|(i, state)| Kept::same(i, &state.name)).collect()
    }

    /// Takes every state and where the run stands from a folder's newest good checkpoint: the next [`Session::fit`] goes
    /// on as if the run had never been interrupted, to the last bit. The trainer must be the same, but for its steps or
    /// epochs, line, threads and micro-batches. A file that is damaged or another run's is refused, and the one before it
    /// is tried.
    pub fn resume(&mut self, folder: &Path) -> Result<Resumed, TrainError> {
        let ((state, path), refused) =
            newest(folder, |path| Ok((self.resume_from(path)?, path.to_path_buf())))?;
        (self.resumed, self.resumed_from) = (true, Some(folder.to_path_buf()));
        let differs = state.differences(&self.train_state());
        Ok(Resumed { state, path, refused, differs })
    }

    /// Takes everything from one checkpoint.
    pub(crate) fn resume_from(&mut self, path: &Path) -> Result<TrainState, TrainError> {
        let file = open(path, most_header_bytes(self.plans.states.len()))?;
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

    /// Goes back to the best validation, after which step is told; `None` where no checkpoint of it is kept. Where none of
    /// them is good, the session stays where it is, which was saved, and the reason is told.
    pub(crate) fn restore_best(&mut self) -> Result<(Option<u64>, Option<String>), TrainError> {
        let Some(Checkpoints { folder, .. }) = &self.trainer.checkpoints else { return Ok((None, None)) };
        let (best, last) = (file_name(self.best.step), folder.join(file_name(self.steps_done)));
        if self.best.step == 0 {
            return Ok((None, None));
        }
        // A run that went on elsewhere may have left its best behind.
        let folders = [Some(folder.clone()), self.resumed_from.clone()].into_iter().flatten();
        let mut reasons = Vec::new();
        for path in folders.map(|folder| folder.join(&best)).filter(|path| path.exists()) {
            match self.resume_from(&path) {
                Ok(state) => return Ok((Some(state.steps_done), None)),
                Err(error @ (TrainError::Weights { .. } | TrainError::File { .. })) => {
                    reasons.push(error.to_string());
                }
                Err(other) => return Err(other),
            }
        }
        if reasons.is_empty() {
            return Ok((None, None));
        }
        // States may be half read.
        self.resume_from(&last)?;
        Ok((None, Some(reasons.join("; "))))
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
