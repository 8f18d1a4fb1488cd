//! Evaluation and prediction.

use super::batch_plan::OutputSlot;
use super::{Control, Evaluation, Saved, Session};
use crate::metrics::{Accuracy, Decision, Metric, Outputs, Rows, Targets};
use crate::{BatchKind, Progress, TrainError};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_data::{Batch, Cursor, Pipeline};
use plimsoll_graph::Output;
use plimsoll_tensor::{Tensor, TensorType};

/// Counts predictions that are the label.
#[derive(Default)]
struct Hits {
    right: u64,
    rows: u64,
}

impl Hits {
    /// Compares predictions with labels, both i32. Rows with a negative label are unlabelled and left out.
    fn count(&mut self, predictions: &[i32], labels: &[u8]) {
        let labels = labels.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        for (&prediction, label) in predictions.iter().zip(labels).filter(|(_, label)| *label >= 0) {
            self.rows += 1;
            self.right += u64::from(prediction == label);
        }
    }

    /// The fraction of the labelled rows.
    fn accuracy(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.right as f64 / self.rows as f64)
    }
}

impl Session {
    /// Loss and, for classes, accuracy over one epoch of a part of the data.
    pub fn evaluate(&mut self, part: &Pipeline) -> Result<Evaluation, TrainError> {
        self.evaluate_with(part, &mut [])
    }

    /// As [`Session::evaluate`], with metrics. They need plans that output the model's scores or values
    /// ([`crate::Trainer::report`]).
    pub fn evaluate_with(
        &mut self,
        part: &Pipeline,
        metrics: &mut [Box<dyn Metric>],
    ) -> Result<Evaluation, TrainError> {
        let part = self.batches_of(part, BatchKind::Evaluate);
        let of = part.len().map(|len| len as u64);
        let mut batches = part.start_epoch(Cursor::default())?;
        let (mut loss, mut weights, mut examples) = (0.0, 0.0, 0u64);
        // Losses of as many examples as a step has are added in f32, from batch to batch as inside one. So the sum is the same
        // whatever the size of a batch.
        let group = self.trainer.step_examples() as u64;
        self.loss_before = 0.0;
        let classes = self.trainer.model.target().bound;
        let (mut hits, mut accuracy) = (Hits::default(), None);
        while let Some(batch) = batches.next()? {
            let plan = self.find_plan(BatchKind::Evaluate, batch)?;
            let (weight, _) = self.run_plan(plan, batch, false)?;
            let found = self.read_loss(plan)?;
            weights += weight;
            examples += batch.examples() as u64;
            if !self.batch_plans[plan].continues_loss {
                loss += found * weight;
            } else if examples.is_multiple_of(group) {
                loss += found;
                self.loss_before = 0.0;
            } else {
                self.loss_before = found as f32;
            }
            if let Some(OutputSlot { index, bytes, .. }) = self.batch_plans[plan].predictions {
                let predictions = &mut self.output_buffer[..bytes / 4];
                self.prepared.read_output(plan, index, cast_slice_mut(predictions))?;
                hits.count(cast_slice(predictions), batch.labels());
            }
            // A score for every class of every label.
            let scores = self.batch_plans[plan].output.map_or(0, |slot| slot.bytes / size_of::<f32>());
            let labels = batch.labels().len() / size_of::<i32>();
            let scored = classes.filter(|classes| scores == labels * classes && scores > 0);
            let own = scored
                .map(|classes| accuracy.get_or_insert_with(|| Accuracy::new(Decision::highest(classes))));
            if own.is_some() || !metrics.is_empty() {
                self.update_metrics(plan, batch, own, metrics)?;
            }
            self.check_progress(&Progress::Evaluating { examples, of })?;
        }
        self.count_skipped(&batches);
        let loss = (loss + f64::from(self.loss_before)) / weights.max(f64::MIN_POSITIVE);
        let accuracy = hits.accuracy().or(accuracy.map(|accuracy| accuracy.value()));
        Ok(Evaluation { loss, accuracy, examples, classes: classes.is_some() })
    }

