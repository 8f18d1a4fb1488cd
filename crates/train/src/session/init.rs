//! Initial values of states. Counter-based: they depend on the state's name and the seed alone.

use crate::files::STATE_BUFFER_BYTES;
use plimsoll_graph::{Init, Role};
use plimsoll_nn::{AVERAGE, InitialValues, first_values};
use plimsoll_plan::{ExecuteError, Prepared, StatePlacement};
use plimsoll_tensor::{DType, bf16, f16};

/// Writes every state's initial value: the model's own, where it has `values` from elsewhere. States must be zeros before.
/// `report` hears how many bytes are written, of how many.
pub(super) fn initialize(
    prepared: &mut dyn Prepared,
    states: &[StatePlacement],
    seed: u64,
    values: Option<&dyn InitialValues>,
    chunk: &mut Vec<u8>,
    report: impl Fn(u64, u64),
) -> Result<(), ExecuteError> {
    let given = |state: &StatePlacement| {
        let name = parameter_of(state).unwrap_or(&state.name);
        values.filter(|values| state.ty.dtype == DType::F32 && values.has(name, &state.ty.shape))
    };
    let is_written = |state: &StatePlacement| state.init != Init::Zeros || given(state).is_some();
    let written = || states.iter().enumerate().filter(|(_, state)| is_written(state));
    let all: u64 = written().map(|(_, state)| state.ty.bytes() as u64).sum();
    let mut done = 0;
    for (i, state) in written() {
        // A running average starts as its parameter.
        let name = parameter_of(state).unwrap_or(&state.name);
        let (elements, size) = (state.ty.shape.elements(), state.ty.dtype.bytes());
        for first in (0..elements).step_by(STATE_BUFFER_BYTES / size) {
            chunk.clear();
            let last = elements.min(first + STATE_BUFFER_BYTES / size);
            if let Some(values) = given(state) {
                chunk.resize((last - first) * size, 0);
                let read = values.read(name, first * size, chunk);
                read.map_err(|e| ExecuteError::Input(format!("the first values of `{name}`: {e}")))?;
                prepared.write_state(i, first * size, chunk)?;
                done += chunk.len() as u64;
                report(done, all);
                continue;
            }
            // A chunk starts with a block of random numbers.
            first_values(state.init, name, seed, state.ty.dtype, first..last, chunk);
            prepared.write_state(i, first * size, chunk)?;
            done += chunk.len() as u64;
            report(done, all);
        }
    }
    Ok(())
}

/// Fills every state with zeros.
pub(super) fn clear(
    prepared: &mut dyn Prepared,
    states: &[StatePlacement],
    chunk: &mut [u8],
) -> Result<(), ExecuteError> {
    chunk.fill(0);
    for (i, state) in states.iter().enumerate() {
        let bytes = state.ty.bytes();
        for first in (0..bytes).step_by(chunk.len().max(1)) {
            prepared.write_state(i, first, &chunk[..chunk.len().min(bytes - first)])?;
        }
    }
    Ok(())
}

/// The name of the parameter that a state is the running average of.
pub(crate) fn parameter_of(state: &StatePlacement) -> Option<&str> {
    averaged(&state.name, state.role)
}

/// The same of a state by its name and role.
pub(crate) fn averaged(name: &str, role: Role) -> Option<&str> {
    let parameter = name.strip_suffix(AVERAGE)?.strip_suffix('/')?;
    (role == Role::Average).then_some(parameter)
}

/// A number of a float type from the bytes of its element; NaN for other types.
pub(super) fn number(dtype: DType, element: &[u8]) -> f64 {
    match (dtype, element) {
        (DType::F32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
        (DType::F64, &[a, b, c, d, e, f, g, h]) => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (DType::BF16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f64(),
        (DType::F16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f64(),
        _ => f64::NAN,
    }
}
