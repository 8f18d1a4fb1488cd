//! Parameters and statistics as a safetensors file, written and read piece by piece.

use super::STATE_BUFFER_BYTES;
use super::checkpoint::HEADER_BYTES;
use super::layout::{Kept, Layout, Slices, own_row};
use super::tensor_file::{self, Opened, dtype_name};
use crate::TrainError;
use crate::session::parameter_of;
use plimsoll_graph::Role;
use plimsoll_nn::AVERAGE;
use plimsoll_plan::{PlanSet, Prepared, StatePlacement};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Whose names and layouts a file of weights has.
///
/// ```
/// use plimsoll_train::Names;
/// assert_eq!(Names::default(), Names::Own);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// This program's, like `stage1/conv/kernel`.
    #[default]
    Own,
    /// PyTorch's, like `stage1.conv.weight`, with kernels in its order.
    Torch,
    /// Keras's, like `stage1/norm/gamma`.
    Keras,
}

/// Writes parameters (their running averages where there are some) and running statistics through a buffer.
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
    let kept = |(i, _): (usize, &StatePlacement)| {
        let own = &plans.states[i];
        // A running average is what is saved of its parameter.
        let state = averages.get(own.name.as_str()).copied().unwrap_or(i);
        let norm = all.contains(sibling(&own.name, "gain").as_str());
        let name = match names {
            Names::Own => Cow::Borrowed(own.name.as_str()),
            Names::Torch => Cow::Owned(torch_name(&own.name)),
            Names::Keras => Cow::Owned(keras_name(&own.name, norm)),
        };
        Kept { state, name, layout: layout(&own.ty.shape, names == Names::Torch, &own.name) }
    };
    let kept: Vec<Kept<'_>> = weights.map(kept).collect();
    tensor_file::save(prepared, plans, &kept, None, buffer, path)
}

/// Another state of the same layer.
fn sibling(name: &str, leaf: &str) -> String {
    name.rsplit_once('/').map_or(leaf.to_string(), |(layer, _)| format!("{layer}/{leaf}"))
}

/// Bytes of a header that are read for each state of the model: a name and a shape take about a hundred.
const HEADER_BYTES_PER_STATE: u64 = 1 << 10;

/// Where a state's elements lie in a file.
struct Entry {
    offset: u64,
    layout: Layout,
}

/// Reads parameters and running statistics, under this program's names, PyTorch's or Keras's.
pub(crate) fn load(prepared: &mut dyn Prepared, plans: &PlanSet, path: &Path) -> Result<(), TrainError> {
    let most = (plans.states.len() as u64 + 64) * HEADER_BYTES_PER_STATE;
    let file = tensor_file::open(path, most)?;
    let mut unused: BTreeSet<String> = file.tensors.tensors().into_keys().collect();
    // PyTorch counts batches; nothing here does.
    unused.retain(|name| !name.ends_with("num_batches_tracked"));
    let found = places(plans, &file, path, &mut unused, |own| {
        [&[own.to_string(), torch_name(own)][..], &keras_names(own)].concat()
    })?;
    if let Some(name) = unused.first() {
        let others = unused.len() - 1;
        let reason = format!("the model has no `{name}` ({others} more like it): it is another model's file");
        return Err(tensor_file::wrong(path, reason));
    }
    read_all(prepared, plans, file.file, &found, path)
}

/// Reads parameters, their running averages where there are some, and statistics from a checkpoint, whose optimizer may be
/// any.
pub(crate) fn load_checkpoint(
    prepared: &mut dyn Prepared,
    plans: &PlanSet,
    path: &Path,
) -> Result<(), TrainError> {
    tensor_file::open(path, HEADER_BYTES)?.check(path)?;
    let file = tensor_file::open(path, HEADER_BYTES)?;
    let names = |own: &str| vec![format!("{own}/{AVERAGE}"), own.to_string()];
    let found = places(plans, &file, path, &mut BTreeSet::new(), names)?;
    read_all(prepared, plans, file.file, &found, path)
}

