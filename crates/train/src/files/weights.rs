//! Weights files: parameters and running statistics, under the names and in the layouts of several frameworks.

use super::STATE_BUFFER_BYTES;
use super::checkpoint::MAX_HEADER_BYTES;
use super::checkpoint_folder::newest;
use super::joined::Joined;
use super::layout::{Layout, SavedTensor, Slices, file_element, state_row};
use super::sparse::{self, SparsePlace, kept_in_state};
use super::tensor_file::{self, Opened, States, dtype_name};
use crate::TrainError;
use crate::session::averaged;
use plimsoll_export::{ExportError, Weights};
use plimsoll_graph::{Graph, Role};
use plimsoll_nn::{AVERAGE, MASK, RANGES};
use plimsoll_plan::{Prepared, StatePlacement};
use plimsoll_tensor::{TensorType, mask_bytes};
use plimsoll_transform::OwnedState;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The weights file in the folder of a run that is over.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

/// The names and layouts of a weights file.
///
/// ```
/// use plimsoll_train::Names;
/// assert_eq!(Names::default(), Names::Own);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Plimsoll's, like `stage1/conv/kernel`.
    #[default]
    Own,
    /// PyTorch's, like `stage1.conv.weight`, with its order of a kernel's axes.
    Torch,
    /// Keras's, like `stage1/norm/gamma`.
    Keras,
}

/// Saves parameters (their running averages where there are some) and running statistics through a buffer. Pruned parameters are
/// saved sparse under Plimsoll's own names, where that is smaller; other frameworks do not read that.
pub(crate) fn save(
    states: &dyn States,
    roles: &[(usize, Role)],
    names: Names,
    buffer: &mut [u8],
    path: &Path,
) -> Result<(), TrainError> {
    let weights = roles.iter().filter(|(_, role)| matches!(role, Role::Parameter | Role::Statistic));
    let averages = roles.iter().filter_map(|&(i, role)| Some((averaged(states.name(i), role)?, i)));
    let averages: BTreeMap<&str, usize> = averages.collect();
    let masks = roles.iter().filter(|(_, role)| *role == Role::Mask);
    let masks: BTreeMap<&str, usize> =
        masks.filter_map(|&(i, _)| Some((masked(states.name(i))?, i))).collect();
    let (mut tensors, mut whole) = (Vec::new(), Vec::new());
    for &(i, _) in weights {
        let (own, ty) = (states.name(i), states.ty(i));
        // A running average is saved in place of its parameter.
        let state = averages.get(own).copied().unwrap_or(i);
        if let Some(&mask) = masks.get(own).filter(|_| names == Names::Own) {
            let (elements, size) = (ty.shape.elements(), ty.dtype.bytes());
            let count = kept_in_state(states, mask, elements, buffer)?;
            if count * size + mask_bytes(elements) < ty.bytes() {
                let [values, bits] = sparse::names(own).map(Cow::Owned);
                tensors.push(SavedTensor { state: mask, name: bits, layout: Layout::Same });
                tensors.push(SavedTensor { state, name: values, layout: Layout::Kept { mask, count } });
                continue;
            }
        }
        whole.push((state, own, ty));
    }
    tensors.extend(named(&whole, names));
    tensor_file::save(states, &tensors, None, buffer, path).map(drop)
}

/// The name of the parameter that a mask is of.
pub(crate) fn masked(mask: &str) -> Option<&str> {
    mask.strip_suffix(MASK)?.strip_suffix('/')
}

/// States under the names and in the layouts of choice, each given with its own name and type.
fn named<'n>(weights: &[(usize, &'n str, &TensorType)], names: Names) -> Vec<SavedTensor<'n>> {
    let all: BTreeSet<&str> = weights.iter().map(|(_, name, _)| *name).collect();
    let tensor = |&(state, own, ty): &(usize, &'n str, &TensorType)| {
        let norm = all.contains(sibling(own, "gain").as_str());
        let name = match names {
            Names::Own => Cow::Borrowed(own),
            Names::Torch => Cow::Owned(torch_name(own)),
            Names::Keras => Cow::Owned(keras_name(own, norm)),
        };
        SavedTensor { state, name, layout: layout(&ty.shape, names == Names::Torch, own) }
    };
    weights.iter().map(tensor).collect()
}

/// The weights of a run in their file, read as they are asked for: of a model that is larger than memory, too. The states are
/// those of the graph that it was opened for.
pub struct WeightsFile {
    file: Joined,
    path: PathBuf,
    states: Vec<(String, TensorType)>,
    places: Vec<Place>,
}

