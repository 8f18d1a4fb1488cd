//! Runs of several processes: each is planned under its own line, on its own machine.
//!
//! A rank is a device of a replicated step: it holds the whole model and takes its part of every micro-batch. Ranks agree on the number
//! of micro-batches, since each of them is split over all; beside that, each plans alone.

use super::{BatchKind, BatchType, Replication, Trainer, TrainingPlan};
use crate::memory::{Tag, tagged};
use crate::{Control, TrainError};
use plimsoll_data::{Dataset, OwnRows, Pipeline};
use plimsoll_graph::Graph;
use plimsoll_plan::{
    BatchPart, Chooser, Connection, ExecutionPlan, Network, PlanError, PlanSet, Ranks, check_passes,
};
use plimsoll_transform::{OwnedState, Reduction, Shard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a rank says to the others after a step whose memory came too close to its line.
const OVERLOADED: u8 = u8::MAX;

impl Trainer {
    /// Makes this process one of several that train together: each takes its part of every batch, and all end with the bits of one
    /// process that trains alone. Parameters and optimizer state are in every process, unless they are sharded ([`Trainer::shard`]). All
    /// run the same program on the same data, and call [`Trainer::plan`], [`TrainingPlan::start`] and [`crate::Session::fit`] alike.
    ///
    /// In the validations of [`crate::Session::fit`] each computes a part of the batches, unless a metric sees all outputs. The first one
    /// alone writes checkpoints.
    pub fn ranks(self, ranks: Arc<dyn Ranks>) -> Self {
        let (rank, count) = (ranks.device(), ranks.devices());
        Self { replication: Some(Replication::Rank { rank, count, connection: Some(ranks) }), ..self }
    }

    /// Holds what [`Shard`] says in one process alone, instead of in each: every parameter is updated in the process that has its
    /// optimizer state, and the others get its new value, after the step or, with [`Shard::Parameters`], whenever they read it. It changes
    /// memory and time, never results, and a run may be resumed with another sharding. Checkpoints hold everything. All processes call
    /// [`crate::Session::checkpoint`] then; and with sharded parameters [`crate::Session::save`], [`crate::Session::evaluate`] and
    /// [`crate::Session::predict`], on the same batches.
    pub fn shard(self, shard: Shard) -> Self {
        Self { shard, ..self }
    }

    /// How sums over the batch are added up over processes. [`Reduction::Fast`] leaves it to the library that connects them
    /// ([`plimsoll_plan::Transport::all_reduce`]): results then depend on the number of processes. Checkpoints record it, and a run that
    /// is resumed otherwise says that its bits may differ.
    pub fn reduction(self, reduction: Reduction) -> Self {
        Self { reduction, ..self }
    }

    /// How sums are added up over processes, with their number where it decides bits.
    pub(crate) fn reduction_in_words(&self) -> String {
        match (self.reduction, self.device_count()) {
            (Reduction::Fast, devices @ 2..) => format!("{} over {devices} processes", self.reduction),
            _ => Reduction::Chain.to_string(),
        }
    }

    /// Plans a run of several processes without starting any: a plan for each, under its line.
    ///
    /// ```
    /// use plimsoll_data::datasets;
    /// use plimsoll_nn::{AdamW, zoo};
    /// use plimsoll_train::Trainer;
    /// let data = datasets::mnist()?;
    /// let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).threads(1);
    /// let plans = trainer.plan_ranks(&data, &[64 << 20, 48 << 20])?;
    /// assert!(plans.iter().zip([64 << 20, 48 << 20]).all(|(plan, line)| plan.load_sheet().total_bytes <= line));
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn plan_ranks(&self, data: &Dataset, lines: &[usize]) -> Result<Vec<TrainingPlan>, TrainError> {
        let rank = |(rank, &line): (usize, &usize)| {
            let place = Replication::Rank { rank, count: lines.len(), connection: None };
            Self { replication: Some(place), line_bytes: line, ..self.clone() }.accounted(data)
        };
        let ranks: Vec<Self> = lines.iter().enumerate().map(rank).collect();
        let Some(first) = ranks.first() else { return Ok(Vec::new()) };
        first.check_replicas()?;
        let plan_one = |(rank, trainer): (usize, &Self), parts: Option<usize>| {
            let mut plans = trainer.plan_one_rank(data, parts);
            if let Err(TrainError::Plan(PlanError::Infeasible(short))) = &mut plans {
                short.sheet.device = Some(format!("rank {rank}"));
            }
            plans
        };
        let plan = |parts: Option<usize>| {
            ranks.iter().enumerate().map(|rank| plan_one(rank, parts)).collect::<Result<Vec<_>, _>>()
        };
        let mut plans = plan(None)?;
        let most = plans.iter().map(parts).max().unwrap_or(1);
        if plans.iter().any(|plans| parts(plans) != most) {
            plans = plan(Some(most))?;
        }
        for at in 0..plans[0].plans.len() {
            let graphs: Vec<&Graph> = plans.iter().map(|plans| plans.plans[at].graph.as_ref()).collect();
            let name = &plans[0].plans[at].name;
            check_passes(&graphs)
                .map_err(|reason| TrainError::Ranks(format!("the plans `{name}`: {reason}")))?;
        }
        Ok(ranks
            .into_iter()
            .zip(plans)
            .map(|(rank, plans)| TrainingPlan::new(rank, data.clone(), plans))
            .collect())
    }

    /// As [`Trainer::plan`], in one of several processes.
    pub(super) fn plan_rank(&self, data: &Dataset, ranks: &dyn Ranks) -> Result<TrainingPlan, TrainError> {
        self.check_replicas()?;
        let trainer = self.accounted(data);
        let mut asked = None;
        loop {
            let (plans, all) =
                tell(ranks, trainer.plan_one_rank(data, asked), |plans| parts(plans).to_string())?;
            let most = all.iter().filter_map(|told| told.parse::<usize>().ok()).max().unwrap_or(1);
            if all.iter().all(|told| *told == most.to_string()) {
                return Ok(TrainingPlan::new(trainer, data.clone(), plans));
            }
            if asked == Some(most) {
                return Err(TrainError::Setting(
                    "the ranks do not agree on the number of micro-batches: set it".into(),
                ));
            }
            asked = Some(most);
        }
    }

    fn plan_one_rank(&self, data: &Dataset, asked: Option<usize>) -> Result<PlanSet, TrainError> {
        let trainer = Self { micro_batches: asked.or(self.micro_batches), ..self.clone() };
        let chooser = &mut Chooser::new(trainer.computing_line_bytes(), trainer.line_bytes);
        tagged(Tag::Planning, || trainer.plan_under(data, chooser))
    }

    /// The other processes of the run.
    pub(crate) fn connected(&self) -> Option<&Arc<dyn Ranks>> {
        match &self.replication {
            Some(Replication::Rank { connection, .. }) => connection.as_ref(),
            _ => None,
        }
    }

    /// Whether another process writes what the run writes.
    pub(crate) fn follows(&self) -> bool {
        self.connected().is_some_and(|ranks| ranks.device() > 0)
    }

    /// The connection of the plans: which part of the batch each of them takes.
    pub(crate) fn connection(
        &self,
        data: &Dataset,
        plans: &PlanSet,
        owned: &[OwnedState],
    ) -> Result<Option<Connection>, TrainError> {
        let Some(ranks) = self.connected() else { return Ok(None) };
        let types = self.planned_types(data, plans.plans.iter().map(|plan| plan.name.as_str()))?;
        let part = |(batch, plan): (&BatchType, &ExecutionPlan)| {
            let own = self.own_rows(batch.examples, plan.graph.micro_batches);
            (batch.kind == BatchKind::Train).then_some(BatchPart { first: own.first, stride: own.stride })
        };
        let of = |name: &str| owned.iter().find(|state| state.name == name && !state.alone);
        let owners = match owned {
            [] => Vec::new(),
            _ => plans.states.iter().map(|state| of(&state.name).map(|state| state.owner)).collect(),
        };
        let parts = types.iter().zip(&plans.plans).map(part).collect();
        Ok(Some(Connection { transport: ranks.clone(), parts, owners }))
    }

    /// The rows of a training batch that this process takes, in so many micro-batches.
    fn own_rows(&self, examples: usize, micro_batches: usize) -> OwnRows {
        let rank = self.replication.as_ref().map_or(0, Replication::device);
        let parts = self.device_parts(examples, micro_batches);
        OwnRows { first: parts[..rank].iter().sum(), rows: parts[rank], stride: parts.iter().sum() }
    }

    /// The batches to train on as this process reads them: one of several reads its own rows, of a batch of so many examples in as many
    /// micro-batches as it is told. How many rows those are does not depend on the number of micro-batches.
    pub(crate) fn batches_to_read(&self, data: &Dataset, micro_batches: impl Fn(usize) -> usize) -> Pipeline {
        let batches = self.training_batches(data);
        match self.replication {
            Some(Replication::Rank { count: 2.., .. }) => {
                batches.own_rows(|examples| self.own_rows(examples, micro_batches(examples)))
            }
            _ => batches,
        }
    }

    /// Whether this is one of several processes that each read whole batches.
    pub(super) fn all_read_all(&self, data: &Dataset) -> bool {
        let several = matches!(self.replication, Some(Replication::Rank { count: 2.., .. }));
        several
            && self.kinds.contains(&BatchKind::Train)
            && !self.batches_to_read(data, |_| 1).reads_own_rows()
    }
}

/// How long all that the processes of a run pass to each other in a step takes by itself, from the plans of all
/// ([`Trainer::plan_ranks`]).
pub fn communication(plans: &[TrainingPlan], network: &Network) -> Result<u64, TrainError> {
    let graphs: Vec<&Graph> =
        plans.iter().filter_map(|plans| plans.plans.first()).map(|plan| plan.graph.as_ref()).collect();
    let states = plans.first().map_or(Ok(Vec::new()), TrainingPlan::shared_states)?;
    plimsoll_plan::communication(&graphs, &states, network).map_err(TrainError::Ranks)
}

/// Micro-batches of the training step.
fn parts(plans: &PlanSet) -> usize {
    plans.plans.first().map_or(1, |plan| plan.graph.micro_batches)
}

/// Tells the other ranks what this one has, or why it has nothing: one that fails ends all, by name. Returns it with what each told.
pub(crate) fn tell<T>(
    ranks: &dyn Ranks,
    own: Result<T, TrainError>,
    words: impl FnOnce(&T) -> String,
) -> Result<(T, Vec<String>), TrainError> {
    let told = match &own {
        Ok(own) => words(own),
        Err(error) => format!("!{error}"),
    };
    let all = gather(ranks, told.as_bytes());
    // This one's own error comes first.
    let (own, all) = (own?, all?);
    let failed = all.iter().enumerate().find_map(|(rank, told)| Some((rank, told.strip_prefix('!')?)));
    match failed {
        Some((rank, reason)) => Err(TrainError::Rank { rank, reason: reason.into() }),
        None => Ok((own, all)),
    }
}

/// Text of every rank.
pub(crate) fn gather(ranks: &dyn Ranks, own: &[u8]) -> Result<Vec<String>, TrainError> {
    let all = ranks.gather(own).map_err(TrainError::Ranks)?;
    Ok(all.into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect())
}

/// Refuses ranks whose runs differ in what decides the results, or that stand at different steps.
pub(crate) fn check_equal(ranks: &dyn Ranks, own: &BTreeMap<String, String>) -> Result<(), TrainError> {
    let encoded = serde_json::to_string(own).map_err(|e| TrainError::Ranks(e.to_string()))?;
    for (rank, theirs) in gather(ranks, encoded.as_bytes())?.iter().enumerate() {
        let theirs: BTreeMap<String, String> = serde_json::from_str(theirs).unwrap_or_default();
        let differs = own.iter().find(|(key, value)| theirs.get(*key) != Some(value));
        if let Some((key, value)) = differs {
            let other = theirs.get(key).map_or("none", String::as_str);
            return Err(TrainError::Setting(format!(
                "rank {rank} has another {}, `{other}` instead of `{value}` of rank {}: all ranks take the same program, flags and data",
                key.replace('_', " "),
                ranks.device()
            )));
        }
    }
    Ok(())
}

/// The strongest request of all ranks, and the first one whose memory came too close to its line.
pub(crate) fn agree(
    ranks: Option<&Arc<dyn Ranks>>,
    control: Control,
    overloaded: bool,
) -> Result<(Control, Option<usize>), TrainError> {
    let Some(ranks) = ranks else { return Ok((control, overloaded.then_some(0))) };
    let own = if overloaded { OVERLOADED } else { control as u8 };
    let all = ranks.gather(&[own]).map_err(TrainError::Ranks)?;
    let overloaded = all.iter().position(|said| said.first() == Some(&OVERLOADED));
    let order = [Control::Continue, Control::Stop, Control::Restore, Control::Leave];
    let asked = |said: &Vec<u8>| order.into_iter().find(|&control| said.first() == Some(&(control as u8)));
    Ok((all.iter().filter_map(asked).max().unwrap_or(control).max(control), overloaded))
}
