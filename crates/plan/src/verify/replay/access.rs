//! What a step reads and writes.

use super::Replay;
use crate::verify::memory::overlap;
use crate::verify::placement::{name_of, state_range};
use crate::verify::runs::source;
use crate::verify::{At, VerifyError};
use crate::{BufferId, BufferKind, Step};
use plimsoll_graph::{Node, NodeId, ValueId};
use std::ops::Range;

impl Replay<'_> {
    /// Checks the operands of a node and writes its outputs.
    pub(super) fn run(
        &mut self,
        index: usize,
        step: &Step,
        id: NodeId,
        reads: &[Option<BufferId>],
        writes: &[Option<BufferId>],
        workspace: Option<BufferId>,
    ) -> Result<(), VerifyError> {
        let node = self.graph.node(id);
        let values: Vec<ValueId> = node.reads().collect();
        let mut read = Vec::new();
        for (&value, &buffer) in values.iter().zip(reads) {
            // A state that is updated in chunks shares no bytes with other operands.
            let place = buffer.map_or(Ok(0..0), |buffer| self.read(index, step, value, buffer))?;
            read.push((value, place));
        }
        let mut written: Vec<(ValueId, Range<usize>)> = Vec::new();
        for (&value, &buffer) in node.outputs.iter().zip(writes) {
            let Some(buffer) = buffer else { continue };
            let range = self.range(index, buffer, value)?;
            if let Some((other, _)) = written.iter().find(|(_, other)| overlap(other, &range)) {
                return Err(self.in_place(index, value, *other));
            }
            for (position, (other, used)) in read.iter().enumerate() {
                if overlap(used, &range) && !(*used == range && self.may_overwrite(node, position, value)) {
                    return Err(self.in_place(index, value, *other));
                }
            }
            written.push((value, range));
        }
        self.check_accumulators(index, node, &read, &written)?;
        if let Some(workspace) = workspace {
            self.scratch(index, workspace, read.iter().chain(&written))?;
        }
        written.iter().try_for_each(|(value, range)| self.write(index, *value, range))
    }

    /// Whether a node may overwrite the operand at a position: an input in place, or its accumulator.
    fn may_overwrite(&self, node: &Node, position: usize, output: ValueId) -> bool {
        let Some(operand) = node.reads().nth(position) else { return false };
        let (operand, output) = (self.graph.ty(operand), self.graph.ty(output));
        if position >= node.inputs.len() {
            return operand == output;
        }
        self.set.numerics.may_overwrite(&node.op, output, operand)
    }

    /// An output of its type is written to each accumulator, in order.
    fn check_accumulators(
        &self,
        index: usize,
        node: &Node,
        read: &[(ValueId, Range<usize>)],
        written: &[(ValueId, Range<usize>)],
    ) -> Result<(), VerifyError> {
        let mut outputs = written.iter();
        for (accumulator, range) in &read[node.inputs.len()..] {
            let fits = |(value, to): &(ValueId, Range<usize>)| {
                self.graph.ty(*value) == self.graph.ty(*accumulator) && (to == range || range.is_empty())
            };
            if !outputs.any(fits) {
                let accumulator = accumulator.to_string();
                return Err(VerifyError::Accumulator { at: At::step(self.plan, index), accumulator });
            }
        }
        Ok(())
    }

    /// Checks that the workspace overlaps no operand, and invalidates its bytes.
    fn scratch<'r>(
        &mut self,
        index: usize,
        workspace: BufferId,
        mut used: impl Iterator<Item = &'r (ValueId, Range<usize>)>,
    ) -> Result<(), VerifyError> {
        let buffer = &self.plan.buffers[workspace.index()];
        self.check_live(index, workspace)?;
        let range = buffer.offset..buffer.offset + buffer.bytes;
        if buffer.kind != BufferKind::Workspace {
            let other = name_of(self.plan, buffer);
            return Err(VerifyError::Workspace { at: At::step(self.plan, index), other });
        }
        if let Some((value, _)) = used.find(|(_, used)| overlap(used, &range)) {
            return Err(VerifyError::Workspace { at: At::step(self.plan, index), other: value.to_string() });
        }
        self.check_state_bytes(index, &range, "scratch", None)?;
        self.memory.invalidate(&range);
        Ok(())
    }

    fn in_place(&self, index: usize, value: ValueId, other: ValueId) -> VerifyError {
        VerifyError::InPlace {
            at: At::step(self.plan, index),
            value: value.to_string(),
            other: other.to_string(),
        }
    }

    fn check_live(&self, index: usize, buffer: BufferId) -> Result<(), VerifyError> {
        let buffer = &self.plan.buffers[buffer.index()];
        if (buffer.first..=buffer.last).contains(&index) {
            return Ok(());
        }
        Err(VerifyError::Lifetime { at: At::step(self.plan, index), buffer: name_of(self.plan, buffer) })
    }

    /// The bytes of a value in a buffer, in this micro-batch.
    pub(super) fn range(
        &self,
        index: usize,
        id: BufferId,
        value: ValueId,
    ) -> Result<Range<usize>, VerifyError> {
        self.check_live(index, id)?;
        let buffer = &self.plan.buffers[id.index()];
        let start = buffer.offset + self.micro_batch * buffer.micro_stride;
        let bytes = self.graph.ty(value).bytes();
        let capacity = if buffer.micro_stride > 0 { buffer.micro_stride } else { buffer.bytes };
        if capacity != bytes || buffer.kind == BufferKind::Workspace {
            let reason =
                format!("step {index} puts {value} of {bytes} bytes into {}", name_of(self.plan, buffer));
            return Err(VerifyError::Malformed { plan: self.plan.name.clone(), reason });
        }
        Ok(start..start + bytes)
    }

    /// Checks that a read sees the version it names.
    pub(super) fn read(
        &self,
        index: usize,
        step: &Step,
        value: ValueId,
        id: BufferId,
    ) -> Result<Range<usize>, VerifyError> {
        let range = self.range(index, id, value)?;
        let error = |found: String| {
            let value = self.now(value).to_string();
            Err(VerifyError::Read { at: At::step(self.plan, index), value, found })
        };
        if step.optimizer_step && self.plan.buffers[id.index()].micro_stride > 0 {
            return error(
                "a slice of the batch, which must not be read after the last micro-batch".to_string(),
            );
        }
        if !range.is_empty() && self.memory.at(&range) != Some(self.now(value)) {
            return error(self.memory.describe(&range));
        }
        Ok(range)
    }

    /// Writes a value, if its bytes may hold it.
    pub(super) fn write(
        &mut self,
        index: usize,
        value: ValueId,
        range: &Range<usize>,
    ) -> Result<(), VerifyError> {
        self.check_state_bytes(index, range, &value.to_string(), Some(value))?;
        let content = self.now(value);
        self.memory.write(range, content);
        Ok(())
    }

    /// Counts a write of a state's new version into its bytes; refuses any other write there.
    fn check_state_bytes(
        &mut self,
        index: usize,
        range: &Range<usize>,
        what: &str,
        value: Option<ValueId>,
    ) -> Result<(), VerifyError> {
        let from = self.by_start.partition_point(|&i| state_range(self.set, i).end <= range.start);
        for &i in &self.by_start[from..] {
            if !overlap(&state_range(self.set, i), range) {
                break;
            }
            let own = self.own_states[i].and_then(|s| s.output);
            let is_new_version = value.is_some_and(|value| {
                own.is_some_and(|own| source(self.graph, own) == source(self.graph, value))
            });
            if !is_new_version || state_range(self.set, i) != *range {
                return Err(VerifyError::StateBytes {
                    at: At::step(self.plan, index),
                    state: self.set.states[i].name.clone(),
                    what: what.to_string(),
                });
            }
            self.state_writes[i] += 1;
        }
        Ok(())
    }
}
