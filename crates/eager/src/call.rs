//! Calls: from a method and its operands to tensors.

use crate::context::{Context, State};
use crate::error::{Error, Result};
use crate::memory::Site;
use crate::placement;
use crate::program::{Batch, Program};
use crate::tape::{self, Recorders};
use crate::tensor::{Handle, Tensor};
use crate::trace::Trace;
use plimsoll_graph::op::Rematerialization;
use plimsoll_graph::{BatchMark, BatchRelation, Builder, GraphError, Op, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::fmt::Debug;
use std::sync::{Arc, MutexGuard};

/// What an op reads.
pub(crate) enum Operand {
    Tensor(Tensor),
    /// A number of the element type of the tensor beside it.
    Number(f64),
}

impl Operand {
    fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Number(_) => None,
        }
    }
}

/// The results of a call: mostly one.
pub(crate) enum Outputs {
    One(Tensor),
    Many(Vec<Tensor>),
}

impl Outputs {
    pub fn into_vec(self) -> Vec<Tensor> {
        match self {
            Self::One(tensor) => vec![tensor],
            Self::Many(tensors) => tensors,
        }
    }

    /// The first of them.
    pub fn one(self) -> Result<Tensor> {
        match self {
            Self::One(tensor) => Ok(tensor),
            Self::Many(tensors) => {
                tensors.into_iter().next().ok_or_else(|| Error::Argument("the op has no result".into()))
            }
        }
    }
}

/// Arguments of a method, as words of a key.
pub(crate) trait Words {
    fn push(&self, key: &mut Vec<u64>);
}

impl Words for usize {
    fn push(&self, key: &mut Vec<u64>) {
        key.push(*self as u64);
    }
}

impl Words for bool {
    fn push(&self, key: &mut Vec<u64>) {
        key.push(u64::from(*self));
    }
}

impl Words for f64 {
    fn push(&self, key: &mut Vec<u64>) {
        key.push(self.to_bits());
    }
}

impl Words for DType {
    fn push(&self, key: &mut Vec<u64>) {
        key.push(*self as u64);
    }
}

impl Words for &[usize] {
    fn push(&self, key: &mut Vec<u64>) {
        key.push(self.len() as u64);
        key.extend(self.iter().map(|&n| n as u64));
    }
}

impl Words for Shape {
    fn push(&self, key: &mut Vec<u64>) {
        (&self[..]).push(key);
    }
}

impl Words for &str {
    fn push(&self, key: &mut Vec<u64>) {
        key.push(self.len() as u64);
        key.extend(self.as_bytes().chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        }));
    }
}

/// Arguments by their text, where they are rare or large.
pub(crate) struct Text<'a, T: Debug>(pub &'a T);

impl<T: Debug> Words for Text<'_, T> {
    fn push(&self, key: &mut Vec<u64>) {
        format!("{:?}", self.0).as_str().push(key);
    }
}

/// What the operands of a call have in common.
struct Common {
    context: Arc<Context>,
    trace: Option<Arc<Trace>>,
    /// The element type of numbers.
    dtype: DType,
    batch: (usize, usize),
}

fn common(name: &'static str, operands: &[Operand]) -> Result<Common> {
    let mut tensors = operands.iter().filter_map(Operand::tensor);
    let first =
        tensors.next().ok_or_else(|| Error::Argument(format!("{name} needs a tensor among its operands")))?;
    let mut common = Common {
        context: first.context().clone(),
        trace: first.trace().cloned(),
        dtype: first.ty.dtype,
        batch: (1, 1),
    };
    let mut batch = |tensor: &Tensor| {
        let Batch { mark, examples, block } = tensor.batch;
        if mark.relation == BatchRelation::Independent {
            return Ok(());
        }
        let (first, second) = (common.batch, (examples, block));
        if first != (1, 1) && first != second {
            return Err(Error::Batches { op: name, first, second });
        }
        common.batch = second;
        Ok(())
    };
    batch(first)?;
    for tensor in tensors {
        batch(tensor)?;
        if !Arc::ptr_eq(&common.context, tensor.context()) {
            return Err(tensor.elsewhere(name, &common.context));
        }
        if common.trace.is_none() {
            common.trace = tensor.trace().cloned();
        }
    }
    Ok(common)
}

/// Runs a method, under the tapes and the trace that its operands are on. `words` are its arguments.
pub(crate) fn call(
    name: &'static str,
    operands: &mut [Operand],
    words: impl Fn(&mut Vec<u64>),
    build: impl FnOnce(&mut Builder, &[ValueId]) -> Result<Vec<ValueId>, GraphError>,
    site: Site,
) -> Result<Outputs> {
    let recorders = tape::recorders(operands);
    let common = common(name, operands)?;
    let mut state = common.context.lock();
    let program = program(&mut state, &common, name, operands, words, build)?;
    run_under(state, &common, &recorders, &program, operands, site)
}

/// As [`call`], for a program of the caller's own.
pub(crate) fn call_program(program: &Program, operands: &mut [Operand], site: Site) -> Result<Vec<Tensor>> {
    let recorders = tape::recorders(operands);
    let common = common(program.name, operands)?;
    run_under(common.context.lock(), &common, &recorders, program, operands, site).map(Outputs::into_vec)
}

