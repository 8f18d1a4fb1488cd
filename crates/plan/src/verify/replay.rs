//! Runs a plan on paper, step by step, and looks at what every read would see.

use super::figures::{name_of, state_range};
use super::memory::{Content, Memory, overlap};
use super::{At, VerifyError};
use crate::{Action, BufferId, BufferKind, ExecutionPlan, Offloaded, PlanSet, StateHome, Step};
use plimsoll_graph::op::Attention;
use plimsoll_graph::{Graph, Node, NodeId, Op, Origin, State, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(super) fn check(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), VerifyError> {
    check_runs(plan)?;
    let by_name: BTreeMap<&str, &State> = plan.graph.states.iter().map(|s| (s.name.as_str(), s)).collect();
    let mut by_start: Vec<usize> =
        (0..set.states.len()).filter(|&i| !state_range(set, i).is_empty()).collect();
    by_start.sort_by_key(|&i| state_range(set, i).start);
    let mut replay = Replay {
        set,
        plan,
        graph: &plan.graph,
        memory: Memory::default(),
        // The second of two micro-batches stands for all later ones.
        rounds: plan.graph.micro_batches.min(2),
        round: 0,
        state_writes: vec![0; set.states.len()],
        file: vec![None; set.states.len()],
        offloaded: vec![None; plan.offloaded.len()],
        own_states: set.states.iter().map(|s| by_name.get(s.name.as_str()).copied()).collect(),
        by_start,
    };
    replay.enter();
    let body = plan.steps.iter().rposition(|s| !s.optimizer_step).map_or(0, |last| last + 1);
    for round in 0..replay.rounds {
        replay.round = round;
        replay.begin_round()?;
        let is_last = round + 1 == replay.rounds;
        for step in (0..body).filter(|&step| is_last || !plan.steps[step].optimizer_step) {
            replay.step(step)?;
        }
    }
    replay.end_body()?;
    (body..plan.steps.len()).try_for_each(|step| replay.step(step))?;
    replay.end()
}

/// Every node that something needs runs, in its phase; only pure ones may run again.
fn check_runs(plan: &ExecutionPlan) -> Result<(), VerifyError> {
    let graph = &plan.graph;
    let needed = needed(graph);
    let in_optimizer_step = graph.optimizer_step();
    let finals: BTreeSet<ValueId> =
        graph.states.iter().filter_map(|s| s.output).map(|v| source(graph, v)).collect();
    let mut runs = vec![0_usize; graph.nodes.len()];
    let mut tail_begun = false;
    for (i, step) in plan.steps.iter().enumerate() {
        let phase = |reason: &str| VerifyError::Phase { at: at(plan, i), reason: reason.to_string() };
        if tail_begun && !step.optimizer_step {
            return Err(phase("a step of the body comes after one of the tail"));
        }
        // Loads of the tail may begin in the last micro-batch.
        tail_begun |= step.optimizer_step && !matches!(step.action, Action::Load { .. });
        if let Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } = step.action {
            let node = node.index();
            if in_optimizer_step[node] && !step.optimizer_step {
                return Err(phase("needs finished sums, but runs in every micro-batch"));
            }
            // A node of the body may run in the tail only as a repeat.
            if !in_optimizer_step[node] && step.optimizer_step && runs[node] == 0 {
                return Err(phase("belongs to every micro-batch, but runs only after the last"));
            }
            runs[node] += 1;
        }
    }
    for (id, node) in graph.nodes.iter().enumerate() {
        let expected = usize::from(needed[id] && !node.op.is_view());
        let pure = node.accumulate.is_empty() && !node.outputs.iter().any(|v| finals.contains(v));
        if runs[id] < expected || (runs[id] > expected && (expected == 0 || !pure)) {
            return Err(VerifyError::Runs {
                plan: plan.name.clone(),
                layer: node.layer.to_string(),
                op: node.op.name().to_string(),
                node: id,
                runs: runs[id],
                expected,
            });
        }
    }
    Ok(())
}

