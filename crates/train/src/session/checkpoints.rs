//! Saving a session's checkpoints and resuming from them.

use super::callback::flush;
use super::{Saved, Session};
use crate::TrainError;
use crate::files::checkpoint_folder::{checkpoints, file_name, is_refusal, newest, prune};
use crate::files::layout::SavedTensor;
use crate::files::tensor_file::{self, PARTS, States, dtype_name, open, part_path, wrong};
use crate::files::{TrainState, max_header_bytes};
use crate::trainer::gather;
use plimsoll_plan::Ranks;
use std::path::{Path, PathBuf};

/// A resumed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Where the run stands.
    pub state: TrainState,
    /// The checkpoint it resumes from.
    pub path: PathBuf,
    /// Newer checkpoints that were refused, each with its name and the reason.
    pub refused: Vec<String>,
    /// Why the bits may differ from those of a run that was never stopped, in words.
    pub differs: Option<String>,
}

impl Session {
    /// Where the run stands.
    pub fn train_state(&self) -> TrainState {
        TrainState {
            steps_done: self.steps_done,
            schedule_start: self.schedule_start,
            total_steps: self.total_steps,
            cursor: self.cursor,
            seed: self.trainer.seed,
            batch: self.trainer.step_examples() as u64,
            micro_batches: self.whole.plans.first().map_or(1, |plan| plan.micro_batches) as u64,
            examples: self.train_examples,
            data: self.fingerprint.clone(),
            model: self.trainer.model_in_words(),
            optimizer: self.trainer.optimizer.description(),
            schedule: self.trainer.schedule.description(self.trainer.warmup),
            precision: self.trainer.policy.description(),
            numerics: self.trainer.numerics().to_string(),
            plateau: self.plateau,
            monitor: self.trainer.monitor.description(),
            best: self.best,
            validated: self.validated,
            instructions: self.trainer.instructions(),
            reduction: self.trainer.reduction_in_words(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            notes: self.trainer.notes.clone(),
        }
    }

    /// Saves every state and where the run stands in an existing folder, as a file with the number of steps in its name. The
    /// file is written atomically, through one small buffer. Then checkpoints that the trainer does not keep
    /// ([`crate::Trainer::keep`]) are removed. States that are not finite are not saved.
    ///
    /// Where processes hold different states, all call it, and each writes a file of those that it alone holds beside the first one's, which
    /// comes last and makes the others count. The folder is the same for all.
    pub fn checkpoint(&self, folder: impl AsRef<Path>) -> Result<PathBuf, TrainError> {
        let folder = folder.as_ref();
        self.check_not_poisoned()?;
        let path = folder.join(file_name(self.steps_done));
        let Some(ranks) = self.trainer.connected().filter(|_| self.is_sharded()) else {
            self.save_first(folder, &path, None)?;
            return Ok(path);
        };
        let parts = all_told(ranks.as_ref(), self.save_part(ranks.as_ref(), &path))?;
        let saved = match self.trainer.follows() {
            true => Ok(()),
            false => self.save_first(folder, &path, Some(&parts[1..])),
        };
        // A process that goes on, or ends the run, knows that it is there.
        all_told(ranks.as_ref(), saved.map(|()| String::new()))?;
        Ok(path)
    }

    /// Writes all states of this process, where the run stands, and the checksums of the parts of others, and removes what is not kept.
    fn save_first(&self, folder: &Path, path: &Path, parts: Option<&[String]>) -> Result<(), TrainError> {
        let state = self.train_state();
        let mut notes = state.to_notes();
        notes.extend(parts.map(|parts| (PARTS.to_string(), serde_json::json!(parts).to_string())));
        let states = self.whole.states.iter().enumerate();
        let tensors: Vec<SavedTensor<'_>> =
            states.map(|(i, state)| SavedTensor::same(i, &state.name)).collect();
        let buffer = &mut self.buffer.borrow_mut();
        tensor_file::save(&self.live(), &tensors, Some(&notes), buffer, path)?;
        let of_another_run = |path: &Path| {
            TrainState::read_file(path).is_ok_and(|other| other.identity_mismatch(&state).is_some())
        };
        let best = (self.best.step > 0).then_some(self.best.step);
        let parts = parts.map_or(0, <[_]>::len) + 1;
        prune(folder, self.steps_done, self.trainer.keep, best, parts, of_another_run)
    }

    /// Writes what this process alone holds as a part of a checkpoint, and returns its checksum: nothing for the first process, and one that
    /// holds nothing alone.
    fn save_part(&self, ranks: &dyn Ranks, path: &Path) -> Result<String, TrainError> {
        let (rank, count) = (ranks.device(), ranks.devices());
        let is_own = |name: &str| {
            self.owned.iter().any(|state| state.alone && state.owner == rank && state.name == name)
        };
        let own = self.whole.states.iter().enumerate().filter(|(_, state)| is_own(&state.name));
        let tensors: Vec<SavedTensor<'_>> = own.map(|(i, state)| SavedTensor::same(i, &state.name)).collect();
        if rank == 0 || tensors.is_empty() {
            return Ok(String::new());
        }
        let notes = [("part", format!("{rank} of {count}")), ("step", self.steps_done.to_string())];
        let notes = notes.map(|(key, value)| (key.to_string(), value)).into();
        let (path, buffer) = (part_path(path, rank, count), &mut self.buffer.borrow_mut());
        tensor_file::save(&self.live(), &tensors, Some(&notes), buffer, &path)
    }

    /// Refuses a folder that holds another run's checkpoints: a run that starts there would remove them, or resume from them
    /// later. [`Session::fit`] checks this first.
    pub fn check_folder(&self, folder: impl AsRef<Path>) -> Result<(), TrainError> {
        let folder = folder.as_ref();
        let state = self.train_state();
        for path in checkpoints(folder).unwrap_or_default() {
            if let Ok(Some(what)) = TrainState::read_file(&path).map(|other| other.identity_mismatch(&state))
            {
                return Err(TrainError::Setting(format!(
                    "{} is another run's ({what}): name another folder, remove it, or resume that run",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Makes the folder of checkpoints, and refuses a run whose checkpoints could not be read back.
    pub(super) fn check_checkpoints(&self, fresh: bool) -> Result<(), TrainError> {
        let Some(folder) = self.trainer.checkpoint_folder() else { return Ok(()) };
        std::fs::create_dir_all(folder).map_err(|source| TrainError::file(folder, source))?;
        if fresh {
            self.check_folder(folder)?;
        }
        let notes = self.train_state().to_notes();
        let (states, all) = (self.gathered(), self.all_roles());
        let tensors: Vec<SavedTensor<'_>> =
            all.iter().map(|&(state, _)| SavedTensor::same(state, states.name(state))).collect();
        let bytes = tensor_file::header(&states, &tensors, Some(&notes)).len() as u64;
        let most = max_header_bytes(tensors.len());
        if bytes > most {
            return Err(TrainError::Setting(format!(
                "names and notes take {bytes} bytes of a checkpoint, at most {most} can be read: make them shorter"
            )));
        }
        Ok(())
    }

    /// Restores every state and where the run stands from a folder's newest good checkpoint: the next [`Session::fit`]
    /// continues as if the run had never been interrupted, to the last bit. The trainer must be the same, except for its steps
    /// or epochs, line, threads and micro-batches. A checkpoint that is damaged or another run's is refused, and the one
    /// before it is tried.
    pub fn resume(&mut self, folder: impl AsRef<Path>) -> Result<Resumed, TrainError> {
        let folder = folder.as_ref();
        let ((state, path), refused) =
            newest(folder, |path| Ok((self.resume_from(path)?, path.to_path_buf())))?;
        (self.resumed, self.resumed_from) = (true, Some(folder.to_path_buf()));
        let differs = state.differences(&self.train_state());
        Ok(Resumed { state, path, refused, differs })
    }

    /// Restores everything from one checkpoint.
    pub(super) fn resume_from(&mut self, path: &Path) -> Result<TrainState, TrainError> {
        let own = self.whole.states.len();
        let all = own + self.elsewhere().count();
        let file = open(path, max_header_bytes(all))?;
        let state = TrainState::parse(&file, path)?;
        state.check_identity(&self.train_state(), path)?;
        let mut places = Vec::with_capacity(all);
        let wanted = self.whole.states.iter().map(|state| (&state.name, &state.ty));
        for (i, (name, ty)) in
            wanted.chain(self.elsewhere().map(|state| (&state.name, &state.ty))).enumerate()
        {
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
        places.retain(|&(state, _)| state < own);
        // Poisoned until done, so that half-read states are never saved.
        self.poisoned = true;
        file.read_checked(self.prepared.as_mut(), &places, self.buffer.get_mut(), path)?;
        self.poisoned = false;
        self.steps_done = state.steps_done;
        self.schedule_start = state.schedule_start;
        self.plateau = state.plateau;
        self.best = state.best;
        self.validated = state.validated;
        self.cursor = state.cursor;
        Ok(state)
    }

    /// Restores the best validation's checkpoint and returns its step, or `None` if it was not kept. If it is damaged, the
    /// session stays at its last step, and the reason is returned.
    pub(super) fn restore_best(&mut self) -> Result<(Option<u64>, Option<String>), TrainError> {
        let Some(folder) = self.trainer.checkpoint_folder() else { return Ok((None, None)) };
        let (best, last) = (file_name(self.best.step), folder.join(file_name(self.steps_done)));
        if self.best.step == 0 {
            return Ok((None, None));
        }
        // The best of a run that was resumed from another folder may still be there.
        let folders = [Some(folder.to_path_buf()), self.resumed_from.clone()].into_iter().flatten();
        let mut reasons = Vec::new();
        for path in folders.map(|folder| folder.join(&best)).filter(|path| path.exists()) {
            match self.resume_from(&path) {
                Ok(state) => return Ok((Some(state.steps_done), None)),
                Err(error) if is_refusal(&error) => reasons.push(error.to_string()),
                Err(other) => return Err(other),
            }
        }
        if reasons.is_empty() {
            return Ok((None, None));
        }
        // States may be half read: restore the last step's, which were saved before.
        self.resume_from(&last)?;
        Ok((None, Some(reasons.join("; "))))
    }

    /// As [`Session::save_on_exit`], where only this process ends the run: it cannot save what others hold.
    pub(super) fn save_on_exit_alone(&self) -> Saved {
        if self.is_sharded() {
            return Saved::Failed("other processes hold a part of the states".into());
        }
        self.save_on_exit()
    }

    /// Saves a checkpoint before the run ends early; a failure to save is part of the answer.
    pub(super) fn save_on_exit(&self) -> Saved {
        // A log that cannot be written does not keep the states from being saved.
        let _ = flush(&self.callbacks);
        match self.save_in_folder() {
            Ok(Some(folder)) => Saved::In(folder),
            Ok(None) => Saved::Nowhere,
            Err(error) => Saved::Failed(error.to_string()),
        }
    }

    /// The newest checkpoint of this run in the trainer's folder, by what its file says: states are not read.
    pub(super) fn last_checkpoint(&self) -> Option<PathBuf> {
        let own = self.train_state();
        let is_own = |path: &Path| {
            let state = TrainState::read_file(path).ok();
            state.is_some_and(|s| s.steps_done <= own.steps_done && s.identity_mismatch(&own).is_none())
        };
        let all = checkpoints(self.trainer.checkpoint_folder()?).ok()?;
        all.into_iter().rev().find(|path| is_own(path))
    }

    /// Saves a checkpoint in the trainer's folder, if it names one. Callbacks write what they keep before it is there: a run that resumes
    /// from it does not tell of the steps before.
    pub(super) fn save_checkpoint(&self) -> Result<(), TrainError> {
        let flushed = flush(&self.callbacks);
        self.save_in_folder()?;
        flushed
    }

    /// Saves a checkpoint; returns the folder.
    fn save_in_folder(&self) -> Result<Option<PathBuf>, TrainError> {
        let Some(folder) = self.trainer.checkpoint_folder() else { return Ok(None) };
        // The first rank saves, and the others what they alone hold.
        if !self.trainer.follows() || self.is_sharded() {
            self.checkpoint(folder)?;
        }
        Ok(Some(folder.to_path_buf()))
    }
}

/// What every process has to tell, or the error of this one, or of the first that has one.
fn all_told(ranks: &dyn Ranks, own: Result<String, TrainError>) -> Result<Vec<String>, TrainError> {
    let told = own.as_ref().map_or_else(|error| format!("!{error}"), String::clone);
    let all = gather(ranks, told.as_bytes())?;
    own?;
    let failed = all.iter().enumerate().find_map(|(rank, told)| Some((rank, told.strip_prefix('!')?)));
    match failed {
        Some((rank, reason)) => Err(TrainError::Rank { rank, reason: reason.into() }),
        None => Ok(all),
    }
}