impl WeightsFile {
    /// Opens the weights of a run's folder, or else its newest good checkpoint, or a safetensors file, for the states of a graph.
    pub fn open(path: &Path, graph: &Graph) -> Result<Self, TrainError> {
        let file = path.join(WEIGHTS_FILE);
        if path.is_dir() && !file.exists() {
            let open = |path: &Path| {
                tensor_file::open(path, MAX_HEADER_BYTES)?.check(path)?;
                Self::of(tensor_file::open(path, MAX_HEADER_BYTES)?, path, graph, checkpoint_names, true)
            };
            return newest(path, open).map(|(file, _)| file);
        }
        let path = if path.is_dir() { &file } else { path };
        let opened = tensor_file::open(path, max_header(graph.states.len()))?;
        Self::of(opened, path, graph, all_names, false)
    }

    fn of(
        opened: Opened,
        path: &Path,
        graph: &Graph,
        names: impl Fn(&str) -> Vec<String>,
        checkpoint: bool,
    ) -> Result<Self, TrainError> {
        let states: Vec<(String, TensorType)> =
            graph.states.iter().map(|s| (s.name.clone(), graph.ty(s.input).clone())).collect();
        let wanted: Vec<(usize, &str, &TensorType)> =
            states.iter().enumerate().map(|(i, (name, ty))| (i, name.as_str(), ty)).collect();
        let mut matched = matched(&wanted, &opened, path, names)?;
        if !checkpoint {
            matched.tell_unknown();
        }
        if matched.differences.is_empty() && matched.places.len() < states.len() {
            matched.differences.push(format!("there is no `{RANGES}`"));
        }
        if !matched.differences.is_empty() {
            let (path, differences) = (path.display().to_string(), matched.differences);
            return Err(TrainError::WeightsDiffer { path, differences });
        }
        Ok(Self { file: opened.file, path: path.to_path_buf(), states, places: matched.places })
    }

    /// Writes all of them as another safetensors file, under the names and in the layouts of choice.
    pub fn save_as(&self, path: impl AsRef<Path>, names: Names) -> Result<(), TrainError> {
        let states = self.states.iter().enumerate();
        let states: Vec<(usize, &str, &TensorType)> =
            states.map(|(i, (name, ty))| (i, name.as_str(), ty)).collect();
        let buffer = &mut vec![0; STATE_BUFFER_BYTES];
        tensor_file::save(self, &named(&states, names), None, buffer, path.as_ref()).map(drop)
    }
}

impl States for WeightsFile {
    fn name(&self, state: usize) -> &str {
        &self.states[state].0
    }

    fn ty(&self, state: usize) -> &TensorType {
        &self.states[state].1
    }

    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), TrainError> {
        let ty = &self.states[state].1;
        let size = ty.dtype.bytes();
        let (start, layout) = match &self.places[state].from {
            From::Whole(start, layout) => (*start, *layout),
            From::Sparse(place, parameter) => {
                return sparse::read_range(
                    (&self.file, &self.path),
                    (*place, parameter),
                    (offset / size, size),
                    into,
                );
            }
        };
        let read = |at: u64, into: &mut [u8]| {
            let mut file = &self.file;
            let read = file.seek(SeekFrom::Start(start + at)).and_then(|_| file.read_exact(into));
            read.map_err(|source| TrainError::file(&self.path, source))
        };
        if layout == Layout::Same {
            return read(offset as u64, into);
        }
        // Element by element: neighbours here are far from each other in the file.
        let count = ty.shape.last().copied().unwrap_or(1).max(1);
        let each = ty.shape.elements() / count;
        for (i, element) in into.chunks_mut(size).enumerate() {
            let own = offset / size + i;
            let at = (own % count) * each + file_element(&ty.shape, own / count);
            read((at * size) as u64, element)?;
        }
        Ok(())
    }
}

impl Weights for WeightsFile {
    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExportError> {
        States::read(self, state, offset, into).map_err(|e| ExportError::Weights(e.to_string()))
    }
}

/// Another state of the same layer.
fn sibling(name: &str, leaf: &str) -> String {
    name.rsplit_once('/').map_or(leaf.to_string(), |(layer, _)| format!("{layer}/{leaf}"))
}

/// Bytes of a header at most for each state of the model: a name and a shape take about a hundred.
const MAX_HEADER_BYTES_PER_STATE: u64 = 1 << 10;

/// Where a state's elements are in a file.
struct Place {
    state: usize,
    from: From,
}

