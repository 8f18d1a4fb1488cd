//! Pruned parameters in weights files: the elements that are kept, in order, and a mask of one bit per element.

use super::checkpoint::MAX_HEADER_BYTES;
use super::joined::Joined;
use super::tensor_file::{self, Opened, States, dtype_name, wrong};
use super::{STATE_BUFFER_BYTES, WEIGHTS_FILE};
use crate::TrainError;
use plimsoll_plan::Prepared;
use plimsoll_tensor::{DType, Tensor, TensorType, is_kept, kept_elements, mask_bytes};
use plimsoll_transform::SPARSE;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of a mask that are read at a time.
const MASK_CHUNK: usize = STATE_BUFFER_BYTES / 64;

/// The names of a sparse parameter's two tensors.
pub(super) fn names(parameter: &str) -> [String; 2] {
    SPARSE.map(|leaf| format!("{parameter}/{leaf}"))
}

/// The parameters that a weights file, or that of a run's folder, holds sparse, and how many elements of each it keeps: what
/// [`crate::Trainer::sparse_parameters`] takes. None for a folder without such a file.
pub fn sparse_parameters(path: impl AsRef<Path>) -> Result<BTreeMap<String, usize>, TrainError> {
    let (path, file) = (path.as_ref(), path.as_ref().join(WEIGHTS_FILE));
    let path = if path.is_dir() { &file } else { path };
    let mut found = BTreeMap::new();
    if !path.exists() {
        return Ok(found);
    }
    let mut opened = tensor_file::open(path, MAX_HEADER_BYTES)?;
    let names: Vec<String> = opened.tensors.tensors().into_keys().collect();
    for parameter in names.iter().filter_map(|name| name.strip_suffix(SPARSE[0])?.strip_suffix('/')) {
        let [values, mask] = self::names(parameter);
        let (Some(values), Some(mask)) = (opened.tensors.info(&values), opened.tensors.info(&mask)) else {
            continue;
        };
        let (&[count], &[_]) = (&values.shape[..], &mask.shape[..]) else { continue };
        if dtype_name(DType::U8) != format!("{:?}", mask.dtype) {
            continue;
        }
        let (from, to) = mask.data_offsets;
        let (from, to) = (opened.start.saturating_add(from as u64), opened.start.saturating_add(to as u64));
        check_kept(&mut opened, from..to, count, (path, parameter))?;
        found.insert(parameter.to_string(), count);
    }
    Ok(found)
}

/// A parameter as the two states of a sparse one, by their names: its elements that are not zero, in order, and a mask of them. `None`
/// where that is not smaller.
///
/// ```
/// use plimsoll_tensor::{DType, Tensor, TensorType};
/// let kernel = Tensor::from_f64(TensorType::new(DType::F32, [4]), &[0.0, 0.5, 0.0, 0.0])?;
/// let [(values, kept), (_, mask)] = plimsoll_train::stored_sparse("dense/kernel", &kernel).unwrap();
/// assert_eq!((values.as_str(), kept.to_f64(), mask.to_f64()), ("dense/kernel/values", vec![0.5], vec![2.0]));
/// # Ok::<(), plimsoll_tensor::TensorError>(())
/// ```
pub fn stored_sparse(name: &str, parameter: &Tensor) -> Option<[(String, Tensor); 2]> {
    let (elements, size) = (parameter.ty().shape.elements(), parameter.ty().dtype.bytes());
    let (mut values, mut bits) = (Vec::new(), vec![0; mask_bytes(elements)]);
    for (i, element) in parameter.as_bytes().chunks_exact(size).enumerate() {
        if element.iter().any(|&byte| byte != 0) {
            bits[i / 8] |= 1 << (i % 8);
            values.extend_from_slice(element);
        }
    }
    if values.len() + bits.len() >= parameter.ty().bytes() {
        return None;
    }
    let tensor = |dtype: DType, bytes: &[u8]| {
        let mut tensor = Tensor::zeros(TensorType::new(dtype, [bytes.len() / dtype.bytes()]));
        tensor.copy_from_bytes(bytes);
        tensor
    };
    let [kept, mask] = names(name);
    Some([(kept, tensor(parameter.ty().dtype, &values)), (mask, tensor(DType::U8, &bits))])
}

