//! Weights files: parameters and running statistics, under the names and in the layouts of several frameworks.

use super::STATE_BUFFER_BYTES;
use super::checkpoint::MAX_HEADER_BYTES;
use super::layout::{Layout, SavedTensor, Slices, state_row};
use super::sparse::{self, SparsePlace, kept_in_state};
use super::tensor_file::{self, Opened, dtype_name};
use crate::TrainError;
use crate::session::parameter_of;
use plimsoll_graph::Role;
use plimsoll_nn::{AVERAGE, MASK};
use plimsoll_plan::{PlanSet, Prepared};
use plimsoll_tensor::{TensorType, mask_bytes};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

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
    prepared: &dyn Prepared,
    plans: &PlanSet,
    names: Names,
    buffer: &mut [u8],
    path: &Path,
) -> Result<(), TrainError> {
    let weights = plans.states.iter().enumerate();
    let weights = weights.filter(|(_, s)| matches!(s.role, Role::Parameter | Role::Statistic));
    let all: BTreeSet<&str> = plans.states.iter().map(|s| s.name.as_str()).collect();
    let averages = plans.states.iter().enumerate().filter_map(|(i, s)| Some((parameter_of(s)?, i)));
    let averages: BTreeMap<&str, usize> = averages.collect();
    let masks = plans.states.iter().enumerate().filter(|(_, s)| s.role == Role::Mask);
    let masks: BTreeMap<&str, usize> = masks.filter_map(|(i, s)| Some((masked(&s.name)?, i))).collect();
    let mut tensors: Vec<SavedTensor<'_>> = Vec::new();
    for (i, own) in weights {
        // A running average is saved in place of its parameter.
        let state = averages.get(own.name.as_str()).copied().unwrap_or(i);
        if let Some(&mask) = masks.get(own.name.as_str()).filter(|_| names == Names::Own) {
            let (elements, size) = (own.ty.shape.elements(), own.ty.dtype.bytes());
            let count = kept_in_state(prepared, mask, elements, buffer)?;
            if count * size + mask_bytes(elements) < own.ty.bytes() {
                let [values, bits] = sparse::names(&own.name).map(Cow::Owned);
                tensors.push(SavedTensor { state: mask, name: bits, layout: Layout::Same });
                tensors.push(SavedTensor { state, name: values, layout: Layout::Kept { mask, count } });
                continue;
            }
        }
        let norm = all.contains(sibling(&own.name, "gain").as_str());
        let name = match names {
            Names::Own => Cow::Borrowed(own.name.as_str()),
            Names::Torch => Cow::Owned(torch_name(&own.name)),
            Names::Keras => Cow::Owned(keras_name(&own.name, norm)),
        };
        let layout = layout(&own.ty.shape, names == Names::Torch, &own.name);
        tensors.push(SavedTensor { state, name, layout });
    }
    tensor_file::save(prepared, plans, &tensors, None, buffer, path)
}

/// The name of the parameter that a mask is of.
pub(crate) fn masked(mask: &str) -> Option<&str> {
    mask.strip_suffix(MASK)?.strip_suffix('/')
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

/// Loads parameters and running statistics, under Plimsoll's names, PyTorch's or Keras's. Where file and model differ it is an
/// error, or, with `partly`, what both have is loaded.
pub(crate) fn load(
    prepared: &mut dyn Prepared,
    plans: &PlanSet,
    path: &Path,
    partly: bool,
) -> Result<Loaded, TrainError> {
    let most = (plans.states.len() as u64 + 64) * MAX_HEADER_BYTES_PER_STATE;
    let file = tensor_file::open(path, most)?;
    let mut matched = matched(plans, &file, path, |own| {
        [&[own.to_string(), torch_name(own)][..], &keras_names(own)].concat()
    })?;
    for name in &matched.names.left_out {
        if !matched.differences.iter().any(|known| known.starts_with(&format!("`{name}` "))) {
            matched.differences.push(format!("the model has no `{name}`"));
        }
    }
    read_matched(prepared, plans, file, matched, path, partly)
}

/// Loads parameters (their running averages where there are some) and running statistics from a checkpoint of any
/// optimizer; with `partly`, those that both have.
pub(crate) fn load_checkpoint(
    prepared: &mut dyn Prepared,
    plans: &PlanSet,
    path: &Path,
    partly: bool,
) -> Result<Loaded, TrainError> {
    tensor_file::open(path, MAX_HEADER_BYTES)?.check(path)?;
    let file = tensor_file::open(path, MAX_HEADER_BYTES)?;
    let names = |own: &str| vec![format!("{own}/{AVERAGE}"), own.to_string()];
    let mut matched = matched(plans, &file, path, names)?;
    // Moments and counters of the other run's optimizer are no weights.
    matched.names.left_out.retain(|left| matched.names.fresh.contains(left));
    read_matched(prepared, plans, file, matched, path, partly)
}

/// Reads what matches, if that is all or is enough.
fn read_matched(
    prepared: &mut dyn Prepared,
    plans: &PlanSet,
    file: Opened,
    matched: Matched,
    path: &Path,
    partly: bool,
) -> Result<Loaded, TrainError> {
    let Matched { places, differences, names } = matched;
    if !partly && !differences.is_empty() {
        return Err(TrainError::WeightsDiffer { path: path.display().to_string(), differences });
    }
    if places.is_empty() {
        return Err(tensor_file::wrong(path, "none of its tensors is one of the model's"));
    }
    read_all(prepared, plans, file.file, &places, path)?;
    Ok(names)
}

/// Finds every state but the optimizer's moments in a file, under the first of its names that the file has.
fn matched(
    plans: &PlanSet,
    file: &Opened,
    path: &Path,
    names: impl Fn(&str) -> Vec<String>,
) -> Result<Matched, TrainError> {
    let mut found = Matched::default();
    let mut unused: BTreeSet<String> = file.tensors.tensors().into_keys().collect();
    // PyTorch's count of batches has no counterpart here.
    unused.retain(|name| !name.ends_with("num_batches_tracked"));
    let loaded = |role: Role| !matches!(role, Role::Moment | Role::Mask);
    for (i, state) in plans.states.iter().enumerate().filter(|(_, s)| loaded(s.role)) {
        // A running average is loaded under its parameter's names.
        let own = parameter_of(state).unwrap_or(&state.name);
        let names = names(own);
        let place = match names.iter().find(|name| file.tensors.info(name).is_some()) {
            None => match sparse::place(&state.ty, own, file, path)? {
                Some(place) => {
                    let names = sparse::names(own);
                    unused.retain(|name| !names.contains(name));
                    Ok(From::Sparse(place, own.to_string()))
                }
                None => Err(format!("there is no `{}`, nor `{}`", names[0], names[1])),
            },
            Some(name) => {
                let place = place(&state.ty, own, name, file, path)?;
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
        let (has, wants) = (format!("{:?} {:?}", info.dtype, info.shape), dtype_name(ty.dtype));
        return Ok(Err(format!("`{name}` is {has}, the model needs {wants} {wanted:?}")));
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
    plans: &PlanSet,
    file: File,
    places: &[Place],
    path: &Path,
) -> Result<(), TrainError> {
    let mut reader = Reader { file, path, chunk: vec![0; STATE_BUFFER_BYTES] };
    places.iter().try_for_each(|place| reader.read_state(prepared, &plans.states[place.state].ty, place))
}

/// Reads a file chunk by chunk.
struct Reader<'p> {
    file: File,
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