/// How a state's elements are stored.
enum From {
    /// One after another from an offset on.
    Whole(u64, Layout),
    /// As those that are kept, and a mask.
    Sparse(SparsePlace, String),
}

/// What a weights file gave a model ([`crate::Session::load_matching`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The model's tensors that the file has.
    pub loaded: Vec<String>,
    /// The file's tensors that the model does not have, or has in another shape.
    pub left_out: Vec<String>,
    /// The model's tensors that keep their initial values.
    pub fresh: Vec<String>,
}

/// Which tensors of a file are states of the model.
#[derive(Default)]
struct Matched {
    places: Vec<Place>,
    /// In the same order as what they are about: what differs, as sentences.
    differences: Vec<String>,
    names: Loaded,
}

impl Matched {
    /// Counts tensors that the model does not have as differences.
    fn tell_unknown(&mut self) {
        for name in &self.names.left_out {
            if !self.differences.iter().any(|known| known.starts_with(&format!("`{name}` "))) {
                self.differences.push(format!("the model has no `{name}`"));
            }
        }
    }

    /// Refuses what differs, or, with `partly`, what has nothing in common.
    fn check(&self, path: &Path, partly: bool) -> Result<(), TrainError> {
        if !partly && !self.differences.is_empty() {
            let (path, differences) = (path.display().to_string(), self.differences.clone());
            return Err(TrainError::WeightsDiffer { path, differences });
        }
        match self.places.is_empty() {
            true => Err(tensor_file::wrong(path, "none of its tensors is one of the model's")),
            false => Ok(()),
        }
    }
}

/// The most bytes of a header of a model with so many states.
fn max_header(states: usize) -> u64 {
    (states as u64 + 64) * MAX_HEADER_BYTES_PER_STATE
}

/// A state's names in weights files.
fn all_names(own: &str) -> Vec<String> {
    [&[own.to_string(), torch_name(own)][..], &keras_names(own)].concat()
}

/// A state's names in checkpoints: its running average comes first.
fn checkpoint_names(own: &str) -> Vec<String> {
    vec![format!("{own}/{AVERAGE}"), own.to_string()]
}

/// Those of a run's states that a weights file has: this process's, then those that others hold.
fn loaded_states<'s>(
    states: &'s [StatePlacement],
    others: &'s [OwnedState],
) -> Vec<(usize, &'s str, &'s TensorType)> {
    let own = states.iter().map(|state| (state.name.as_str(), state.role, &state.ty));
    weights_among(own.chain(others.iter().map(|state| (state.name.as_str(), state.role, &state.ty))))
}

/// Of states, given by name, role and type, all but the optimizer's moments; a running average has its parameter's name.
fn weights_among<'s>(
    states: impl Iterator<Item = (&'s str, Role, &'s TensorType)>,
) -> Vec<(usize, &'s str, &'s TensorType)> {
    let weights = states.enumerate().filter(|(_, (_, role, _))| !matches!(role, Role::Moment | Role::Mask));
    weights.map(|(i, (name, role, ty))| (i, averaged(name, role).unwrap_or(name), ty)).collect()
}

/// Refuses a weights file, or a run's folder, that does not hold the weights of a training step: all of them, or, with `partly`, any.
/// Only headers are read.
pub(crate) fn check(path: &Path, step: &Graph, partly: bool) -> Result<(), TrainError> {
    let states = step.states.iter().map(|state| (state.name.as_str(), state.role, step.ty(state.input)));
    let states = weights_among(states);
    let file = path.join(WEIGHTS_FILE);
    if path.is_dir() && !file.exists() {
        let fits = |path: &Path| {
            let opened = tensor_file::open(path, MAX_HEADER_BYTES)?;
            matched(&states, &opened, path, checkpoint_names)?.check(path, partly)
        };
        return newest(path, fits).map(drop);
    }
    let path = if path.is_dir() { &file } else { path };
    let opened = tensor_file::open(path, max_header(step.states.len()))?;
    let mut matched = matched(&states, &opened, path, all_names)?;
    matched.tell_unknown();
    matched.check(path, partly)
}

/// Loads parameters and running statistics, under Plimsoll's names, PyTorch's or Keras's. Where file and model differ it is an
/// error, or, with `partly`, what both have is loaded. `others` are states of the model that other processes hold, and load.
pub(crate) fn load(
    prepared: &mut dyn Prepared,
    states: &[StatePlacement],
    others: &[OwnedState],
    path: &Path,
    partly: bool,
) -> Result<Loaded, TrainError> {
    let file = tensor_file::open(path, max_header(states.len() + others.len()))?;
    let mut matched = matched(&loaded_states(states, others), &file, path, all_names)?;
    matched.tell_unknown();
    read_matched(prepared, states, file, matched, path, partly)
}