/// Where every state but moments lies in a file, under the first of its names that the file has. They are taken out of
/// `unused`.
fn places(
    plans: &PlanSet,
    file: &Opened,
    path: &Path,
    unused: &mut BTreeSet<String>,
    names: impl Fn(&str) -> Vec<String>,
) -> Result<Vec<(usize, Entry)>, TrainError> {
    let wrong = |reason: String| tensor_file::wrong(path, reason);
    let mut found = Vec::new();
    for (i, state) in plans.states.iter().enumerate().filter(|(_, s)| s.role != Role::Moment) {
        // An average starts as its parameter.
        let own = parameter_of(state).unwrap_or(&state.name);
        let names = names(own);
        let Some((name, info)) = names.iter().find_map(|name| Some((name, file.tensors.info(name)?))) else {
            return Err(wrong(format!("there is no `{}`, nor `{}`", names[0], names[1])));
        };
        unused.remove(name);
        let layout = layout(&state.ty.shape, *name == torch_name(own), own);
        let wanted = layout.shape(&state.ty.shape);
        // PyTorch's kernels over sequences have no height.
        let flat =
            layout == Layout::LastFirst && matches!(wanted[..], [o, i, 1, k] if info.shape == [o, i, k]);
        if (info.shape != wanted && !flat) || dtype_name(state.ty.dtype) != format!("{:?}", info.dtype) {
            let (has, wants) = (format!("{:?} {:?}", info.dtype, info.shape), dtype_name(state.ty.dtype));
            return Err(wrong(format!("`{name}` is {has}, the model needs {wants} {wanted:?}")));
        }
        let (offset, end) = info.data_offsets;
        let (offset, end) = (file.start.saturating_add(offset as u64), file.start.saturating_add(end as u64));
        if end > file.length || end - offset != state.ty.bytes() as u64 {
            let length = file.length;
            return Err(wrong(format!("`{name}` ends at byte {end}, the file has {length}")));
        }
        found.push((i, Entry { offset, layout }));
    }
    Ok(found)
}

/// Reads states from their places.
fn read_all(
    prepared: &mut dyn Prepared,
    plans: &PlanSet,
    mut file: File,
    found: &[(usize, Entry)],
    path: &Path,
) -> Result<(), TrainError> {
    let mut chunk = vec![0; STATE_BUFFER_BYTES];
    for (state, entry) in found {
        read(prepared, plans, *state, entry, &mut file, &mut chunk)?
            .map_err(|source| TrainError::File { path: path.display().to_string(), source })?;
    }
    Ok(())
}

/// Reads one state.
fn read(
    prepared: &mut dyn Prepared,
    plans: &PlanSet,
    state: usize,
    entry: &Entry,
    file: &mut File,
    chunk: &mut Vec<u8>,
) -> Result<io::Result<()>, TrainError> {
    let ty = &plans.states[state].ty;
    if let Err(e) = file.seek(SeekFrom::Start(entry.offset)) {
        return Ok(Err(e));
    }
    let (bytes, size) = (ty.bytes(), ty.dtype.bytes());
    if entry.layout == Layout::Same {
        for first in (0..bytes).step_by(STATE_BUFFER_BYTES) {
            let piece = &mut chunk[..STATE_BUFFER_BYTES.min(bytes - first)];
            if let Err(e) = file.read_exact(piece) {
                return Ok(Err(e));
            }
            prepared.write_state(state, first, piece)?;
        }
        return Ok(Ok(()));
    }
    // Several of the file's outermost slices at a time: they are neighbours in the state.
    let slices = Slices::new(&ty.shape, size);
    let (last, rest) = (slices.last, slices.rest);
    chunk.resize(chunk.len().max(slices.together * rest * size), 0);
    let mut run = Vec::with_capacity(slices.together * size);
    for (first, count) in slices.groups() {
        let slices = &mut chunk[..count * rest * size];
        if let Err(e) = file.read_exact(slices) {
            return Ok(Err(e));
        }
        for place in 0..rest {
            run.clear();
            for slice in 0..count {
                let at = (slice * rest + place) * size;
                run.extend_from_slice(&slices[at..at + size]);
            }
            let row = own_row(&ty.shape, place);
            prepared.write_state(state, (row * last + first) * size, &run)?;
        }
    }
    Ok(Ok(()))
}

/// Kernels are laid out the other way in PyTorch's files; everything else is alike.
fn layout(shape: &[usize], torch: bool, name: &str) -> Layout {
    let kernel = name.rsplit('/').next() == Some("kernel");
    if torch && kernel && matches!(shape.len(), 2 | 4) { Layout::LastFirst } else { Layout::Same }
}

/// A state's name as Keras would have it, in a norm or elsewhere.
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

/// A state's names as Keras would have them, with and without TensorFlow's number of the output.
fn keras_names(name: &str) -> Vec<String> {
    let names = [false, true].map(|norm| keras_name(name, norm));
    names.into_iter().flat_map(|name| [format!("{name}:0"), name]).collect()
}

/// A state's name as PyTorch would have it.
fn torch_name(name: &str) -> String {
    let (layer, leaf) = name.rsplit_once('/').unwrap_or(("", name));
    let leaf = match leaf {
        "kernel" | "gain" | "table" => "weight",
        "running_variance" => "running_var",
        other => other,
    };
    if layer.is_empty() { leaf.to_string() } else { format!("{}.{leaf}", layer.replace('/', ".")) }
}
