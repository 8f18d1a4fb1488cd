//! Batches ahead of the step, where a pipeline finds out how many it needs: what a plan leaves of the line is theirs.

use super::{BatchKind, Trainer};
use plimsoll_data::{Dataset, Pipeline};
use plimsoll_plan::{Entry, LoadSheet};

/// The load sheet's entry for batches ahead that are only there if they turn out to be needed.
pub const BATCHES_AHEAD: &str = "batches ahead";

impl Trainer {
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