/// Loads parameters (their running averages where there are some) and running statistics from a checkpoint of any
/// optimizer; with `partly`, those that both have.
pub(crate) fn load_checkpoint(
    prepared: &mut dyn Prepared,
    states: &[StatePlacement],
    others: &[OwnedState],
    path: &Path,
    partly: bool,
) -> Result<Loaded, TrainError> {
    tensor_file::open(path, MAX_HEADER_BYTES)?.check(path)?;
    let file = tensor_file::open(path, MAX_HEADER_BYTES)?;
    let mut matched = matched(&loaded_states(states, others), &file, path, checkpoint_names)?;
    // Moments and counters of the other run's optimizer are no weights.
    matched.names.left_out.retain(|left| matched.names.fresh.contains(left));
    read_matched(prepared, states, file, matched, path, partly)
}

/// Reads what matches, if that is all or is enough, but for what others hold.
fn read_matched(
    prepared: &mut dyn Prepared,
    states: &[StatePlacement],
    file: Opened,
    mut matched: Matched,
    path: &Path,
    partly: bool,
) -> Result<Loaded, TrainError> {
    matched.check(path, partly)?;
    matched.places.retain(|place| place.state < states.len());
    read_all(prepared, states, file.file, &matched.places, path)?;
    Ok(matched.names)
}

/// Finds states, given by number, name and type, in a file, under the first of their names that the file has.
fn matched(
    states: &[(usize, &str, &TensorType)],
    file: &Opened,
    path: &Path,
    names: impl Fn(&str) -> Vec<String>,
) -> Result<Matched, TrainError> {
    let mut found = Matched::default();
    let mut unused: BTreeSet<String> = file.tensors.tensors().into_keys().collect();
    // PyTorch's count of batches has no counterpart here; ranges are for models that learn them.
    unused.retain(|name| !name.ends_with("num_batches_tracked") && name != RANGES);
    for &(i, own, ty) in states {
        let names = names(own);
        let place = match names.iter().find(|name| file.tensors.info(name).is_some()) {
            None => match sparse::place(ty, own, file, path)? {
                Some(place) => {
                    let names = sparse::names(own);
                    unused.retain(|name| !names.contains(name));
                    Ok(From::Sparse(place, own.to_string()))
                }
                // They are learned anew.
                None if own == RANGES => {
                    found.names.fresh.push(own.to_string());
                    continue;
                }
                None => Err(format!("there is no `{}`, nor `{}`", names[0], names[1])),
            },
            Some(name) => {
                let place = place(ty, own, name, file, path)?;
                if place.is_ok() {
                    unused.remove(name);
                }
                place.map(|(offset, layout)| From::Whole(offset, layout))
            }
        };
        let list = match place {
            Ok(from) => {
                found.places.push(Place { state: i, from });
                &mut found.names.loaded
            }
            Err(difference) => {
                if !found.differences.contains(&difference) {
                    found.differences.push(difference);
                }
                &mut found.names.fresh
            }
        };
        if !list.iter().any(|name| name == own) {
            list.push(own.to_string());
        }
    }
    found.names.left_out = unused.into_iter().collect();
    Ok(found)
}

/// Where a tensor's elements are and in which layout; or what differs from the state.
fn place(
    ty: &TensorType,
    own: &str,
    name: &str,
    file: &Opened,
    path: &Path,
) -> Result<Result<(u64, Layout), String>, TrainError> {
    let Some(info) = file.tensors.info(name) else { return Ok(Err(format!("there is no `{name}`"))) };
    let layout = layout(&ty.shape, name == torch_name(own), own);
    let wanted = layout.shape(&ty.shape);
    // PyTorch's kernels over sequences have no height.
    let flat = layout == Layout::OutputFirst && matches!(wanted[..], [o, i, 1, k] if info.shape == [o, i, k]);
    if (info.shape != wanted && !flat) || dtype_name(ty.dtype) != format!("{:?}", info.dtype) {
        // The type is told where it is what differs.
        let typed = dtype_name(ty.dtype) != format!("{:?}", info.dtype);
        let (has, wants) = match typed {
            true => {
                (format!("{:?} {:?}", info.dtype, info.shape), format!("{} {wanted:?}", dtype_name(ty.dtype)))
            }
            false => (format!("{:?}", info.shape), format!("{wanted:?}")),
        };
        return Ok(Err(format!("`{name}` has the shape {has} there and {wants} here")));
    }
    let (offset, end) = info.data_offsets;
    let (offset, end) = (file.start.saturating_add(offset as u64), file.start.saturating_add(end as u64));
    if end > file.length || end - offset != ty.bytes() as u64 {
        let length = file.length;
        return Err(tensor_file::wrong(path, format!("`{name}` ends at byte {end}, the file has {length}")));
    }
    Ok(Ok((offset, layout)))
}