    /// Gives the outputs of the batch that ran last to metrics.
    fn update_metrics(
        &mut self,
        plan: usize,
        batch: &Batch,
        accuracy: Option<&mut Accuracy>,
        metrics: &mut [Box<dyn Metric>],
    ) -> Result<(), TrainError> {
        let OutputSlot { index, bytes, .. } = self.batch_plans[plan].output.ok_or_else(|| {
            TrainError::Setting(
                "metrics need the model's output: plan with `Trainer::report(Report::Output)`".into(),
            )
        })?;
        let values = &mut self.output_buffer[..bytes / 4];
        self.prepared.read_output(plan, index, cast_slice_mut(values))?;
        let labels = self.feed.labels();
        let (targets, width) = match self.trainer.model.target().bound {
            Some(_) => (Targets::Classes(labels), values.len() / labels.len().max(1)),
            None => (Targets::Values(cast_slice(labels)), values.len() / batch.examples().max(1)),
        };
        let outputs = Outputs::Scores { values, width };
        // Where one row of the loss has several labels, its weight is not theirs.
        let weights = self.feed.raw_weights();
        let per_label = matches!(targets, Targets::Classes(labels) if labels.len() == weights.len());
        let rows = Rows::new(outputs, targets, if per_label { weights } else { &[] })?;
        accuracy.map_or(Ok(()), |accuracy| accuracy.update(&rows))?;
        metrics.iter_mut().try_for_each(|metric| metric.update(&rows))?;
        Ok(())
    }

    /// The model's outputs for one batch, of any number of examples: where none of that size was planned, it runs in batches
    /// of the planned size, the last one filled up.
    pub fn predict(&mut self, batch: &Batch) -> Result<Vec<Tensor>, TrainError> {
        let unplanned = match self.find_plan(BatchKind::Predict, batch) {
            Ok(plan) => return self.predict_planned(plan, batch),
            Err(error) => error,
        };
        let Some(model) = self.feed.model_of(batch) else { return Err(unplanned) };
        let planned = self.batch_plans.iter().map(|plan| plan.batch);
        let planned = planned.filter(|batch| batch.kind == BatchKind::Predict && batch.model == model);
        let Some(size) = planned.map(|batch| batch.examples).max() else { return Err(unplanned) };
        let mut outputs: Vec<Tensor> = Vec::new();
        for start in (0..batch.examples()).step_by(size) {
            let part = batch.part(start, size);
            let plan = self.find_plan(BatchKind::Predict, &part)?;
            for (i, output) in self.predict_planned(plan, &part)?.iter().enumerate() {
                if start == 0 {
                    let [rows, shape @ ..] = &output.ty().shape[..] else { return Err(unplanned) };
                    let rows = rows / size * batch.examples();
                    let ty = TensorType::new(output.ty().dtype, [&[rows], shape].concat());
                    outputs.push(Tensor::zeros(ty));
                }
                let (each, all) = (output.as_bytes().len() / size, outputs[i].as_bytes_mut());
                let (from, to) = (start * each, ((start + size) * each).min(all.len()));
                all[from..to].copy_from_slice(&output.as_bytes()[..to - from]);
            }
        }
        Ok(outputs)
    }

    /// The outputs for a batch of a plan's size.
    fn predict_planned(&mut self, plan: usize, batch: &Batch) -> Result<Vec<Tensor>, TrainError> {
        self.run_plan(plan, batch, false)?;
        let graph = &self.plans.plans[plan].graph;
        let read = |(i, output): (usize, &Output)| {
            let mut tensor = Tensor::zeros(graph.ty(output.value).clone());
            self.prepared.read_output(plan, i, tensor.as_bytes_mut())?;
            Ok(tensor)
        };
        graph.outputs.iter().enumerate().map(read).collect()
    }

    /// The model's outputs for one epoch of a part of the data, given to `each` batch by batch, in order.
    pub fn predict_each<E: From<TrainError>>(
        &mut self,
        part: &Pipeline,
        mut each: impl FnMut(&[Tensor]) -> Result<(), E>,
    ) -> Result<(), E> {
        let part = self.batches_of(part, BatchKind::Predict);
        let (of, mut examples) = (part.len().map(|len| len as u64), 0);
        let mut batches = part.start_epoch(Cursor::default()).map_err(TrainError::from)?;
        while let Some(batch) = batches.next().map_err(TrainError::from)? {
            examples += batch.examples() as u64;
            each(&self.predict(batch)?)?;
            self.check_progress(&Progress::Predicting { examples, of })?;
        }
        self.count_skipped(&batches);
        Ok(())
    }

    /// Tells the trainer's listener of progress; an error if it wants to leave.
    fn check_progress(&self, progress: &Progress) -> Result<(), TrainError> {
        match self.trainer.report_progress(progress) {
            Control::Leave => Err(TrainError::Interrupted { step: self.steps_done, saved: Saved::Nowhere }),
            _ => Ok(()),
        }
    }

    /// A part of the data in batches of the planned size, prefetched within what the plan accounts for.
    fn batches_of(&self, part: &Pipeline, kind: BatchKind) -> Pipeline {
        self.trainer.prefetch_within_plan(&self.plans.sheet, kind, part.batch(self.batch_size(kind)))
    }
}
