//! Calls: from a method and its operands to tensors.

use crate::context::{Context, State, Values};
use crate::error::{Error, Result};
use crate::memory::{Memory, Site};
use crate::placement;
use crate::program::{Batch, Frame, Program, ProgramOutput, Slot};
use crate::programs::{Method, Programs};
use crate::tape::{self, Recorders};
use crate::tensor::{Handle, Tensor};
use crate::trace::Trace;
use plimsoll_graph::op::Rematerialization;
use plimsoll_graph::{BatchMark, BatchRelation, Builder, GraphError, Op, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

/// What an op reads.
pub(crate) enum Operand<'a> {
    /// One that is owned may be written over, if nobody else holds it.
    Tensor(Cow<'a, Tensor>),
    /// A number of the element type of the tensor beside it.
    Number(f64),
}

impl From<Tensor> for Operand<'_> {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(Cow::Owned(tensor))
    }
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(Cow::Borrowed(tensor))
    }
}

impl Operand<'_> {
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
    #[inline]
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
struct Common<'a> {
    context: &'a Arc<Context>,
    trace: Option<&'a Arc<Trace>>,
    /// The element type of numbers.
    dtype: DType,
    batch: (usize, usize),
}

#[inline(always)]
fn common<'a>(name: &'static str, operands: &'a [Operand<'_>]) -> Result<Common<'a>> {
    let mut tensors = operands.iter().filter_map(Operand::tensor);
    let first =
        tensors.next().ok_or_else(|| Error::Argument(format!("{name} needs a tensor among its operands")))?;
    let mut common =
        Common { context: first.context(), trace: first.trace(), dtype: first.ty.dtype, batch: (1, 1) };
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
        if !Arc::ptr_eq(common.context, tensor.context()) {
            return Err(tensor.elsewhere(name, common.context));
        }
        if common.trace.is_none() {
            common.trace = tensor.trace();
        }
    }
    Ok(common)
}

/// What adds a method's nodes to a builder.
type Build<'a> = &'a dyn Fn(&mut Builder, &[ValueId]) -> Result<Vec<ValueId>, GraphError>;

