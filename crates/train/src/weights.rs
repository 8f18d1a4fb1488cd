//! Trained parameters as a safetensors file, written piece by piece.

use crate::TrainError;
use crate::init::CHUNK_BYTES;
use plimsoll_graph::Role;
use plimsoll_plan::{PlanSet, Prepared};
use plimsoll_tensor::DType;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes parameters and running statistics. The file appears whole or not at all: it is written beside its place,
/// synced, and renamed.
pub(crate) fn save(prepared: &dyn Prepared, plans: &PlanSet, path: &Path) -> Result<(), TrainError> {
    let beside = path.with_extension("partial");
    let failed = |source| TrainError::File { path: path.display().to_string(), source };
    let written = write(prepared, plans, &beside)?;
    written.and_then(|()| fs::rename(&beside, path)).map_err(|e| {
        let _ = fs::remove_file(&beside);
        failed(e)
    })?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|f| f.sync_all()).map_err(failed)
}

fn write(prepared: &dyn Prepared, plans: &PlanSet, path: &Path) -> Result<io::Result<()>, TrainError> {
    let kept: Vec<usize> =
        (0..plans.states.len()).filter(|&i| plans.states[i].role != Role::Moment).collect();
    let header = header(plans, &kept);
    let mut file = match File::create(path) {
        Ok(file) => BufWriter::with_capacity(CHUNK_BYTES, file),
        Err(e) => return Ok(Err(e)),
    };
    let mut result =
        file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&header));
    let mut chunk = vec![0; CHUNK_BYTES];
    for &state in &kept {
        let bytes = plans.states[state].ty.bytes();
        for first in (0..bytes).step_by(CHUNK_BYTES) {
            let piece = &mut chunk[..CHUNK_BYTES.min(bytes - first)];
            prepared.read_state(state, first, piece)?;
            result = result.and_then(|()| file.write_all(piece));
        }
    }
    Ok(result
        .and_then(|()| file.into_inner().map_err(io::IntoInnerError::into_error))
        .and_then(|f| f.sync_all()))
}

/// The header: a JSON object of names, types, shapes and places, padded with spaces to a multiple of eight.
fn header(plans: &PlanSet, kept: &[usize]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut offset = 0;
    for &state in kept {
        let state = &plans.states[state];
        let end = offset + state.ty.bytes();
        let dtype = match state.ty.dtype {
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::BF16 => "BF16",
            DType::F16 => "F16",
            DType::I32 => "I32",
            DType::I64 => "I64",
            DType::U8 => "U8",
            DType::Bool => "BOOL",
        };
        let name = serde_json::Value::from(state.name.as_str());
        entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{offset},{end}]}}",
            state.ty.shape
        ));
        offset = end;
    }
    let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}
