//! The load sheet's entries for what a run holds outside the arena.
//!
//! `plimsoll_plan::sheet` names the entries and accounts for what follows from plans (page tables, heap, spill staging). This
//! file adds what follows from the trainer and its data: metrics, the data pipelines' shares, outputs.

use super::{BatchKind, BatchType, Trainer};
use plimsoll_data::{BATCHES, CACHE, DATA_SET, DECODERS, Dataset, INPUT_WORKERS, Pipeline, catalogue};
use plimsoll_graph::Graph;
use plimsoll_nn::step;
use plimsoll_plan::sheet::{
    BATCH_BUFFERS, BATCHES_AHEAD, INPUT_STACKS, METRICS, MODEL_FILE, NEXT_BATCH, OUTPUTS, TRACE,
};
use plimsoll_plan::{
    BufferKind, Direction, Entry, ExecutionPlan, LoadSheet, PlanSet, STATE_PIECE, Tier, largest_pass,
};
use plimsoll_runtime::traced_bytes;
use plimsoll_trace::BUFFER_BYTES;
use plimsoll_transform::{LOSS, Shard};
use std::sync::Arc;

impl Trainer {
    /// Everything outside the arena but the plans' own heap and page tables.
    pub(super) fn outside_entries(
        &self,
        data: &Dataset,
        micro_batches: usize,
        graphs: &[(String, Arc<Graph>)],
    ) -> Vec<Entry> {
        let mut outside: Vec<Entry> = self.metrics_entry().into_iter().chain(self.outside.clone()).collect();
        outside.extend(self.executors().flat_map(|executor| executor.host_entries()));
        outside.extend(self.per_node_entries(graphs));
        if self.heap_bytes.is_some() {
            outside.extend(self.input_entries(data, &self.batch_types(data, micro_batches)));
            let bytes = self.model_bytes();
            outside.extend(
                (bytes > 0).then(|| Entry::new(MODEL_FILE, bytes, "its nodes, names and places of weights")),
            );
        }
        let outputs = self.output_bytes(graphs);
        if self.shard != Shard::None && self.device_count() > 1 {
            outside.push(Entry::new(
                "shared states",
                STATE_PIECE,
                "a piece of one, on its way to other processes",
            ));
        }
        if outputs > 0 {
            outside.push(Entry::new(OUTPUTS, outputs, "of one batch, on their way out"));
        }
        outside
    }

    /// What one of several devices takes of host memory beside what it offloads there: a buffer for what passes to and from the others.
    pub(super) fn exchange_entry(&self, graphs: &[(String, Arc<Graph>)]) -> Option<Entry> {
        let bytes = graphs.iter().map(|(_, graph)| largest_pass(graph)).max().unwrap_or(0);
        let note = "a value on its way between the device and others";
        (self.computes_on_device() && bytes > 0).then(|| Entry::new("exchange staging", bytes, note))
    }

    /// What models hold outside the arena: the structure of a file whose weights are read piece by piece.
    pub(crate) fn model_bytes(&self) -> usize {
        self.max_over_models(|model| model.initial_values().map_or(0, |values| values.held_bytes()))
    }