/// Runs a program under the tapes and the trace that its operands are on.
fn run_under(
    mut state: MutexGuard<'_, State>,
    common: &Common,
    recorders: &Recorders,
    program: &Program,
    operands: &mut [Operand],
    site: Site,
) -> Result<Outputs> {
    if let Some(trace) = &common.trace {
        drop(state);
        return trace.record(program, operands, common.batch);
    }
    if recorders.is_empty() {
        return run(&mut state, common, program, operands, site);
    }
    if program.is_one_node() {
        // Backward may need an operand that nobody else holds: a second owner keeps it from being written over.
        let _owners: Vec<Tensor> = operands.iter().filter_map(Operand::tensor).cloned().collect();
        let outputs = run(&mut state, common, program, operands, site)?.into_vec();
        drop(state);
        let values: Vec<_> =
            program.graph.nodes[0].outputs.iter().copied().zip(outputs.iter().cloned()).collect();
        recorders.record(program, operands, &values, &outputs, common.batch)?;
        return Ok(Outputs::Many(outputs));
    }
    drop(state);
    let (values, outputs) = run_nodes(common, program, operands, site)?;
    recorders.record(program, operands, &values, &outputs, common.batch)?;
    Ok(Outputs::Many(outputs))
}

/// Runs an op.
pub(crate) fn call_op(op: &Op, inputs: Vec<Tensor>, site: Site) -> Result<Vec<Tensor>> {
    let mut operands: Vec<Operand> = inputs.into_iter().map(Operand::Tensor).collect();
    let build = |b: &mut Builder, values: &[ValueId]| b.node(op.clone(), values);
    call(op.name(), &mut operands, |key| Text(op).push(key), build, site).map(Outputs::into_vec)
}

/// Runs an op without operands.
pub(crate) fn call_source(context: &Arc<Context>, op: &Op, site: Site) -> Result<Vec<Tensor>> {
    let common = Common { context: context.clone(), trace: None, dtype: DType::F32, batch: (1, 1) };
    let build = |b: &mut Builder, values: &[ValueId]| b.node(op.clone(), values);
    let mut state = context.lock();
    let program = program(&mut state, &common, op.name(), &[], |key| Text(op).push(key), build)?;
    run(&mut state, &common, &program, &mut [], site).map(Outputs::into_vec)
}

/// The program of a call: looked up, or made.
fn program(
    state: &mut State,
    common: &Common,
    name: &'static str,
    operands: &[Operand],
    words: impl Fn(&mut Vec<u64>),
    build: impl FnOnce(&mut Builder, &[ValueId]) -> Result<Vec<ValueId>, GraphError>,
) -> Result<Arc<Program>> {
    let key = &mut state.key;
    key.clear();
    key.extend([name.as_ptr().addr() as u64, name.len() as u64]);
    words(key);
    key.extend([common.batch.0 as u64, common.batch.1 as u64]);
    for operand in operands {
        match operand {
            Operand::Tensor(tensor) => {
                let BatchMark { axis, relation } = tensor.batch.mark;
                let shape = &tensor.ty.shape;
                let word = tensor.ty.dtype as u64 | (axis as u64) << 8 | (relation as u64) << 16;
                key.push(word | (shape.rank() as u64) << 32);
                key.extend(shape.iter().map(|&n| n as u64));
            }
            Operand::Number(_) => key.push(common.dtype as u64 | 1 << 24),
        }
    }
    let scalar = state.scalars[common.dtype as usize].clone();
    state.program(|| {
        let input = |operand: &Operand| match operand {
            Operand::Tensor(tensor) => (tensor.ty.clone(), tensor.batch.mark),
            Operand::Number(_) => (scalar.clone(), BatchMark::input(false)),
        };
        let inputs: Vec<_> = operands.iter().map(input).collect();
        Program::new(common.context.executor.as_ref(), name, &inputs, common.batch, build)
    })
}

