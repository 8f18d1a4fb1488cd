//! The load sheet's entries for what a run holds outside the arena.

use super::{BatchKind, BatchType, Trainer};
use plimsoll_data::{BATCHES, CACHE, DATA_SET, DECODERS, Dataset, Pipeline};
use plimsoll_graph::Graph;
use plimsoll_nn::step;
use plimsoll_plan::sheet::{BATCH_BUFFERS, BATCHES_AHEAD, INPUT_STACKS, OUTPUTS};
use plimsoll_plan::{Entry, LoadSheet};
use plimsoll_transform::LOSS;

impl Trainer {
    /// Everything outside the arena but the plans' own heap and page tables.
    pub(super) fn outside_entries(
        &self,
        data: &Dataset,
        micro_batches: usize,
        graphs: &[(String, Graph)],
    ) -> Vec<Entry> {
        let mut outside = self.outside.clone();
        if self.heap_bytes.is_some() {
            outside.extend(self.input_entries(data, &self.batch_types(data, micro_batches)));
        }
        let outputs = self.output_bytes(graphs);
        if outputs > 0 {
            outside.push(Entry::new(OUTPUTS, outputs, "of one batch, on their way out"));
        }
        outside
    }

    /// Memory of a run's input: batches of training and of the rest with their labels, weights and numbers, and what the
    /// pipelines take besides.
    fn input_entries(&self, data: &Dataset, types: &[BatchType]) -> Vec<Entry> {
        let largest = |trains: bool| {
            let kinds = types.iter().filter(|t| (t.kind == BatchKind::Train) == trains);
            kinds.map(|t| t.examples).max().unwrap_or(0)
        };
        let sizes = [largest(true), largest(false)];
        // The labels once more, share and weight of each row, and a number for each example.
        let label = self.most(|model| model.target().ty.bytes());
        let row_bytes = self.most(|model| step::rows(model).elements()).saturating_mul(8);
        let feed = label.saturating_add(row_bytes).saturating_add(4).saturating_mul(sizes[0].max(sizes[1]));
        let mut batches = Entry::new(BATCH_BUFFERS, feed, "batches on the way in, row weights");
        let mut others: Vec<Entry> = Vec::new();
        let pipelines = [self.training_batches(data), data.test.batch(sizes[1])];
        let pipelines = pipelines.map(|pipeline| pipeline.prefetch_within(0));
        for (pipeline, _) in pipelines.iter().zip(sizes).filter(|(_, size)| *size > 0) {
            let stacks = (pipeline.stack_bytes() > 0).then(|| {
                let how = format!("{} input workers", pipeline.worker_count());
                Entry::new(INPUT_STACKS, pipeline.stack_bytes(), how)
            });
            let shares =
                pipeline.bytes().into_iter().filter(|share| ![DATA_SET, CACHE].contains(&share.name));
            let entries = shares.map(|share| Entry::new(share.name, share.bytes, share.how));
            for entry in entries.chain(stacks) {
                let same = others.iter_mut().find(|e| e.name == entry.name);
                match (entry.name.as_str(), same) {
                    (BATCHES, _) => batches.bytes = batches.bytes.saturating_add(entry.bytes),
                    // Training's workers rest during an evaluation.
                    (DECODERS, Some(same)) if entry.bytes > same.bytes => *same = entry,
                    (DECODERS, Some(_)) => {}
                    (_, Some(same)) => same.bytes = same.bytes.saturating_add(entry.bytes),
                    (_, None) => others.push(entry),
                }
            }
        }
        others.insert(0, batches);
        others
    }

    /// Heap bytes of what evaluations report and predictions give. A run that trains predicts when its program asks for
    /// it, and holds the result itself.
    fn output_bytes(&self, batches: &[(String, Graph)]) -> usize {
        let trains = self.kinds.contains(&BatchKind::Train);
        let read = |name: &str| name.starts_with(step::OUTPUT) || name == step::PREDICTIONS;
        let of = |graph: &Graph| {
            let outputs = graph.outputs.iter().filter(|o| read(&o.name));
            outputs.map(|o| graph.ty(o.value).bytes()).sum::<usize>()
        };
        let reported = batches.iter().filter(|(_, g)| g.output(LOSS).is_some() || !trains);
        reported.map(|(_, graph)| of(graph)).max().unwrap_or(0)
    }

    /// As many batches as fit beside a plan, and as the pipeline may have.
    pub(crate) fn batches_ahead(&self, data: &Dataset, sheet: &LoadSheet) -> Option<Entry> {
        self.heap_bytes?;
        let pipeline = if self.kinds.contains(&BatchKind::Train) {
            self.training_batches(data)
        } else {
            data.test.batch(self.batch_types(data, 1).first()?.examples)
        };
        let spare = sheet.line_bytes.saturating_sub(sheet.total_bytes);
        let more = pipeline.clone().prefetch_within(spare).batches_ahead();
        let more = more.saturating_sub(pipeline.clone().prefetch_within(0).batches_ahead());
        let bytes = pipeline.batch_bytes().checked_mul(more).filter(|bytes| *bytes > 0)?;
        let how = format!("up to {more} × {} examples, where they are waited for", pipeline.batch_size());
        Some(Entry::new(BATCHES_AHEAD, bytes, how))
    }

    /// A pipeline as it runs beside a plan: the batches ahead are those of the part that the run is about.
    pub(crate) fn within(&self, sheet: &LoadSheet, kind: BatchKind, pipeline: Pipeline) -> Pipeline {
        if self.heap_bytes.is_none() {
            return pipeline;
        }
        let has_them = (kind == BatchKind::Train) == self.kinds.contains(&BatchKind::Train);
        let entry = sheet.outside.iter().find(|entry| has_them && entry.name == BATCHES_AHEAD);
        pipeline.prefetch_within(entry.map_or(0, |entry| entry.bytes))
    }
}
