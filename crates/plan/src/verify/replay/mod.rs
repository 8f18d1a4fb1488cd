//! Simulates a plan step by step, with an arena that knows which bytes hold which value, and checks every read.

mod access;

use super::memory::{Content, Memory, overlap};
use super::placement::state_range;
use super::runs::source;
use super::{At, VerifyError};
use crate::{Action, BufferId, BufferKind, ExecutionPlan, Offloaded, PlanSet, StateHome};
use plimsoll_graph::{Graph, NodeId, Origin, State, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) fn check(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), VerifyError> {
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
        micro_batches: plan.graph.micro_batches.min(2),
        micro_batch: 0,
        state_writes: vec![0; set.states.len()],
        tiers: vec![None; set.states.len()],
        offloaded: vec![None; plan.offloaded.len()],
        own_states: set.states.iter().map(|s| by_name.get(s.name.as_str()).copied()).collect(),
        by_start,
    };
    replay.enter();
    let body = plan.steps.iter().rposition(|s| !s.optimizer_step).map_or(0, |last| last + 1);
    for micro_batch in 0..replay.micro_batches {
        replay.micro_batch = micro_batch;
        replay.begin_micro_batch()?;
        let is_last = micro_batch + 1 == replay.micro_batches;
        for step in (0..body).filter(|&step| is_last || !plan.steps[step].optimizer_step) {
            replay.step(step)?;
        }
    }
    replay.end_body()?;
    (body..plan.steps.len()).try_for_each(|step| replay.step(step))?;
    replay.end()
}

struct Replay<'a> {
    set: &'a PlanSet,
    plan: &'a ExecutionPlan,
    graph: &'a Graph,
    memory: Memory,
    /// How many micro-batches are simulated.
    micro_batches: usize,
    /// The one that is simulated now; in the optimizer step, the last.
    micro_batch: usize,
    state_writes: Vec<usize>,
    /// What the tiers hold for each state of the set that is offloaded.
    tiers: Vec<Option<Content>>,
    /// What they hold for each offloaded value.
    offloaded: Vec<Option<Content>>,
    /// The graph's state for each state of the set; `None` for those of other graphs.
    own_states: Vec<Option<&'a State>>,
    /// The set's states that have bytes in the arena, by offset; they do not overlap.
    by_start: Vec<usize>,
}