/// Refuses a mask that keeps another number of elements than there are values. Bits behind the last element do not count, so a mask
/// may have up to seven more.
fn check_kept(
    opened: &mut Opened,
    place: std::ops::Range<u64>,
    count: usize,
    (path, parameter): (&Path, &str),
) -> Result<(), TrainError> {
    let failed = |source| TrainError::file(path, source);
    opened.file.seek(SeekFrom::Start(place.start)).map_err(failed)?;
    let (mut left, mut kept) = (place.end.min(opened.length).saturating_sub(place.start), 0);
    let mut chunk = [0; MASK_CHUNK];
    while left > 0 {
        let bytes = (chunk.len() as u64).min(left) as usize;
        opened.file.read_exact(&mut chunk[..bytes]).map_err(failed)?;
        kept += kept_elements(&chunk[..bytes], 8 * bytes);
        left -= bytes as u64;
    }
    if (count..count.saturating_add(8)).contains(&kept) {
        Ok(())
    } else {
        Err(unequal(path, parameter, kept, count))
    }
}

fn unequal(path: &Path, parameter: &str, kept: usize, count: usize) -> TrainError {
    let reason = format!(
        "the mask of `{parameter}` keeps {kept} elements, and there are {count} values: the file is damaged"
    );
    wrong(path, reason)
}

/// Where a sparse parameter is in a file.
#[derive(Clone, Copy)]
pub(super) struct SparsePlace {
    values: u64,
    mask: u64,
    count: usize,
}

/// Where a parameter of this type is in a file that holds it sparse, if it does and the sizes are right.
pub(super) fn place(
    ty: &TensorType,
    parameter: &str,
    file: &Opened,
    path: &Path,
) -> Result<Option<SparsePlace>, TrainError> {
    let names = names(parameter);
    let (Some(values), Some(mask)) = (file.tensors.info(&names[0]), file.tensors.info(&names[1])) else {
        return Ok(None);
    };
    let elements = ty.shape.elements();
    let &[count] = &values.shape[..] else { return Ok(None) };
    let types = [(values, ty.dtype), (mask, DType::U8)];
    let fits = types.iter().all(|(info, dtype)| dtype_name(*dtype) == format!("{:?}", info.dtype));
    if !fits || count > elements || mask.shape[..] != [mask_bytes(elements)] {
        return Ok(None);
    }
    let [values, mask] = [values, mask].map(|info| {
        let end = file.start.saturating_add(info.data_offsets.1 as u64);
        (file.start.saturating_add(info.data_offsets.0 as u64), end)
    });
    for ((start, end), bytes) in [(values, count * ty.dtype.bytes()), (mask, mask_bytes(elements))] {
        if end > file.length || end - start != bytes as u64 {
            return Err(wrong(
                path,
                format!("`{parameter}` ends at byte {end}, the file has {}", file.length),
            ));
        }
    }
    Ok(Some(SparsePlace { values: values.0, mask: mask.0, count }))
}

/// Reads a sparse parameter into a state that has all its elements.
pub(super) fn read(
    prepared: &mut dyn Prepared,
    (state, ty): (usize, &TensorType),
    (file, path): (&mut Joined, &Path),
    (place, parameter): (SparsePlace, &str),
) -> Result<(), TrainError> {
    let (elements, size) = (ty.shape.elements(), ty.dtype.bytes());
    let (mut mask, mut values) = ([0; MASK_CHUNK], vec![0; 8 * MASK_CHUNK * size]);
    let (mut whole, mut taken) = (vec![0; 8 * MASK_CHUNK * size], 0);
    for first in (0..elements).step_by(8 * MASK_CHUNK) {
        let count = (elements - first).min(8 * MASK_CHUNK);
        let mask = &mut mask[..mask_bytes(count)];
        read_at(file, path, place.mask + first as u64 / 8, mask)?;
        let kept = kept_elements(mask, count);
        if taken + kept > place.count {
            return Err(unequal(path, parameter, taken + kept, place.count));
        }
        read_at(file, path, place.values + (taken * size) as u64, &mut values[..kept * size])?;
        whole.fill(0);
        let mut next = values.chunks_exact(size);
        for (_, element) in
            whole.chunks_exact_mut(size).take(count).enumerate().filter(|(i, _)| is_kept(mask, *i))
        {
            element.copy_from_slice(next.next().unwrap_or(&[0; 8][..size]));
        }
        prepared.write_state(state, first * size, &whole[..count * size])?;
        taken += kept;
    }
    if taken == place.count { Ok(()) } else { Err(unequal(path, parameter, taken, place.count)) }
}

