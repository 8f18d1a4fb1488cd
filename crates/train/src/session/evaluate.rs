//! Evaluation and prediction.

use super::batch_plan::{OutputSlot, Run};
use super::{Control, Evaluation, Saved, Session};
use crate::metrics::{Accuracy, Decision, Metric, Outputs, Rows, Targets};
use crate::{BatchKind, Progress, TrainError};
use bytemuck::{cast_slice, cast_slice_mut};
use plimsoll_data::{Batch, Cursor, Pipeline};
use plimsoll_plan::{Ranks, WholeOutput};
use plimsoll_tensor::{Tensor, TensorType};

/// Groups that each process computes before all tell each other what they found.
const GROUPS_AT_ONCE: u64 = 16;

/// What was found in a group of examples, or in all.
#[derive(Default)]
struct Group {
    loss: f64,
    weights: f64,
    hits: Hits,
}

impl Group {
    /// Bytes of one.
    const BYTES: usize = 32;

    fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.weights += other.weights;
        self.hits.right += other.hits.right;
        self.hits.rows += other.hits.rows;
    }

    fn encode(&self, into: &mut Vec<u8>) {
        let words = [self.loss.to_bits(), self.weights.to_bits(), self.hits.right, self.hits.rows];
        words.iter().for_each(|word| into.extend(word.to_le_bytes()));
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at * 8 + i]));
        let [loss, weights] = [word(0), word(1)].map(f64::from_bits);
        Self { loss, weights, hits: Hits { right: word(2), rows: word(3) } }
    }
}

/// Processes that evaluate together.
#[derive(Clone, Copy)]
struct Together<'r> {
    ranks: &'r dyn Ranks,
    /// Whether each computes all groups, because parameters pass between them in every batch; else every so many-th one.
    alike: bool,
}

/// The sum over groups, in their order.
struct Groups<'r> {
    together: Option<Together<'r>>,
    /// Groups that ended.
    ended: u64,
    /// What this process found and did not tell yet, behind whether it wants to leave.
    own: Vec<u8>,
    sum: Group,
    left: Option<TrainError>,
    /// Steps that the run has done.
    step: u64,
}

impl<'r> Groups<'r> {
    fn new(together: Option<Together<'r>>, step: u64) -> Self {
        Self { together, ended: 0, own: vec![0], sum: Group::default(), left: None, step }
    }

    /// Whether this process computes the group that has not ended yet.
    fn is_own(&self) -> bool {
        // The others wait for one that has to compute with them until they heard that it leaves.
        let own = |Together { ranks, alike }| {
            let turn = self.ended % ranks.devices() as u64 == ranks.device() as u64;
            alike || turn && self.left.is_none()
        };
        self.together.is_none_or(own)
    }

    /// Ends the evaluation where that was asked for: at once, or, in one of several processes, when all have heard of it.
    fn leave(&mut self, asked: Result<(), TrainError>) -> Result<(), TrainError> {
        match (asked, self.together) {
            (Err(error), Some(_)) => self.left = Some(error),
            (asked, _) => return asked,
        }
        Ok(())
    }

    /// A group has ended.
    fn end(&mut self, group: Group) -> Result<(), TrainError> {
        let is_own = self.is_own();
        self.ended += 1;
        if self.together.is_none_or(|together| together.alike) {
            self.sum.add(&group);
        } else if is_own {
            group.encode(&mut self.own);
        }
        let Some(Together { ranks, alike }) = self.together else { return Ok(()) };
        let each = if alike { 1 } else { ranks.devices() as u64 };
        match self.ended.is_multiple_of(GROUPS_AT_ONCE * each) {
            true => self.meet(),
            false => Ok(()),
        }
    }

    /// All processes tell each other what they found since they last did.
    fn meet(&mut self) -> Result<(), TrainError> {
        let Some(Together { ranks, .. }) = self.together else { return Ok(()) };
        self.own[0] = u8::from(self.left.is_some());
        let all = ranks.gather(&self.own).map_err(TrainError::Ranks)?;
        self.own.truncate(1);
        if let Some(error) = self.left.take() {
            return Err(error);
        }
        if all.iter().any(|told| told.first() == Some(&1)) {
            return Err(TrainError::Interrupted { step: self.step, saved: Saved::Nowhere });
        }
        let most = all.iter().map(|told| told.len() / Group::BYTES).max().unwrap_or(0);
        for round in 0..most {
            for told in &all {
                let found = told.get(1..).and_then(|told| told.chunks_exact(Group::BYTES).nth(round));
                found.into_iter().for_each(|bytes| self.sum.add(&Group::decode(bytes)));
            }
        }
        Ok(())
    }