/// Runs a program. Operands that nobody else holds may be written over.
fn run(
    state: &mut State,
    common: &Common,
    program: &Program,
    operands: &mut [Operand],
    site: Site,
) -> Result<Outputs> {
    let State { memory, frame, scalars, .. } = state;
    memory.ops += 1;
    let mut number = None;
    for operand in operands.iter() {
        if let Operand::Number(value) = operand {
            let buffer = memory.allocate(&scalars[common.dtype as usize], program.name, site)?;
            let written = memory.fill(buffer, |bytes| write_number(bytes, *value, common.dtype));
            if let Err(error) = written {
                memory.release(buffer);
                return Err(error);
            }
            number = Some(buffer);
        }
    }
    let inputs = operands.iter().map(|operand| match operand {
        Operand::Tensor(tensor) => {
            let alone = |handle: &Arc<Handle>| (handle.buffer, Arc::strong_count(handle) == 1);
            tensor.handle().map_or((u32::MAX, false), alone)
        }
        Operand::Number(_) => (number.unwrap_or(u32::MAX), false),
    });
    let ran = program.run(memory, frame, inputs, site);
    if let Some(number) = number {
        memory.release(number);
    }
    ran?;
    placement::log_op(program, &common.context);
    let mut made: Vec<(u32, Arc<Handle>)> = Vec::new();
    let mut handle = |slot: usize| {
        let slot = frame.slots[slot]?;
        if let Some(Operand::Tensor(tensor)) = slot.input.map(|i| &operands[i]) {
            return tensor.handle().cloned();
        }
        if let Some((_, handle)) = made.iter().find(|(buffer, _)| *buffer == slot.buffer) {
            return Some(handle.clone());
        }
        let handle = Arc::new(Handle { context: common.context.clone(), buffer: slot.buffer });
        if program.outputs.len() > 1 {
            made.push((slot.buffer, handle.clone()));
        }
        Some(handle)
    };
    let mut tensors = program
        .outputs
        .iter()
        .filter_map(|output| Some(Tensor::of(output.ty.clone(), output.batch, handle(output.slot)?)));
    if program.outputs.len() == 1
        && let Some(tensor) = tensors.next()
    {
        return Ok(Outputs::One(tensor));
    }
    Ok(Outputs::Many(tensors.collect()))
}

/// Runs each node of a program by itself: the costly values of its graph, which tapes keep, and its outputs. Others are let go after
/// their last use.
#[allow(clippy::type_complexity, reason = "values by name, and the outputs")]
fn run_nodes(
    common: &Common,
    program: &Program,
    operands: &mut [Operand],
    site: Site,
) -> Result<(Vec<(ValueId, Tensor)>, Vec<Tensor>)> {
    let graph = &program.graph;
    let mut values: Vec<Option<Tensor>> = vec![None; graph.value_count()];
    for (input, operand) in graph.inputs.iter().zip(&*operands) {
        values[input.value.index()] = Some(match operand {
            Operand::Tensor(tensor) => tensor.clone(),
            Operand::Number(value) => number(&common.context, *value, common.dtype, site)?,
        });
    }
    let mut uses = vec![0_usize; graph.value_count()];
    let reads = graph.nodes.iter().flat_map(|node| &node.inputs);
    reads.chain(graph.outputs.iter().map(|output| &output.value)).for_each(|v| uses[v.index()] += 1);
    let mut made = Vec::new();
    for node in &graph.nodes {
        let inputs: Vec<Tensor> = node.inputs.iter().filter_map(|v| values[v.index()].clone()).collect();
        for value in &node.inputs {
            let uses = &mut uses[value.index()];
            *uses -= 1;
            if *uses == 0 {
                values[value.index()] = None;
            }
        }
        let found = execute(&common.context, &node.op, inputs, common.batch, site)?;
        for (&value, tensor) in node.outputs.iter().zip(found) {
            if node.op.properties().rematerialization == Rematerialization::Costly {
                made.push((value, tensor.clone()));
            }
            if uses[value.index()] > 0 {
                values[value.index()] = Some(tensor);
            }
        }
    }
    let outputs = graph.outputs.iter().filter_map(|output| values[output.value.index()].clone()).collect();
    Ok((made, outputs))
}

/// Runs an op beside all tapes.
fn execute(
    context: &Arc<Context>,
    op: &Op,
    inputs: Vec<Tensor>,
    batch: (usize, usize),
    site: Site,
) -> Result<Vec<Tensor>> {
    let common = Common { context: context.clone(), trace: None, dtype: DType::F32, batch };
    let mut operands: Vec<Operand> = inputs.into_iter().map(Operand::Tensor).collect();
    let build = |b: &mut Builder, values: &[ValueId]| b.node(op.clone(), values);
    let mut state = context.lock();
    let program = program(&mut state, &common, op.name(), &operands, |key| Text(op).push(key), build)?;
    let outputs = run(&mut state, &common, &program, &mut operands, site);
    drop(state);
    outputs.map(Outputs::into_vec)
}

/// Runs a program of a caller's own, beside all tapes.
pub(crate) fn run_own(
    context: &Arc<Context>,
    program: &Program,
    operands: &mut [Operand],
    site: Site,
) -> Result<Vec<Tensor>> {
    let common = Common { context: context.clone(), trace: None, dtype: DType::F32, batch: (1, 1) };
    run(&mut context.lock(), &common, program, operands, site).map(Outputs::into_vec)
}

/// A number as a tensor.
fn number(context: &Arc<Context>, value: f64, dtype: DType, site: Site) -> Result<Tensor> {
    context.filled(Arc::new(TensorType::scalar(dtype)), site, |bytes| write_number(bytes, value, dtype))
}

fn write_number(bytes: &mut [u8], value: f64, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 => bytes.copy_from_slice(&(value as f32).to_ne_bytes()),
        DType::F64 => bytes.copy_from_slice(&value.to_ne_bytes()),
        _ => {
            let tensor = plimsoll_tensor::Tensor::from_f64(TensorType::scalar(dtype), &[value])?;
            bytes.copy_from_slice(tensor.as_bytes());
        }
    }
    Ok(())
}