impl Replay<'_> {
    /// Fills the arena and the tiers as they are before the first step.
    fn enter(&mut self) {
        for (i, placed) in self.set.states.iter().enumerate() {
            self.memory.write(&state_range(self.set, i), Content::Foreign(i));
            if let StateHome::Offloaded { .. } = placed.home {
                let own = self.graph.states.iter().find(|s| s.name == placed.name);
                self.tiers[i] = Some(own.map_or(Content::Foreign(i), |s| Content::Value(s.input, 0)));
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

    /// Checks that each accumulator holds the sum that the micro-batch before left.
    fn begin_micro_batch(&mut self) -> Result<(), VerifyError> {
        if self.micro_batch == 0 {
            return Ok(());
        }
        for (i, range) in self.accumulator_ranges() {
            let accumulator = &self.graph.accumulators[i];
            let expected = Content::Value(source(self.graph, accumulator.output), self.micro_batch - 1);
            if !range.is_empty() && self.memory.at(&range) != Some(expected) {
                return Err(VerifyError::AccumulatorEnd {
                    plan: self.plan.name.clone(),
                    accumulator: accumulator.input.to_string(),
                    expected: expected.to_string(),
                    found: self.memory.describe(&range),
                });
            }
            self.memory.write(&range, Content::Value(accumulator.input, self.micro_batch));
        }
        Ok(())
    }

    fn accumulator_ranges(&self) -> Vec<(usize, Range<usize>)> {
        let ranges = self.plan.buffers.iter().filter_map(|b| match b.kind {
            BufferKind::Accumulator(i) => Some((i, b.offset..b.offset + b.bytes)),
            _ => None,
        });
        ranges.collect()
    }

    /// Checks that the slices of the batch that later micro-batches read are intact: a step that overwrites one does so in
    /// every micro-batch.
    fn end_body(&self) -> Result<(), VerifyError> {
        for buffer in self.plan.buffers.iter().filter(|b| b.micro_stride > 0) {
            let BufferKind::Input(i) = buffer.kind else { continue };
            let input = &self.graph.inputs[i];
            for slice in self.micro_batches..self.graph.micro_batches {
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

    /// A value's current version: that of this micro-batch, unless it is the same in all.
    fn now(&self, value: ValueId) -> Content {
        let value = source(self.graph, value);
        let versions = match self.graph.origin(value) {
            Origin::State(_) => false,
            Origin::Input(i) => self.graph.inputs[i].batched,
            Origin::Accumulator(_) | Origin::Node { .. } => true,
        };
        Content::Value(value, if versions { self.micro_batch } else { 0 })
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
                    if self.tiers[state] != Some(self.now(old)) {
                        let found =
                            self.tiers[state].map_or_else(|| "nothing".to_string(), |c| c.to_string());
                        let value = self.now(old).to_string();
                        return Err(VerifyError::Read { at: At::step(self.plan, index), value, found });
                    }
                    self.tiers[state] = Some(self.now(new));
                    self.state_writes[state] += 1;
                }
                self.run(index, step, *node, reads, writes, Some(*workspace))
            }
            Action::Copy { value, from, to } => {
                let read = self.read(index, step, *value, *from)?;
                let written = self.range(index, *to, *value)?;
                if overlap(&read, &written) {
                    let at = At::step(self.plan, index);
                    return Err(VerifyError::InPlace {
                        at,
                        value: value.to_string(),
                        other: "itself".to_string(),
                    });
                }
                self.write(index, *value, &written)
            }
            Action::Load { what, to, .. } => {
                let (value, found) = match *what {
                    Offloaded::State(i) => (self.versions(index, i)?.0, self.tiers[i]),
                    Offloaded::Value(i) => (self.plan.offloaded[i].value, self.offloaded[i]),
                };
                if found != Some(self.now(value)) {
                    let found = found.map_or_else(|| "nothing".to_string(), |c| c.to_string());
                    let value = self.now(value).to_string();
                    return Err(VerifyError::Read { at: At::step(self.plan, index), value, found });
                }
                let written = self.range(index, *to, value)?;
                self.write(index, value, &written)
            }
            Action::Store { what, from, .. } => {
                let value = match *what {
                    Offloaded::State(i) => self.versions(index, i)?.1,
                    Offloaded::Value(i) => self.plan.offloaded[i].value,
                };
                self.read(index, step, value, *from)?;
                let content = Some(self.now(value));
                match *what {
                    Offloaded::State(i) => {
                        self.tiers[i] = content;
                        self.state_writes[i] += 1;
                    }
                    Offloaded::Value(i) => self.offloaded[i] = content,
                }
                Ok(())
            }
        }
    }

    /// The states of the set that a chunked update reads without a buffer.
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

    /// Checks what the arena and the tiers hold after the last step.
    fn end(&self) -> Result<(), VerifyError> {
        for (i, placed) in self.set.states.iter().enumerate() {
            let range = state_range(self.set, i);
            let own = self.own_states[i];
            let expected = own.map_or(Content::Foreign(i), |s| self.now(s.output.unwrap_or(s.input)));
            let offloaded = matches!(placed.home, StateHome::Offloaded { .. });
            let has_bytes = offloaded || !range.is_empty();
            let rewritten = own.is_some_and(|s| expected != self.now(s.input)) && has_bytes;
            if self.state_writes[i] != usize::from(rewritten) {
                return Err(VerifyError::StateWrites {
                    plan: self.plan.name.clone(),
                    state: placed.name.clone(),
                    writes: self.state_writes[i],
                    expected: usize::from(rewritten),
                });
            }
            let found = if offloaded { self.tiers[i] } else { self.memory.at(&range) };
            if has_bytes && found != Some(expected) {
                return Err(VerifyError::StateEnd {
                    plan: self.plan.name.clone(),
                    state: placed.name.clone(),
                    expected: expected.to_string(),
                    found: found.map_or_else(|| self.memory.describe(&range), |c| c.to_string()),
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
                    found: self.memory.describe(&range),
                });
            }
        }
        Ok(())
    }
}
