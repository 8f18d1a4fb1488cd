//! The graphs of a run's batch types, in any number of micro-batches.

use super::{BatchKind, BatchType, Trainer};
use crate::TrainError;
use plimsoll_data::Dataset;
use plimsoll_graph::{BatchRelation, Graph};
use plimsoll_nn::step;
use plimsoll_transform::{accumulate, accumulate_split_batch_norm, check_same_ops, check_split, optimize};

/// Micro-batches tried at most.
const MOST_SPLITS: usize = 1 << 16;

impl Trainer {
    /// Whether steps are split with statistics of each micro-batch.
    pub(super) fn splits_statistics(&self) -> bool {
        let mixes = |graph: &Graph| graph.batch_relations().contains(&BatchRelation::Mixed);
        self.split_batch_norm && self.training_step().is_ok_and(|graph| mixes(&graph))
    }

    /// Examples that a micro-batch has a multiple of; of several models' blocks, powers of two, the largest. Where the bits differ anyhow, blocks do not matter; statistics need
    /// two examples.
    pub fn block(&self) -> usize {
        if self.splits_statistics() { 2 } else { self.most(step::example_block) }
    }

    /// The numbers of micro-batches to try, at least one, the fewest first: they cost least.
    pub(super) fn splits(&self) -> Vec<usize> {
        let block = self.block();
        let fits = |k: &usize| {
            self.step_examples().is_multiple_of(*k) && (self.step_examples() / k).is_multiple_of(block)
        };
        match self.micro_batches {
            Some(asked) => vec![asked],
            None if !self.kinds.contains(&BatchKind::Train) => vec![1],
            None => {
                let most = (self.step_examples() / block.max(1)).min(MOST_SPLITS);
                // At least one for each batch of a step.
                let least = self.accumulate.max(1);
                let more = (2..=most / least).map(|k| k * least).filter(fits);
                std::iter::once(least).chain(more).collect()
            }
        }
    }

    /// The graph of a batch type, optimized and split.
    fn graph(&self, batch: BatchType, micro_batches: usize) -> Result<Graph, TrainError> {
        let BatchType { kind, examples, .. } = batch;
        let model = self.model_at(batch.model);
        if kind != BatchKind::Train {
            let graph = match kind {
                BatchKind::Evaluate => step::evaluation(model, examples, self.report)?,
                _ => step::prediction(model, examples)?,
            };
            let graph = step::inference_as(&self.policy, graph)?;
            return Ok(optimize(step::averaged(graph, self.optimizer.as_ref()), &self.without)?);
        }
        let split = self.split(examples, micro_batches);
        let training = |examples| step::training_as(&self.policy, model, self.optimizer.as_ref(), examples);
        let graph = training(examples / split)?;
        if split == 1 {
            return Ok(optimize(graph, &self.without)?);
        }
        if self.splits_statistics() {
            check_same_ops(&training(examples)?, &graph)?;
            return Ok(accumulate_split_batch_norm(&optimize(graph, &self.without)?, split)?);
        }
        check_split(&training(examples)?, &graph)?;
        Ok(accumulate(&optimize(graph, &self.without)?, split)?)
    }

    /// The training step of a whole batch, as it was built.
    pub(crate) fn training_step(&self) -> Result<Graph, TrainError> {
        let (model, optimizer) = (self.model.as_ref(), self.optimizer.as_ref());
        Ok(step::training_as(&self.policy, model, optimizer, self.step_examples())?)
    }

    /// Whether there is a number of micro-batches other than one that steps may be split into.
    pub fn can_split(&self) -> Result<bool, TrainError> {
        let Some(&parts) = self.splits().get(1) else { return Ok(false) };
        let whole = BatchType { kind: BatchKind::Train, model: 0, examples: self.step_examples() };
        match self.graph(whole, parts) {
            Ok(_) => Ok(true),
            Err(TrainError::Split(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// In how many micro-batches a step of so many examples runs: as many as were asked for, or, for a remainder, the
    /// fewest that keep each no larger than the full batch's and end at a block.
    fn split(&self, examples: usize, micro_batches: usize) -> usize {
        let asked = micro_batches.clamp(1, examples.max(1));
        if asked == 1 || examples == self.step_examples() {
            return if examples.is_multiple_of(asked) { asked } else { 1 };
        }
        let (block, most) = (self.block(), self.step_examples() / asked);
        let fits = |k: &usize| {
            examples.is_multiple_of(*k) && (examples / k).is_multiple_of(block) && examples / k <= most
        };
        (1..=examples).find(fits).unwrap_or(1)
    }

    /// The graphs of every batch type, in so many micro-batches.
    pub(super) fn batches(
        &self,
        data: &Dataset,
        micro_batches: usize,
    ) -> Result<Vec<(String, Graph)>, TrainError> {
        let types = self.batch_types(data, micro_batches);
        let named = types.iter().map(|&batch| Ok((self.type_name(batch), self.graph(batch, micro_batches)?)));
        let graphs: Vec<(String, Graph)> = named.collect::<Result<_, TrainError>>()?;
        self.check_variants(&types, &graphs)?;
        Ok(graphs)
    }
}