    fn total(mut self) -> Result<Group, TrainError> {
        self.meet()?;
        Ok(self.sum)
    }
}

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
        let ranks = self.trainer.connected().cloned().filter(|_| self.fetches_parameters());
        let together = ranks.as_deref().map(|ranks| Together { ranks, alike: true });
        self.evaluate_shared(part, metrics, together)
    }

    /// As [`Session::evaluate_with`], in every process of the run: where no metric needs to see all outputs, each of them computes a part.
    pub(super) fn evaluate_together(
        &mut self,
        part: &Pipeline,
        metrics: &mut [Box<dyn Metric>],
    ) -> Result<Evaluation, TrainError> {
        let Some(ranks) = self.trainer.connected().cloned() else { return self.evaluate_with(part, metrics) };
        let mut plans = self.batch_plans.iter().filter(|plan| plan.batch.kind == BatchKind::Evaluate);
        let sees_all = !metrics.is_empty() || plans.any(|plan| plan.output.is_some());
        // Groups are the same in all processes, if their batches are.
        let own = (self.batch_size(BatchKind::Evaluate) as u64).to_le_bytes();
        let all = ranks.gather(&own).map_err(TrainError::Ranks)?;
        let (same, alike) = (all.iter().all(|told| told[..] == own), self.fetches_parameters());
        if alike && !same {
            return Err(TrainError::Ranks("they evaluate in batches of different sizes".into()));
        }
        let shared = alike || !sees_all && same;
        let together = Together { ranks: ranks.as_ref(), alike };
        self.evaluate_shared(part, metrics, shared.then_some(together))
    }

    fn evaluate_shared(
        &mut self,
        part: &Pipeline,
        metrics: &mut [Box<dyn Metric>],
        together: Option<Together<'_>>,
    ) -> Result<Evaluation, TrainError> {
        let part = self.batches_of(part, BatchKind::Evaluate);
        let of = part.len().map(|len| len as u64);
        let mut batches = part.start_epoch(Cursor::default())?;
        // Losses of as many examples as a step has are added in f32, from batch to batch as inside one. So the sum is the same
        // whatever the size of a batch, and whoever computes it.
        let group_examples = self.trainer.step_examples() as u64;
        let classes = self.trainer.model.target().bound;
        let (mut groups, mut group) = (Groups::new(together, self.steps_done), Group::default());
        let (mut examples, mut accuracy) = (0u64, None);
        self.loss_before = 0.0;
        while let Some(batch) = batches.next()? {
            examples += batch.examples() as u64;
            if groups.is_own() {
                let plan = self.find_plan(BatchKind::Evaluate, batch)?;
                let (weight, _) = self.run_plan(plan, batch, Run::Plain)?;
                let found = self.read_loss(plan)?;
                group.weights += weight;
                match self.batch_plans[plan].continues_loss {
                    true => (group.loss, self.loss_before) = (found, found as f32),
                    false => group.loss += found * weight,
                }
                if let Some(OutputSlot { index, bytes, .. }) = self.batch_plans[plan].predictions {
                    let predictions = &mut self.output_buffer[..bytes / 4];
                    self.prepared.read_output(plan, index, cast_slice_mut(predictions))?;
                    group.hits.count(cast_slice(predictions), batch.labels());
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
            }
            let left = self.check_progress(&Progress::Evaluating { examples, of });
            groups.leave(left)?;
            if examples.is_multiple_of(group_examples) {
                groups.end(std::mem::take(&mut group))?;
                self.loss_before = 0.0;
            }
        }
        if !examples.is_multiple_of(group_examples) {
            groups.end(group)?;
        }
        let Group { loss, weights, hits } = groups.total()?;
        self.count_skipped(&batches);
        let loss = loss / weights.max(f64::MIN_POSITIVE);
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
        self.run_plan(plan, batch, Run::Plain)?;
        let read = |(i, output): (usize, &WholeOutput)| {
            let mut tensor = Tensor::zeros(output.ty.clone());
            self.prepared.read_output(plan, i, tensor.as_bytes_mut())?;
            Ok(tensor)
        };
        self.whole.plans[plan].outputs.iter().enumerate().map(read).collect()
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