/// Runs a method, under the tapes and the trace that its operands are on. `words` writes its arguments to a key.
pub(crate) fn call(
    name: &'static str,
    operands: &mut [Operand<'_>],
    words: &dyn Fn(&mut Vec<u64>),
    build: Build<'_>,
    site: Site,
) -> Result<Outputs> {
    let recorders = tape::recorders(operands);
    let operands = &*operands;
    let common = common(name, operands)?;
    let mut state = common.context.lock();
    let State { values, programs } = &mut *state;
    let program =
        program(programs, values, &common, Method { name, batch: common.batch, words }, operands, build)?;
    if common.trace.is_none() && recorders.is_empty() {
        return run(values, &common, program, operands, site);
    }
    let program = program.clone();
    drop(state);
    run_recorded(&common, &recorders, &program, operands, site)
}

/// As [`call`], for a program of the caller's own.
pub(crate) fn call_program(
    program: &Program,
    operands: &mut [Operand<'_>],
    site: Site,
) -> Result<Vec<Tensor>> {
    let recorders = tape::recorders(operands);
    let common = common(program.name, operands)?;
    let outputs = match common.trace.is_none() && recorders.is_empty() {
        true => run(&mut common.context.lock().values, &common, program, operands, site),
        false => run_recorded(&common, &recorders, program, operands, site),
    };
    outputs.map(Outputs::into_vec)
}

/// Runs a program under the tapes and the trace that its operands are on.
fn run_recorded(
    common: &Common<'_>,
    recorders: &Recorders,
    program: &Program,
    operands: &[Operand<'_>],
    site: Site,
) -> Result<Outputs> {
    if let Some(trace) = common.trace {
        return trace.record(program, operands, common.batch);
    }
    if program.is_one_node() {
        // Backward may need an operand that nobody else holds: a second owner keeps it from being written over.
        let _owners: Vec<Tensor> = operands.iter().filter_map(Operand::tensor).cloned().collect();
        let outputs = run(&mut common.context.lock().values, common, program, operands, site)?.into_vec();
        let values: Vec<_> =
            program.graph.nodes[0].outputs.iter().copied().zip(outputs.iter().cloned()).collect();
        recorders.record(program, operands, &values, &outputs, common.batch)?;
        return Ok(Outputs::Many(outputs));
    }
    let (values, outputs) = run_nodes(common, program, operands, site)?;
    recorders.record(program, operands, &values, &outputs, common.batch)?;
    Ok(Outputs::Many(outputs))
}

/// Runs an op.
pub(crate) fn call_op(op: &Op, inputs: Vec<Tensor>, site: Site) -> Result<Vec<Tensor>> {
    let mut operands: Vec<Operand<'_>> = inputs.into_iter().map(Operand::from).collect();
    let build = |b: &mut Builder, values: &[ValueId]| b.node(op.clone(), values);
    call(op.name(), &mut operands, &|key| Text(op).push(key), &build, site).map(Outputs::into_vec)
}

/// Runs an op without operands.
pub(crate) fn call_source(context: &Arc<Context>, op: &Op, site: Site) -> Result<Vec<Tensor>> {
    execute(context, op, &[], (1, 1), site)
}

/// The program of a call: looked up, or made.
#[inline]
fn program<'p>(
    programs: &'p mut Programs,
    values: &Values,
    common: &Common<'_>,
    method: Method<'_>,
    operands: &[Operand<'_>],
    build: Build<'_>,
) -> Result<&'p Arc<Program>> {
    let inputs = operands.iter().map(|operand| match operand {
        Operand::Tensor(tensor) => (&tensor.ty, tensor.batch.mark),
        Operand::Number(_) => (&values.scalars[common.dtype as usize], BatchMark::input(false)),
    });
    let make = || {
        let inputs: Vec<_> = inputs.clone().map(|(ty, mark)| (ty.clone(), mark)).collect();
        Program::new(common.context.executor.as_ref(), method.name, &inputs, method.batch, build)
    };
    programs.find(method, inputs.clone(), make)
}

/// Runs a program. Operands that nobody else holds may be written over.
fn run(
    values: &mut Values,
    common: &Common<'_>,
    program: &Program,
    operands: &[Operand<'_>],
    site: Site,
) -> Result<Outputs> {
    let Values { memory, frame, scalars } = values;
    memory.ops += 1;
    frame.clear();
    let mut numbers = false;
    for operand in operands {
        match operand {
            Operand::Tensor(tensor) => {
                let Some(handle) = tensor.handle() else { continue };
                let alone = matches!(tensor, Cow::Owned(_)) && Arc::strong_count(handle) == 1;
                frame.push_input(memory, handle.buffer, alone);
            }
            Operand::Number(value) => {
                let ty = &scalars[common.dtype as usize];
                match number_buffer(memory, ty, *value, program.name, site) {
                    Ok(buffer) => frame.push_input(memory, buffer, false),
                    Err(error) => {
                        release_numbers(memory, frame, operands);
                        return Err(error);
                    }
                }
                numbers = true;
            }
        }
    }
    let ran = program.run(memory, frame, site);
    if numbers {
        release_numbers(memory, frame, operands);
    }
    ran?;
    placement::log_op(program, common.context);
    let handle = |slot: Slot| match slot.input.map(|i| &operands[i as usize]) {
        Some(Operand::Tensor(tensor)) => tensor.handle().cloned(),
        _ => Some(Arc::new(Handle { context: common.context.clone(), buffer: slot.buffer })),
    };
    let tensor = |output: &ProgramOutput, handle| Tensor::of(output.ty.clone(), output.batch, handle);
    if let [output] = &program.outputs[..]
        && let Some(handle) = frame.slots[output.slot].and_then(handle)
    {
        return Ok(Outputs::One(tensor(output, handle)));
    }
    // Results that are in one buffer share its owner.
    let mut made: Vec<(u32, Arc<Handle>)> = Vec::new();
    let shared = |output: &ProgramOutput| {
        let slot = frame.slots[output.slot]?;
        let found = made.iter().find(|(buffer, _)| *buffer == slot.buffer);
        let handle = found.map(|(_, handle)| handle.clone()).or_else(|| handle(slot))?;
        made.push((slot.buffer, handle.clone()));
        Some(tensor(output, handle))
    };
    Ok(Outputs::Many(program.outputs.iter().filter_map(shared).collect()))
}

/// A buffer with a number.
fn number_buffer(
    memory: &mut Memory,
    ty: &Arc<TensorType>,
    value: f64,
    op: &'static str,
    site: Site,
) -> Result<u32> {
    let buffer = memory.allocate(ty, op, site)?;
    let written = memory.fill(buffer, |bytes| write_number(bytes, value, ty.dtype));
    if written.is_err() {
        memory.release(buffer);
    }
    written.map(|()| buffer)
}

/// Frees the buffers of operands that are numbers, as far as the frame has them.
fn release_numbers(memory: &mut Memory, frame: &Frame, operands: &[Operand<'_>]) {
    for (operand, slot) in operands.iter().zip(&frame.slots) {
        if let (Operand::Number(_), Some(slot)) = (operand, slot) {
            memory.release(slot.buffer);
        }
    }
}

/// Runs each node of a program by itself: the costly values of its graph, which tapes keep, and its outputs. Others are let go after
/// their last use.
#[allow(clippy::type_complexity, reason = "values by name, and the outputs")]
fn run_nodes(
    common: &Common<'_>,
    program: &Program,
    operands: &[Operand<'_>],
    site: Site,
) -> Result<(Vec<(ValueId, Tensor)>, Vec<Tensor>)> {
    let graph = &program.graph;
    let mut values: Vec<Option<Tensor>> = vec![None; graph.value_count()];
    for (input, operand) in graph.inputs.iter().zip(operands) {
        values[input.value.index()] = Some(match operand {
            Operand::Tensor(tensor) => tensor.clone().into_owned(),
            Operand::Number(value) => number(common.context, *value, common.dtype, site)?,
        });
    }
    let mut uses = vec![0_usize; graph.value_count()];
    let reads = graph.nodes.iter().flat_map(|node| &node.inputs);
    reads.chain(graph.outputs.iter().map(|output| &output.value)).for_each(|v| uses[v.index()] += 1);
    let mut made = Vec::new();
    for node in &graph.nodes {
        let inputs = node.inputs.iter().filter_map(|v| values[v.index()].clone());
        let inputs: Vec<Operand<'_>> = inputs.map(Operand::from).collect();
        for value in &node.inputs {
            let uses = &mut uses[value.index()];
            *uses -= 1;
            if *uses == 0 {
                values[value.index()] = None;
            }
        }
        let found = execute(common.context, &node.op, &inputs, common.batch, site)?;
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
    operands: &[Operand<'_>],
    batch: (usize, usize),
    site: Site,
) -> Result<Vec<Tensor>> {
    let common = Common { context, trace: None, dtype: DType::F32, batch };
    let build = |b: &mut Builder, values: &[ValueId]| b.node(op.clone(), values);
    let method = Method { name: op.name(), batch, words: &|key| Text(op).push(key) };
    let mut state = context.lock();
    let State { values, programs } = &mut *state;
    let program = program(programs, values, &common, method, operands, &build)?;
    run(values, &common, program, operands, site).map(Outputs::into_vec)
}

/// Runs a program of a caller's own, beside all tapes.
pub(crate) fn run_own(
    context: &Arc<Context>,
    program: &Program,
    operands: &[Operand<'_>],
    site: Site,
) -> Result<Vec<Tensor>> {
    let common = Common { context, trace: None, dtype: DType::F32, batch: (1, 1) };
    run(&mut context.lock().values, &common, program, operands, site).map(Outputs::into_vec)
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