    /// The memory of the trainer's metrics.
    fn metrics_entry(&self) -> Option<Entry> {
        let classes = self.classes();
        let bytes = self.metrics.iter().fold(0usize, |sum, metric| sum.saturating_add(metric.bytes(classes)));
        let names: Vec<String> = self.metrics.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| Entry::new(METRICS, bytes, names.join(", ")))
    }

    /// What grows with the graphs: the trace, with what the spans of the plans' steps say, and what was declared.
    fn per_node_entries(&self, graphs: &[(String, Arc<Graph>)]) -> Vec<Entry> {
        let nodes: usize = graphs.iter().map(|(_, graph)| graph.nodes.len()).sum();
        let trace = self.trace.as_ref().map(|settings| {
            let what = if settings.steps == 1 { "step" } else { "steps" };
            let note = format!("buffer of the trace of {} {what}", settings.steps);
            let spans = traced_bytes(graphs.iter().map(|(_, graph)| graph.as_ref()));
            Entry::new(TRACE, BUFFER_BYTES + spans, note)
        });
        let each = self.outside_per_node.iter().map(|entry| {
            Entry::new(entry.name.clone(), entry.bytes.saturating_mul(nodes), entry.note.clone())
        });
        trace.into_iter().chain(each).collect()
    }

    /// The input's memory: batches with their labels, row weights and example numbers, and the shares of the training and test
    /// pipelines.
    fn input_entries(&self, data: &Dataset, types: &[BatchType]) -> Vec<Entry> {
        let largest = |trains: bool| {
            let kinds = types.iter().filter(|t| (t.kind == BatchKind::Train) == trains);
            kinds.map(|t| t.examples).max().unwrap_or(0)
        };
        let training = self.batches_to_read(data, |_| 1);
        let train_size = largest(true).min(training.held_rows());
        let test_size = largest(false);
        // What `Feed` holds: a copy of the labels, two weights per row, and a number per example.
        let label = self.max_over_models(|model| model.target().ty.bytes());
        let row_bytes = self.max_over_models(|model| step::rows(model).elements()).saturating_mul(8);
        let feed =
            label.saturating_add(row_bytes).saturating_add(4).saturating_mul(train_size.max(test_size));
        let mut batches = Entry::new(BATCH_BUFFERS, feed, "batches on the way in, row weights");
        let mut shares: Vec<Entry> = Vec::new();
        // Validation and test part are read one after the other.
        let evaluated = data.validation.iter().chain([&data.test]).map(|part| part.batch(test_size));
        let bytes = |part: &Pipeline| part.bytes().iter().map(|share| share.bytes).sum::<usize>();
        let evaluated = evaluated.max_by_key(bytes).map(|part| (part, test_size));
        // A training pipeline that can start again holds no batch during an evaluation.
        let one_at_a_time = training.restarts_freely();
        let mut batch_bytes = 0_usize;
        let pipelines = std::iter::once((training, train_size)).chain(evaluated);
        for (pipeline, _) in pipelines.filter(|(_, size)| *size > 0) {
            for entry in pipeline_entries(&pipeline.prefetch_within(0)) {
                let same = shares.iter_mut().find(|share| share.name == entry.name);
                match (entry.name.as_str(), same) {
                    (BATCHES, _) if one_at_a_time => batch_bytes = batch_bytes.max(entry.bytes),
                    (BATCHES, _) => batch_bytes = batch_bytes.saturating_add(entry.bytes),
                    // The training pipeline's workers are idle during an evaluation.
                    (DECODERS | INPUT_WORKERS, Some(same)) if entry.bytes > same.bytes => *same = entry,
                    (DECODERS | INPUT_WORKERS, Some(_)) => {}
                    (_, Some(same)) => same.bytes = same.bytes.saturating_add(entry.bytes),
                    (_, None) => shares.push(entry),
                }
            }
        }
        batches.bytes = batches.bytes.saturating_add(batch_bytes);
        std::iter::once(batches).chain(shares).collect()
    }

    /// Heap bytes of what evaluations report and predictions return. A run that trains predicts only at its program's request,
    /// and the program holds the result.
    fn output_bytes(&self, graphs: &[(String, Arc<Graph>)]) -> usize {
        let trains = self.kinds.contains(&BatchKind::Train);
        let is_read = |name: &str| name.starts_with(step::OUTPUT) || name == step::PREDICTIONS;
        let of = |graph: &Graph| {
            let outputs = graph.outputs.iter().filter(|o| is_read(&o.name));
            outputs.map(|o| graph.ty(o.value).bytes()).sum::<usize>()
        };
        let reported = graphs.iter().filter(|(_, g)| g.output(LOSS).is_some() || !trains);
        reported.map(|(_, graph)| of(graph)).max().unwrap_or(0)
    }

    /// What reading the data takes beyond the run: data inside the program is resident until it was read, and dropped then. It is over before
    /// the arena is mapped, so only the larger of both counts.
    pub(super) fn reading_entry(&self, data: &Dataset, sheet: &LoadSheet) -> Option<Entry> {
        let heap = self.heap_bytes?;
        let format = catalogue().iter().find(|format| format.name == data.name)?;
        let (total, _) = sheet.host_total_and_line();
        let run_bytes = total.saturating_sub(self.declared_bytes() + heap);
        let beyond = Some(format.embedded_bytes.saturating_sub(run_bytes)).filter(|bytes| *bytes > 0)?;
        Some(Entry::new("reading data", beyond, "inside the program, beyond what the run takes after it"))
    }

    /// The batches that may be prefetched in what the plan leaves under the line, up to the pipeline's own limit.
    pub(super) fn prefetch_entry(&self, data: &Dataset, sheet: &LoadSheet) -> Option<Entry> {
        self.heap_bytes?;
        let pipeline = if self.kinds.contains(&BatchKind::Train) {
            self.batches_to_read(data, |_| 1)
        } else {
            data.test.batch(self.batch_types(data, 1).first()?.examples)
        };
        let (total, line) = sheet.host_total_and_line();
        let spare = line.saturating_sub(total);
        let more = pipeline.clone().prefetch_within(spare).batches_ahead();
        let more = more.saturating_sub(pipeline.clone().prefetch_within(0).batches_ahead());
        let bytes = pipeline.batch_bytes().checked_mul(more).filter(|bytes| *bytes > 0)?;
        let examples = if pipeline.reads_own_rows() { pipeline.held_rows() } else { pipeline.batch_size() };
        let how = format!("up to {more} × {examples} examples, if the loop waits for them");
        Some(Entry::new(BATCHES_AHEAD, bytes, how))
    }

    /// Large inputs of the next batch, which are copied to a device's memory while a step computes; none where no workers read the
    /// batches.
    pub(super) fn next_batch(&self, data: &Dataset, plans: &PlanSet) -> Option<NextBatch> {
        let executor = self.chosen_executor();
        let least = executor.prefetches_from().filter(|_| self.computes_on_device())?;
        let trains = self.replication.is_none() && self.kinds.contains(&BatchKind::Train);
        if !trains || self.training_batches(data).worker_count() == 0 {
            return None;
        }
        let fields = self.max_over_models(|model| model.inputs().len());
        let is_input = |name: &str| (0..fields).any(|i| step::input_name(i) == name);
        // Each is at a multiple of the alignment, behind the arena.
        let of = |plan: &ExecutionPlan| -> usize {
            let bytes = plan.buffers.iter().map(|buffer| match buffer.kind {
                BufferKind::Input(i) if buffer.bytes >= least && is_input(&plan.graph.inputs[i].name) => {
                    buffer.bytes.next_multiple_of(plans.alignment)
                }
                _ => 0,
            });
            bytes.sum()
        };
        let inputs = plans.plans.iter().map(of).max().filter(|inputs| *inputs > 0)?;
        let bytes = inputs + plans.arena_bytes.next_multiple_of(plans.alignment) - plans.arena_bytes;
        let copy_us = executor.tiers().ns(Tier::Host, Direction::Load, inputs) / 1_000;
        Some(NextBatch { bytes, copy_us })
    }

    /// A pipeline that prefetches no more than the load sheet accounts for. The entry belongs to training, or to the other
    /// kinds in a run that does not train.
    pub(crate) fn prefetch_within_plan(
        &self,
        sheet: &LoadSheet,
        kind: BatchKind,
        pipeline: Pipeline,
    ) -> Pipeline {
        if self.heap_bytes.is_none() {
            return pipeline;
        }
        let has_entry = (kind == BatchKind::Train) == self.kinds.contains(&BatchKind::Train);
        pipeline.prefetch_within(if has_entry { sheet.outside_bytes(BATCHES_AHEAD) } else { 0 })
    }
}