/// Which nodes a state's new version, a running sum or an output depends on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut stack: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
    stack.extend(graph.states.iter().filter_map(|s| s.output));
    stack.extend(graph.accumulators.iter().map(|c| c.output));
    while let Some(value) = stack.pop() {
        if let Some(node) = graph.producer(value)
            && !std::mem::replace(&mut needed[node.index()], true)
        {
            stack.extend(graph.node(node).reads());
        }
    }
    needed
}

/// The value whose bytes a value is.
fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Some(node) = graph.producer(value).map(|n| graph.node(n)).filter(|n| n.op.is_view()) {
        value = node.inputs[0];
    }
    value
}

fn at(plan: &ExecutionPlan, step: usize) -> Box<At> {
    let (layer, op) = match &plan.steps[step].action {
        Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
            let node = plan.graph.node(*node);
            (node.layer.to_string(), node.op.name().to_string())
        }
        Action::Copy { value, .. } => {
            let node = plan.graph.producer(*value).map(|n| plan.graph.node(n));
            (node.map_or_else(String::new, |n| n.layer.to_string()), format!("copy of {value}"))
        }
        Action::Load { what, .. } => (String::new(), format!("load of {what:?}")),
        Action::Store { what, .. } => (String::new(), format!("store of {what:?}")),
    };
    Box::new(At { plan: plan.name.clone(), step, layer, op })
}

struct Replay<'a> {
    set: &'a PlanSet,
    plan: &'a ExecutionPlan,
    graph: &'a Graph,
    memory: Memory,
    /// How many micro-batches are run on paper.
    rounds: usize,
    /// The micro-batch at work; in the tail, the last.
    round: usize,
    state_writes: Vec<usize>,
    /// What the spill file holds for each state that lies there.
    file: Vec<Option<Content>>,
    /// The same for each spilled value.
    offloaded: Vec<Option<Content>>,
    /// The graph's state that each state of the set is; those of other graphs are none.
    own_states: Vec<Option<&'a State>>,
    /// The set's states that have bytes, by where they start; none overlap.
    by_start: Vec<usize>,
}