/// Reads states from their places.
fn read_all(
    prepared: &mut dyn Prepared,
    states: &[StatePlacement],
    file: Joined,
    places: &[Place],
    path: &Path,
) -> Result<(), TrainError> {
    let mut reader = Reader { file, path, chunk: vec![0; STATE_BUFFER_BYTES] };
    places.iter().try_for_each(|place| reader.read_state(prepared, &states[place.state].ty, place))
}

/// Reads a file chunk by chunk.
struct Reader<'p> {
    file: Joined,
    path: &'p Path,
    chunk: Vec<u8>,
}

impl Reader<'_> {
    fn read_state(
        &mut self,
        prepared: &mut dyn Prepared,
        ty: &TensorType,
        place: &Place,
    ) -> Result<(), TrainError> {
        let failed = |source| TrainError::file(self.path, source);
        let (offset, layout) = match &place.from {
            From::Whole(offset, layout) => (*offset, *layout),
            From::Sparse(sparse, parameter) => {
                return sparse::read(
                    prepared,
                    (place.state, ty),
                    (&mut self.file, self.path),
                    (*sparse, parameter),
                );
            }
        };
        self.file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        let (bytes, size) = (ty.bytes(), ty.dtype.bytes());
        if layout == Layout::Same {
            for first in (0..bytes).step_by(STATE_BUFFER_BYTES) {
                let chunk = &mut self.chunk[..STATE_BUFFER_BYTES.min(bytes - first)];
                self.file.read_exact(chunk).map_err(failed)?;
                prepared.write_state(place.state, first, chunk)?;
            }
            return Ok(());
        }
        // A group of the file's outermost slices at a time.
        let slices = Slices::new(&ty.shape, size);
        let elements = slices.elements;
        self.chunk.resize(self.chunk.len().max(slices.per_group * elements * size), 0);
        let mut run = Vec::with_capacity(slices.per_group * size);
        for (first, count) in slices.groups() {
            let group = &mut self.chunk[..count * elements * size];
            self.file.read_exact(group).map_err(failed)?;
            for element in 0..elements {
                run.clear();
                for slice in 0..count {
                    let at = (slice * elements + element) * size;
                    run.extend_from_slice(&group[at..at + size]);
                }
                let row = state_row(&ty.shape, element);
                prepared.write_state(place.state, (row * slices.count + first) * size, &run)?;
            }
        }
        Ok(())
    }
}

/// PyTorch's kernels have another order of axes; everything else has the same.
fn layout(shape: &[usize], torch: bool, name: &str) -> Layout {
    let kernel = name.rsplit('/').next() == Some("kernel");
    if torch && kernel && matches!(shape.len(), 2 | 4) { Layout::OutputFirst } else { Layout::Same }
}

/// A state's name in Keras, in a norm or elsewhere.
fn keras_name(name: &str, norm: bool) -> String {
    let leaf = name.rsplit('/').next().unwrap_or(name);
    let leaf = match leaf {
        "gain" => "gamma",
        "bias" if norm => "beta",
        "table" => "embeddings",
        "running_mean" => "moving_mean",
        "running_variance" => "moving_variance",
        other => other,
    };
    sibling(name, leaf)
}

/// A state's possible names in Keras, with and without TensorFlow's output number.
fn keras_names(name: &str) -> Vec<String> {
    let names = [false, true].map(|norm| keras_name(name, norm));
    names.into_iter().flat_map(|name| [format!("{name}:0"), name]).collect()
}

/// A state's name in PyTorch.
fn torch_name(name: &str) -> String {
    let (layer, leaf) = name.rsplit_once('/').unwrap_or(("", name));
    let leaf = match leaf {
        "kernel" | "gain" | "table" => "weight",
        "running_variance" => "running_var",
        other => other,
    };
    if layer.is_empty() { leaf.to_string() } else { format!("{}.{leaf}", layer.replace('/', ".")) }
}
