//! Reading, writing, loading and saving a session's states.

use super::callback::Listeners;
use super::init::number;
use super::{Session, parameter_of};
use crate::files::checkpoint_folder::newest;
use crate::files::tensor_file::{Live, States};
use crate::files::{kept_in_state, weights};
use crate::suggestion::suggestion;
use crate::{Loaded, Names, TrainError, WEIGHTS_FILE};
use plimsoll_export::{Batch, ExportError, ExportGraph, Exported, Format, Weights};
use plimsoll_graph::Role;
use plimsoll_tensor::{Tensor, TensorType};
use plimsoll_transform::OwnedState;
use std::path::{Path, PathBuf};

/// What pruning left of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The parameter.
    pub parameter: String,
    /// Elements that its mask keeps.
    pub kept: usize,
    /// All its elements.
    pub elements: usize,
}

impl Session {
    /// The name and type of every parameter: what [`Session::state`] reads, and what `freeze` and `read_gradients` of a
    /// [`plimsoll_nn::Recipe`] match.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Memory};
    /// use plimsoll_nn::{Dense, Sequential, Sgd};
    /// use plimsoll_train::Trainer;
    /// let (x, y) = ([[1.0f32, 2.0]], [[1.0f32]]);
    /// let data = Dataset::new("point", Memory::values(x, y)?, Memory::values(x, y)?);
    /// let model = Sequential::regression([2], [1]).push(Dense::new(1));
    /// let run = Trainer::new(model, Sgd::new(0.1)).batch(1).plan(&data)?.start()?;
    /// let names: Vec<String> = run.parameters().map(|(name, ty)| format!("{name} {ty}")).collect();
    /// assert_eq!(names, ["dense/kernel f32[2,1]", "dense/bias f32[1]"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        let parameters = self.whole.states.iter().filter(|state| state.role == Role::Parameter);
        parameters.map(|state| (state.name.as_str(), &state.ty))
    }

    /// What pruning left of every parameter that has a mask.
    pub fn kept(&self) -> Result<Vec<Kept>, TrainError> {
        let masks = self.whole.states.iter().enumerate().filter(|(_, state)| state.role == Role::Mask);
        let mut kept = Vec::new();
        for (mask, state) in masks {
            let Some(parameter) = weights::masked(&state.name) else { continue };
            let elsewhere = self.elsewhere().find(|state| state.name == parameter);
            let elements = match elsewhere {
                Some(state) => state.ty.shape.elements(),
                None => self.whole.states[self.state_index(parameter)?].ty.shape.elements(),
            };
            let buffer = &mut self.buffer.borrow_mut();
            let states = Live { prepared: self.prepared.as_ref(), states: &self.whole.states };
            let count = kept_in_state(&states, mask, elements, buffer)?;
            kept.push(Kept { parameter: parameter.to_string(), kept: count, elements });
        }
        Ok(kept)
    }

    /// A state by its name, like `dense1/kernel`.
    pub fn state(&self, name: &str) -> Result<Tensor, TrainError> {
        let index = self.state_index(name)?;
        let mut tensor = Tensor::zeros(self.whole.states[index].ty.clone());
        let mut bytes = vec![0; tensor.ty().bytes()];
        self.prepared.read_state(index, 0, &mut bytes)?;
        tensor.copy_from_bytes(&bytes);
        Ok(tensor)
    }

    /// Shows every parameter to the callbacks that read them, through the state buffer.
    pub(super) fn show_parameters(&self, step: u64, listeners: &mut Listeners<'_>) -> Result<(), TrainError> {
        let buffer = &mut self.buffer.borrow_mut();
        for (index, state) in self.whole.states.iter().enumerate() {
            let (bytes, dtype) = (state.ty.bytes(), state.ty.dtype);
            if state.role != Role::Parameter || !dtype.is_float() {
                continue;
            }
            for from in (0..bytes).step_by(buffer.len()) {
                let count = buffer.len().min(bytes - from);
                self.prepared.read_state(index, from, &mut buffer[..count])?;
                let values =
                    buffer[..count].chunks_exact(dtype.bytes()).map(|element| number(dtype, element));
                listeners.show_parameter(step, &state.name, values, from + count == bytes)?;
            }
        }
        Ok(())
    }

    /// Replaces a state.
    pub fn set_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), TrainError> {
        let index = self.state_index(name)?;
        let wanted = &self.whole.states[index].ty;
        if tensor.ty() != wanted {
            return Err(TrainError::Setting(format!("`{name}` is {wanted}, {} was given", tensor.ty())));
        }
        self.replayable = false;
        Ok(self.prepared.write_state(index, 0, tensor.as_bytes())?)
    }

    pub(super) fn state_index(&self, name: &str) -> Result<usize, TrainError> {
        let found = self.whole.states.iter().position(|s| s.name == name);
        found.ok_or_else(|| {
            if let Some(other) = self.elsewhere().find(|state| state.name == name) {
                let owner = other.owner;
                return TrainError::Setting(format!("`{name}` is sharded: rank {owner} holds it"));
            }
            let near = suggestion(name, self.whole.states.iter().map(|s| s.name.as_str()));
            let near = near.map_or(String::new(), |near| format!(": the nearest is `{near}`"));
            TrainError::Setting(format!("the model has no state named `{name}`{near}"))
        })
    }

    /// Loads parameters and running statistics from a safetensors file or a run's folder, under Plimsoll's names, PyTorch's or Keras's
    /// (`layer1.0.conv1.weight` for `layer1/0/conv1/kernel`, with its axes in PyTorch's order). A tensor that is missing, of
    /// another shape, or unknown to the model is an error that names it.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        self.load_from(path.as_ref(), false).map(|_| ())
    }

    /// As [`Session::load`], for a file of a model that is not quite the same: loads the tensors that both have, under the
    /// same name and in the same shape, and tells what was left out and what keeps its initial values. A file none of whose
    /// tensors fits is an error.
    ///
    /// A body trained on ten classes gets a head for three:
    ///
    /// ```no_run
    /// # use plimsoll_train::{Session, TrainError};
    /// # fn example(session: &mut Session) -> Result<(), TrainError> {
    /// let found = session.load_matching("ten-classes/weights.safetensors")?;
    /// println!("loaded {}, new are {}", found.loaded.len(), found.fresh.join(", ")); // head/kernel, head/bias
    /// assert_eq!(found.left_out, found.fresh);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_matching(&mut self, path: impl AsRef<Path>) -> Result<Loaded, TrainError> {
        self.load_from(path.as_ref(), true)
    }

    /// Loads a weights file, or that of a run's folder, or else the folder's newest good checkpoint.
    fn load_from(&mut self, path: &Path, partly: bool) -> Result<Loaded, TrainError> {
        // Poisoned until done, so that half-loaded states are never saved.
        (self.poisoned, self.replayable) = (true, false);
        let file = path.join(WEIGHTS_FILE);
        let others: Vec<OwnedState> = self.elsewhere().cloned().collect();
        let loaded = if path.is_dir() && !file.exists() {
            let load = |path: &Path| {
                weights::load_checkpoint(self.prepared.as_mut(), &self.whole.states, &others, path, partly)
            };
            newest(path, load)?.0
        } else {
            let file = if path.is_dir() { &file } else { path };
            weights::load(self.prepared.as_mut(), &self.whole.states, &others, file, partly)?
        };
        self.poisoned = false;
        Ok(loaded)
    }

    /// Loads parameters (their running averages, where there are some) and running statistics from a folder's newest good
    /// checkpoint, for evaluation and prediction: optimizer and data may differ. Returns the checkpoint.
    pub fn load_checkpoint(&mut self, folder: impl AsRef<Path>) -> Result<PathBuf, TrainError> {
        (self.poisoned, self.replayable) = (true, false);
        let others: Vec<OwnedState> = self.elsewhere().cloned().collect();
        let (path, _) = newest(folder.as_ref(), |path| {
            weights::load_checkpoint(self.prepared.as_mut(), &self.whole.states, &others, path, false)?;
            Ok(path.to_path_buf())
        })?;
        self.poisoned = false;
        Ok(path)
    }

    /// Whether the processes of a run hold different parameters ([`crate::Shard::Parameters`]): all of them call [`Session::save`] then, and
    /// the first one writes the file.
    pub fn saves_together(&self) -> bool {
        self.fetches_parameters()
    }

    /// Saves parameters and running statistics as a safetensors file, under Plimsoll's names. Where the processes of a run hold
    /// different parameters ([`Session::saves_together`]) all of them call it.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        self.save_as(path, Names::Own)
    }

    /// As [`Session::save`], under the names and in the layouts of choice; [`Session::load`] reads them all.
    pub fn save_as(&self, path: impl AsRef<Path>, names: Names) -> Result<(), TrainError> {
        self.check_not_poisoned()?;
        let asks = self.fetches_parameters();
        if asks && self.trainer.follows() {
            return self.serve_states();
        }
        let states = self.gathered();
        let buffer = &mut self.buffer.borrow_mut();
        let saved = weights::save(&states, &self.all_roles(), names, buffer, path.as_ref());
        // The others wait until they are told, also after a failure.
        if asks { states.close().and(saved) } else { saved }
    }

    /// Writes the model with its weights (their running averages, where there are some) as a file of another system. The file is
    /// written atomically, and weights pass through a buffer piece by piece.
    ///
    /// ```no_run
    /// # use plimsoll_train::{Session, TrainError};
    /// use plimsoll_export::{Batch, Format};
    /// # fn example(session: &Session) -> Result<(), TrainError> {
    /// session.export("model.onnx", Format::Onnx, Batch::Dynamic)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn export(
        &self,
        path: impl AsRef<Path>,
        format: Format,
        batch: Batch,
    ) -> Result<Exported, TrainError> {
        self.export_step(path, format, &ExportGraph::new(self.trainer.model.as_ref(), batch)?)
    }

    /// As [`Session::export`], of a step whose states are this session's: that of a model on bytes, for one that runs it.
    pub fn export_step(
        &self,
        path: impl AsRef<Path>,
        format: Format,
        step: &ExportGraph,
    ) -> Result<Exported, TrainError> {
        self.check_not_poisoned()?;
        let states = step.graph().states.iter().map(|state| {
            let average = self.whole.states.iter().position(|s| parameter_of(s) == Some(&state.name));
            average.map_or_else(|| self.state_index(&state.name), Ok)
        });
        let states = states.collect::<Result<_, _>>()?;
        Ok(step.write(format, &LiveWeights { live: self.live(), states }, path.as_ref())?)
    }

    pub(super) fn live(&self) -> Live<'_> {
        Live { prepared: self.prepared.as_ref(), states: &self.whole.states }
    }

    /// Refuses to save states that may be half written.
    pub(super) fn check_not_poisoned(&self) -> Result<(), TrainError> {
        if self.poisoned {
            return Err(TrainError::Setting(
                "the last step or load failed, so the weights are not saved".into(),
            ));
        }
        Ok(())
    }
}

/// The states of a session that a graph to be exported has.
struct LiveWeights<'s> {
    live: Live<'s>,
    /// For each state of the graph, that of the session.
    states: Vec<usize>,
}

impl Weights for LiveWeights<'_> {
    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExportError> {
        self.live.read(self.states[state], offset, into).map_err(|e| ExportError::Weights(e.to_string()))
    }
}
