//! The graphs of a run's batch types, for any number of micro-batches.

use super::{BatchKind, BatchType, Replication, Trainer};
use crate::TrainError;
use crate::files::weights;
use plimsoll_data::Dataset;
use plimsoll_graph::{BatchRelation, Graph, Numerics};
use plimsoll_nn::step;
use plimsoll_transform::{
    LOSS, accumulate_split_batch_norm, check_same_ops, check_split, continue_sum, optimize_by_layer,
    sparse_parameters,
};
use std::path::Path;

/// Micro-batches per step at most.
const MAX_MICRO_BATCHES: usize = 1 << 16;

impl Trainer {
    /// Whether micro-batches have batch norm statistics of their own. On several devices they are those of the whole batch.
    pub(super) fn splits_statistics(&self) -> bool {
        let mixes = |graph: &Graph| graph.batch_relations().contains(&BatchRelation::Mixed);
        self.split_batch_norm
            && self.device_count() == 1
            && self.training_step().is_ok_and(|graph| mixes(&graph))
    }

    /// The numerics of the executor's target: what graphs are built by. Where layers are on several devices, what those have in common.
    pub(crate) fn numerics(&self) -> Numerics {
        let own = self.chosen_executor().target().numerics();
        match &self.replication {
            Some(Replication::Placed { devices, .. }) => {
                let all = (0..devices.len()).map(|at| devices.executor(at).target().numerics());
                all.fold(own, |common, other| common.common(&other))
            }
            _ => own,
        }
    }

    /// Micro-batches have a multiple of this many examples, so that splitting a batch changes no bit: the largest block of the
    /// models, which are powers of two. With statistics per micro-batch bits differ anyway, and two examples are enough.
    pub fn block(&self) -> usize {
        if self.splits_statistics() {
            2
        } else {
            self.max_over_models(|model| step::example_block(model, &self.numerics()))
        }
    }

    /// The numbers of micro-batches to try, at least one of them. Fewest first, because they cost least.
    pub(super) fn micro_batch_counts(&self) -> Vec<usize> {
        // Each micro-batch is split over all devices, at blocks.
        let block = self.block() * self.device_count();
        let fits = |k: &usize| {
            self.step_examples().is_multiple_of(*k) && (self.step_examples() / k).is_multiple_of(block)
        };
        match self.micro_batches {
            Some(asked) => vec![asked],
            None if !self.kinds.contains(&BatchKind::Train) => vec![1],
            None => {
                let max = (self.step_examples() / block.max(1)).min(MAX_MICRO_BATCHES);
                // At least one for each accumulated batch.
                let min = self.accumulate.max(1);
                let more = (2..=max / min).map(|k| k * min).filter(fits);
                std::iter::once(min).chain(more).collect()
            }
        }
    }

    /// The graph of a batch type, optimized and split into micro-batches.
    fn graph(&self, batch: BatchType, micro_batches: usize) -> Result<Graph, TrainError> {
        let BatchType { kind, examples, .. } = batch;
        let (model, optimizer) = (self.model_at(batch.model), self.optimizer.as_ref());
        let (policy, numerics) = (&self.policy, &self.numerics());
        let optimize = |graph| optimize_by_layer(graph, &|layer| self.layer_numerics(layer), &self.without);
        if kind != BatchKind::Train {
            let graph = match kind {
                BatchKind::Evaluate => step::evaluation_as(policy, numerics, model, examples, self.report)?,
                _ => step::prediction_as(policy, numerics, model, examples)?,
            };
            let graph = step::averaged(graph, optimizer);
            // A run that trains holds them whole.
            let trains = self.kinds.contains(&BatchKind::Train);
            let kept = |name: &str| self.sparse.get(name).copied().filter(|_| !trains);
            let graph = match &self.inference_pass {
                Some(pass) if !trains => pass(graph)?,
                _ => graph,
            };
            let graph = optimize(sparse_parameters(graph, kept)?)?;
            // Losses are summed from batch to batch, so that the size of a batch does not change the sum.
            return self.fetching(self.part_of(continue_sum(graph, LOSS, step::LOSS_BEFORE)?)?);
        }
        if let Some(replication) = self.replication.as_ref().filter(|_| self.device_count() > 1) {
            return self.replica_graph(replication.device(), batch, micro_batches);
        }
        let parts = self.micro_batches_of(examples, micro_batches);
        let training = |examples| step::training_as(policy, numerics, model, optimizer, examples);
        let graph = training(examples / parts)?;
        if parts == 1 {
            return self.part_of(optimize(graph)?);
        }
        if self.splits_statistics() {
            check_same_ops(&training(examples)?, &graph)?;
            return self.part_of(accumulate_split_batch_norm(&optimize(graph)?, parts)?);
        }
        check_split(&training(examples)?, &graph)?;
        self.part_of(self.in_micro_batches(&optimize(graph)?, parts)?)
    }

    /// The training step of a whole batch, before optimization.
    pub(crate) fn training_step(&self) -> Result<Graph, TrainError> {
        let (model, optimizer) = (self.model.as_ref(), self.optimizer.as_ref());
        Ok(step::training_as(&self.policy, &self.numerics(), model, optimizer, self.step_examples())?)
    }

    /// Refuses weights that [`crate::Session::load`] would refuse for their names, shapes and types, before anything is planned. Only
    /// the header of the file is read.
    ///
    /// ```
    /// # use plimsoll_nn::{Sgd, zoo};
    /// # use plimsoll_train::Trainer;
    /// let trainer = Trainer::new(zoo::lenet(), Sgd::new(0.1));
    /// assert!(trainer.check_weights("no/such/file.safetensors").is_err());
    /// ```
    pub fn check_weights(&self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        weights::check(path.as_ref(), &self.training_step()?, false)
    }

    /// As [`Trainer::check_weights`], for [`crate::Session::load_matching`]: refuses a file none of whose tensors fits.
    pub fn check_matching_weights(&self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        weights::check(path.as_ref(), &self.training_step()?, true)
    }

    /// Whether steps may be split into more than one micro-batch.
    pub fn can_split(&self) -> Result<bool, TrainError> {
        let Some(&parts) = self.micro_batch_counts().get(1) else { return Ok(false) };
        let whole = BatchType { kind: BatchKind::Train, model: 0, examples: self.step_examples() };
        match self.graph(whole, parts) {
            Ok(_) => Ok(true),
            Err(TrainError::Split(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The number of micro-batches of a step of `examples` examples: `micro_batches` for the full batch; for a remainder, the
    /// fewest that are multiples of a block and no larger than the full batch's.
    fn micro_batches_of(&self, examples: usize, micro_batches: usize) -> usize {
        let asked = micro_batches.clamp(1, examples.max(1));
        if asked == 1 || examples == self.step_examples() {
            return if examples.is_multiple_of(asked) { asked } else { 1 };
        }
        let (block, max) = (self.block(), self.step_examples() / asked);
        let fits = |k: &usize| {
            examples.is_multiple_of(*k) && (examples / k).is_multiple_of(block) && examples / k <= max
        };
        (1..=examples).find(fits).unwrap_or(1)
    }

    /// The graphs of every batch type.
    pub(super) fn batch_graphs(
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