/// Large inputs of the next batch, in a device's memory behind the arena.
#[derive(Clone, Copy)]
pub(super) struct NextBatch {
    pub bytes: usize,
    /// Time of their copies.
    pub copy_us: u64,
}

impl NextBatch {
    /// The time of a step that they are copied beside, where one with its own copies takes so long.
    pub fn beside(self, step_us: u64) -> u64 {
        step_us.saturating_sub(self.copy_us).max(self.copy_us)
    }

    /// Adds them to a sheet, if they fit under its line; returns whether they do.
    pub fn add_to(self, sheet: &mut LoadSheet) -> bool {
        let fits = sheet.total_bytes.checked_add(self.bytes).is_some_and(|total| total <= sheet.line_bytes);
        if fits {
            let how = "large inputs, copied while a step computes";
            sheet.add_computing(Entry::new(NEXT_BATCH, self.bytes, how));
            if let Some(row) = sheet.plans.first_mut() {
                row.predicted_us = self.beside(row.predicted_us);
            }
        }
        fits
    }
}

/// A pipeline's shares, without the data set and its cache, which the program declares, and its workers' stacks.
fn pipeline_entries(pipeline: &Pipeline) -> impl Iterator<Item = Entry> + use<> {
    let stacks = (pipeline.stack_bytes() > 0).then(|| {
        let how = format!("{} input workers", pipeline.worker_count());
        Entry::new(INPUT_STACKS, pipeline.stack_bytes(), how)
    });
    let shares = pipeline.bytes().into_iter().filter(|share| ![DATA_SET, CACHE].contains(&share.name));
    shares.map(|share| Entry::new(share.name, share.bytes, share.how)).chain(stacks)
}