impl Replay<'_> {
    /// What lies in the arena before the first step.
    fn enter(&mut self) {
        for (i, placed) in self.set.states.iter().enumerate() {
            self.memory.write(&state_range(self.set, i), Content::Foreign(i));
            if let StateHome::File(_) = placed.home {
                let own = self.graph.states.iter().find(|s| s.name == placed.name);
                self.file[i] = Some(own.map_or(Content::Foreign(i), |s| Content::Value(s.input, 0)));
            }
        }
        for buffer in &self.plan.buffers {
            let start = buffer.offset;
            match buffer.kind {
                BufferKind::State(_) | BufferKind::Accumulator(_) => {
                    if let Some(value) = buffer.value {
                        self.memory.write(&(start..start + buffer.bytes), Content::Value(value, 0));
                    }
                }
                BufferKind::Input(i) => {
                    let value = self.graph.inputs[i].value;
                    let bytes = self.graph.ty(value).bytes();
                    let slices = if buffer.micro_stride > 0 { self.graph.micro_batches } else { 1 };
                    for slice in 0..slices {
                        let start = start + slice * buffer.micro_stride;
                        self.memory.write(&(start..start + bytes), Content::Value(value, slice));
                    }
                }
                BufferKind::Value | BufferKind::Workspace => {}
            }
        }
    }

    /// A running sum is what the micro-batch before left.
    fn begin_round(&mut self) -> Result<(), VerifyError> {
        if self.round == 0 {
            return Ok(());
        }
        for (i, range) in self.carry_ranges() {
            let accumulator = &self.graph.accumulators[i];
            let expected = Content::Value(source(self.graph, accumulator.output), self.round - 1);
            if !range.is_empty() && self.memory.at(&range) != Some(expected) {
                return Err(VerifyError::CarryEnd {
                    plan: self.plan.name.clone(),
                    sum: accumulator.input.to_string(),
                    expected: expected.to_string(),
                    found: self.memory.words(&range),
                });
            }
            self.memory.write(&range, Content::Value(accumulator.input, self.round));
        }
        Ok(())
    }

    fn carry_ranges(&self) -> Vec<(usize, Range<usize>)> {
        let ranges = self.plan.buffers.iter().filter_map(|b| match b.kind {
            BufferKind::Accumulator(i) => Some((i, b.offset..b.offset + b.bytes)),
            _ => None,
        });
        ranges.collect()
    }

    /// What later micro-batches read must still be there: a step that spoils it does so in every micro-batch.
    fn end_body(&self) -> Result<(), VerifyError> {
        for buffer in self.plan.buffers.iter().filter(|b| b.micro_stride > 0) {
            let BufferKind::Input(i) = buffer.kind else { continue };
            let input = &self.graph.inputs[i];
            for slice in self.rounds..self.graph.micro_batches {
                let start = buffer.offset + slice * buffer.micro_stride;
                let range = start..start + self.graph.ty(input.value).bytes();
                if !range.is_empty() && self.memory.at(&range) != Some(Content::Value(input.value, slice)) {
                    return Err(VerifyError::Batch {
                        plan: self.plan.name.clone(),
                        input: input.name.clone(),
                        micro_batch: slice,
                    });
                }
            }
        }
        Ok(())
    }

    /// What a value is called now: the version of this micro-batch, if it has versions.
    fn now(&self, value: ValueId) -> Content {
        let value = source(self.graph, value);
        let versions = match self.graph.origin(value) {
            Origin::State(_) => false,
            Origin::Input(i) => self.graph.inputs[i].batched,
            Origin::Accumulator(_) | Origin::Node { .. } => true,
        };
        Content::Value(value, if versions { self.round } else { 0 })
    }

    fn step(&mut self, index: usize) -> Result<(), VerifyError> {
        let step = &self.plan.steps[index];
        match &step.action {
            Action::Run { node, reads, writes, workspace } => {
                let all = |ids: &[BufferId]| ids.iter().copied().map(Some).collect::<Vec<_>>();
                self.run(index, step, *node, &all(reads), &all(writes), *workspace)
            }
            Action::ChunkedUpdate { node, reads, writes, workspace, .. } => {
                for state in self.chunked(*node, reads) {
                    let (old, new) = self.versions(index, state)?;
                    if self.file[state] != Some(self.now(old)) {
                        let found = self.file[state].map_or_else(|| "nothing".to_string(), |c| c.to_string());
                        let value = self.now(old).to_string();
                        return Err(VerifyError::Read { at: at(self.plan, index), value, found });
                    }
                    self.file[state] = Some(self.now(new));
                    self.state_writes[state] += 1;
                }
                self.run(index, step, *node, reads, writes, Some(*workspace))
            }
            Action::Copy { value, from, to } => {
                let read = self.read(index, step, *value, *from)?;
                let written = self.range(index, *to, *value)?;
                if overlap(&read, &written) {
                    let at = at(self.plan, index);
                    return Err(VerifyError::InPlace {
                        at,
                        value: value.to_string(),
                        other: "itself".to_string(),
                    });
                }
                self.write(index, *value, &written)
            }
            Action::Load { what, to } => {
                let (value, found) = match *what {
                    Offloaded::State(i) => (self.versions(index, i)?.0, self.file[i]),
                    Offloaded::Value(i) => (self.plan.offloaded[i].value, self.offloaded[i]),
                };
                if found != Some(self.now(value)) {
                    let found = found.map_or_else(|| "nothing".to_string(), |c| c.to_string());
                    let value = self.now(value).to_string();
                    return Err(VerifyError::Read { at: at(self.plan, index), value, found });
                }
                let written = self.range(index, *to, value)?;
                self.write(index, value, &written)
            }
            Action::Store { what, from } => {
                let value = match *what {
                    Offloaded::State(i) => self.versions(index, i)?.1,
                    Offloaded::Value(i) => self.plan.offloaded[i].value,
                };
                self.read(index, step, value, *from)?;
                let content = Some(self.now(value));
                match *what {
                    Offloaded::State(i) => {
                        self.file[i] = content;
                        self.state_writes[i] += 1;
                    }
                    Offloaded::Value(i) => self.offloaded[i] = content,
                }
                Ok(())
            }
        }
    }

    /// The states of the set that a node reads without a buffer.
    fn chunked(&self, node: NodeId, reads: &[Option<BufferId>]) -> Vec<usize> {
        let inputs = self.graph.node(node).inputs.iter().zip(reads).filter(|(_, buffer)| buffer.is_none());
        let names = inputs.filter_map(|(v, _)| self.graph.states.iter().find(|s| s.input == *v));
        names.filter_map(|s| self.set.states.iter().position(|p| p.name == s.name)).collect()
    }

    /// The old and the new version of a state of the set, in this graph.
    fn versions(&self, index: usize, state: usize) -> Result<(ValueId, ValueId), VerifyError> {
        let name = &self.set.states[state].name;
        let own = self.graph.states.iter().find(|s| s.name == *name);
        own.map(|s| (s.input, s.output.unwrap_or(s.input))).ok_or_else(|| VerifyError::Malformed {
            plan: self.plan.name.clone(),
            reason: format!("step {index} moves state `{name}`, which the graph does not have"),
        })
    }

    fn run(
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
            // What passes through is apart from everything else.
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
            for (position, (other, taken)) in read.iter().enumerate() {
                if overlap(taken, &range) && !(*taken == range && self.may_overwrite(node, position, value)) {
                    return Err(self.in_place(index, value, *other));
                }
            }
            written.push((value, range));
        }
        self.check_sums(index, node, &read, &written)?;
        if let Some(workspace) = workspace {
            self.scratch(index, workspace, read.iter().chain(&written))?;
        }
        written.iter().try_for_each(|(value, range)| self.write(index, *value, range))
    }

    /// Whether an op may write a result over the operand at a position: element by element, pair by pair, or onto a
    /// running sum.
    fn may_overwrite(&self, node: &Node, position: usize, result: ValueId) -> bool {
        let operand = node.reads().nth(position);
        let types = operand.map(|v| (self.graph.ty(v), self.graph.ty(result)));
        let Some((operand, result)) = types else { return false };
        if position >= node.inputs.len() {
            return operand == result;
        }
        let same_elements =
            operand.shape.elements() == result.shape.elements() && operand.bytes() == result.bytes();
        let local =
            matches!(node.op, Op::Elementwise(_) | Op::Fused(_) | Op::Attention(Attention::Rotary { .. }));
        local && same_elements
    }

    /// Each running sum is where an output of its type goes, in order.
    fn check_sums(
        &self,
        index: usize,
        node: &Node,
        read: &[(ValueId, Range<usize>)],
        written: &[(ValueId, Range<usize>)],
    ) -> Result<(), VerifyError> {
        let mut outputs = written.iter();
        for (sum, range) in &read[node.inputs.len()..] {
            let fits = |(value, goes): &(ValueId, Range<usize>)| {
                self.graph.ty(*value) == self.graph.ty(*sum) && (goes == range || range.is_empty())
            };
            if !outputs.any(fits) {
                return Err(VerifyError::Sum { at: at(self.plan, index), sum: sum.to_string() });
            }
        }
        Ok(())
    }

    fn scratch<'r>(
        &mut self,
        index: usize,
        workspace: BufferId,
        mut used: impl Iterator<Item = &'r (ValueId, Range<usize>)>,
    ) -> Result<(), VerifyError> {
        let buffer = &self.plan.buffers[workspace.index()];
        self.check_taken(index, workspace)?;
        let range = buffer.offset..buffer.offset + buffer.bytes;
        if buffer.kind != BufferKind::Workspace {
            let other = name_of(self.plan, buffer);
            return Err(VerifyError::Workspace { at: at(self.plan, index), other });
        }
        if let Some((value, _)) = used.find(|(_, used)| overlap(used, &range)) {
            return Err(VerifyError::Workspace { at: at(self.plan, index), other: value.to_string() });
        }
        self.check_state_bytes(index, &range, "scratch", None)?;
        self.memory.spoil(&range);
        Ok(())
    }

    fn in_place(&self, index: usize, value: ValueId, other: ValueId) -> VerifyError {
        VerifyError::InPlace { at: at(self.plan, index), value: value.to_string(), other: other.to_string() }
    }

    fn check_taken(&self, index: usize, buffer: BufferId) -> Result<(), VerifyError> {
        let buffer = &self.plan.buffers[buffer.index()];
        if (buffer.first..=buffer.last).contains(&index) {
            return Ok(());
        }
        Err(VerifyError::Lifetime { at: at(self.plan, index), buffer: name_of(self.plan, buffer) })
    }

    /// The bytes of a value in a buffer, in this micro-batch.
    fn range(&self, index: usize, id: BufferId, value: ValueId) -> Result<Range<usize>, VerifyError> {
        self.check_taken(index, id)?;
        let buffer = &self.plan.buffers[id.index()];
        let start = buffer.offset + self.round * buffer.micro_stride;
        let bytes = self.graph.ty(value).bytes();
        let room = if buffer.micro_stride > 0 { buffer.micro_stride } else { buffer.bytes };
        if room != bytes || buffer.kind == BufferKind::Workspace {
            let reason =
                format!("step {index} puts {value} of {bytes} bytes into {}", name_of(self.plan, buffer));
            return Err(VerifyError::Malformed { plan: self.plan.name.clone(), reason });
        }
        Ok(start..start + bytes)
    }

    /// Checks that a read sees the version it names.
    fn read(
        &self,
        index: usize,
        step: &Step,
        value: ValueId,
        id: BufferId,
    ) -> Result<Range<usize>, VerifyError> {
        let range = self.range(index, id, value)?;
        let error = |found: String| {
            let value = self.now(value).to_string();
            Err(VerifyError::Read { at: at(self.plan, index), value, found })
        };
        if step.optimizer_step && self.plan.buffers[id.index()].micro_stride > 0 {
            return error("a slice of the batch, which has no place after the last micro-batch".to_string());
        }
        if !range.is_empty() && self.memory.at(&range) != Some(self.now(value)) {
            return error(self.memory.words(&range));
        }
        Ok(range)
    }

    fn write(&mut self, index: usize, value: ValueId, range: &Range<usize>) -> Result<(), VerifyError> {
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
                    at: at(self.plan, index),
                    state: self.set.states[i].name.clone(),
                    what: what.to_string(),
                });
            }
            self.state_writes[i] += 1;
        }
        Ok(())
    }

    /// What must lie in the arena after the last step.
    fn end(&self) -> Result<(), VerifyError> {
        for (i, placed) in self.set.states.iter().enumerate() {
            let range = state_range(self.set, i);
            let own = self.own_states[i];
            let expected = own.map_or(Content::Foreign(i), |s| self.now(s.output.unwrap_or(s.input)));
            let offloaded = matches!(placed.home, StateHome::File(_));
            let somewhere = offloaded || !range.is_empty();
            let rewritten = own.is_some_and(|s| expected != self.now(s.input)) && somewhere;
            if self.state_writes[i] != usize::from(rewritten) {
                return Err(VerifyError::StateWrites {
                    plan: self.plan.name.clone(),
                    state: placed.name.clone(),
                    writes: self.state_writes[i],
                    expected: usize::from(rewritten),
                });
            }
            let found = if offloaded { self.file[i] } else { self.memory.at(&range) };
            if somewhere && found != Some(expected) {
                return Err(VerifyError::StateEnd {
                    plan: self.plan.name.clone(),
                    state: placed.name.clone(),
                    expected: expected.to_string(),
                    found: found.map_or_else(|| self.memory.words(&range), |c| c.to_string()),
                });
            }
        }
        for (output, buffer) in self.graph.outputs.iter().zip(&self.plan.outputs) {
            let place = &self.plan.buffers[buffer.index()];
            let range = place.offset..place.offset + self.graph.ty(output.value).bytes();
            let fits = place.bytes == range.len() && place.last + 1 >= self.plan.steps.len();
            let expected = self.now(output.value);
            if !fits || (!range.is_empty() && self.memory.at(&range) != Some(expected)) {
                return Err(VerifyError::Output {
                    plan: self.plan.name.clone(),
                    output: output.name.clone(),
                    expected: expected.to_string(),
                    found: self.memory.words(&range),
                });
            }
        }
        Ok(())
    }
}