/// Reads some of a sparse parameter's elements, of `size` bytes each, from the element `first` on.
pub(super) fn read_range(
    (mut file, path): (&Joined, &Path),
    (place, parameter): (SparsePlace, &str),
    (first, size): (usize, usize),
    into: &mut [u8],
) -> Result<(), TrainError> {
    let (mut mask, mut taken) = ([0; MASK_CHUNK], 0);
    // Kept elements before the first byte of the mask that matters here.
    let whole = first / 8;
    for from in (0..whole).step_by(MASK_CHUNK) {
        let bytes = (whole - from).min(MASK_CHUNK);
        read_at(&mut file, path, place.mask + from as u64, &mut mask[..bytes])?;
        taken += kept_elements(&mask[..bytes], 8 * bytes);
    }
    into.fill(0);
    let end = first + into.len() / size;
    for from in (8 * whole..end).step_by(8 * MASK_CHUNK) {
        let count = (end - from).min(8 * MASK_CHUNK);
        let mask = &mut mask[..mask_bytes(count)];
        read_at(&mut file, path, place.mask + from as u64 / 8, mask)?;
        let before = if from < first { kept_elements(mask, first - from) } else { 0 };
        let kept = kept_elements(mask, count) - before;
        if taken + before + kept > place.count {
            return Err(unequal(path, parameter, taken + before + kept, place.count));
        }
        let mut values = vec![0; kept * size];
        read_at(&mut file, path, place.values + ((taken + before) * size) as u64, &mut values)?;
        let own = (from.max(first)..from + count).filter(|i| is_kept(mask, i - from));
        for (i, value) in own.zip(values.chunks_exact(size)) {
            into[(i - first) * size..][..size].copy_from_slice(value);
        }
        taken += before + kept;
    }
    Ok(())
}

fn read_at(
    file: &mut (impl Read + Seek),
    path: &Path,
    offset: u64,
    into: &mut [u8],
) -> Result<(), TrainError> {
    let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(into));
    read.map_err(|source| TrainError::file(path, source))
}

/// The number of elements that the mask in a state keeps.
pub(crate) fn kept_in_state(
    states: &dyn States,
    mask: usize,
    elements: usize,
    buffer: &mut [u8],
) -> Result<usize, TrainError> {
    let mut kept = 0;
    for first in (0..elements).step_by(8 * buffer.len().max(1)) {
        let count = (elements - first).min(8 * buffer.len());
        let part = &mut buffer[..mask_bytes(count)];
        states.read(mask, first / 8, part)?;
        kept += kept_elements(part, count);
    }
    Ok(kept)
}

/// Gives the elements of a state that a mask keeps to `take`, chunk by chunk.
pub(super) fn each_kept(
    states: &dyn States,
    state: usize,
    mask: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let ty = states.ty(state);
    let (elements, size) = (ty.shape.elements(), ty.dtype.bytes());
    let (mut bits, mut values) = ([0; MASK_CHUNK], vec![0; 8 * MASK_CHUNK * size]);
    let mut kept = Vec::with_capacity(values.len());
    for first in (0..elements).step_by(8 * MASK_CHUNK) {
        let count = (elements - first).min(8 * MASK_CHUNK);
        states.read(mask, first / 8, &mut bits[..mask_bytes(count)])?;
        states.read(state, first * size, &mut values[..count * size])?;
        kept.clear();
        for (_, element) in
            values.chunks_exact(size).take(count).enumerate().filter(|(i, _)| is_kept(&bits, *i))
        {
            kept.extend_from_slice(element);
        }
        take(&kept)?;
    }
    Ok(())
}
