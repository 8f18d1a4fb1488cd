//! Runs of several processes: starting them, being one of them, and the plan of each.

use super::args::RunOptions;
use super::machine_flags::Device;
use super::page::{self, PageOptions};
use super::restart::{self, Attempt};
use super::setup::Setup;
use super::watching::WatchOptions;
use super::{Failure, answer, complain, hint, progress, say, train};
use clap::{ArgMatches, Args};
use plimsoll::Size;
use plimsoll::memory;
use plimsoll::plan::{Network, Ranks, in_words, time_in_words};
use plimsoll::train::{Reduction, Shard, StateBytes, TrainingPlan, communication};
use plimsoll_collective::{MpiError, World, launch, launched};
use plimsoll_machine::measure::loopback;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which processes a run has.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Memory and machine")]
pub struct RankOptions {
    /// Train in this many processes on this machine, which mpirun starts; `mpirun -n 4 plimsoll train` does the same, on
    /// several machines, too. Each has a line of its own, like --memory 1GiB,512MiB, and takes its part of every batch; never
    /// changes results. With `plan`: the plan of each, without MPI
    #[arg(long, value_name = "PROCESSES", allow_negative_numbers = true)]
    pub ranks: Option<usize>,
    /// How long a process waits for another before it gives up, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub rank_timeout: u64,
    /// Start the processes of --ranks again from the last checkpoint after one of them died or hung, at most this many times; needs
    /// --out, and --save-every decides how many steps are done again
    #[arg(long, value_name = "TIMES", allow_negative_numbers = true)]
    pub restart: Option<u32>,
    /// How a process begins that --restart started.
    #[arg(long, hide = true)]
    pub attempt: Option<Attempt>,
    /// What is in one process alone, instead of in each: none, optimizer (its state: ZeRO stage 1), gradients (these, too: stage 2), or
    /// parameters (these, too: stage 3, as FSDP does). Never changes results
    #[arg(long, value_name = "WHAT", default_value_t)]
    pub shard: Shard,
    /// How sums over the batch are added up over processes: chain, in the order of the examples, or fast, by the MPI library. Fast changes
    /// results with the number of processes [default: chain]
    #[arg(long, value_name = "HOW")]
    pub reduce: Option<Reduction>,
}

/// Processes of a run at most.
const MOST_RANKS: usize = 1024;
/// What the connection takes beside what it holds after its first messages, for others on their way.
const MESSAGES_BYTES: usize = 1 << 20;
/// What it takes besides to add numbers up itself: as many as it is given at once, and what it sums them with.
const SUMS_BYTES: usize = 3 << 19;

static WORLD: Mutex<Option<Arc<World>>> = Mutex::new(None);

fn slot() -> MutexGuard<'static, Option<Arc<World>>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processes that this one trains with.
pub fn world() -> Option<Arc<World>> {
    slot().clone()
}

/// The number of this process among those of its run.
pub fn rank() -> usize {
    slot().as_ref().map_or(0, |world| world.rank())
}

/// How many processes of the run share this machine.
pub fn on_this_machine() -> usize {
    let count = |name| std::env::var(name).ok()?.parse::<usize>().ok().filter(|&count| count > 0);
    let told =
        ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_TASKS_PER_NODE"].into_iter().find_map(count);
    slot().as_ref().map_or(1, |world| told.unwrap_or(world.size()).min(world.size()))
}

/// Trains: in this process, in processes that are started here, or as one of those that a launcher started.
pub fn run(options: &RunOptions, matches: Option<&ArgMatches>) -> Result<(), Failure> {
    check(options)?;
    restart::check(options)?;
    let options = &restart::options(options);
    match options.ranks.ranks {
        _ if launched() => {}
        None | Some(1) => return train::run(options, matches),
        Some(ranks) => {
            return match options.ranks.restart {
                Some(restarts) => restart::run(options, ranks, restarts),
                // Becomes the launcher, if there is one.
                None => Err(Failure::usage(launch(ranks, std::env::args_os().skip(1)))),
            };
        }
    }
    let time_out = Duration::from_secs(options.ranks.rank_timeout.max(1));
    let sums = match options.ranks.reduce.unwrap_or_default() {
        Reduction::Chain => 0,
        Reduction::Fast => SUMS_BYTES,
    };
    let measure = || memory::resident().unwrap_or(0);
    let connected = World::connect(time_out, measure, MESSAGES_BYTES + sums);
    let world = connected.map_err(|error| match error {
        // Another process may have died or hung: nothing of this one need change.
        MpiError::Call { .. } => Failure::run(error),
        MpiError::Library { .. } | MpiError::Symbol { .. } => Failure::usage(error),
    })?;
    if let Some(asked) = options.ranks.ranks.filter(|&asked| asked != world.size()) {
        let message =
            format!("--ranks {asked}, but the launcher started {}: leave --ranks out", world.size());
        return Err(Failure::usage(message));
    }
    if world.rank() == 0 {
        hint(&format!("{} processes, {}", world.size(), world.library()));
    } else {
        progress::silence();
    }
    *slot() = Some(world.clone());
    let mut own = options.clone();
    if world.rank() > 0 {
        (own.running.log, own.json) = (None, false);
        (own.page, own.watching) = (PageOptions::default(), WatchOptions::default());
    }
    let trained = train::run(&own, matches);
    slot().take();
    if let Err(failure) = trained {
        if !failure.message.is_empty() {
            complain(&format!("rank {}: {}", world.rank(), failure.message));
        }
        // The others may wait for this process.
        world.abort(failure.status);
        return Err(Failure { message: String::new(), ..failure });
    }
    Ok(())
}

/// Peaks of host memory by process, as a table and as JSON; none where there is one process.
pub fn peaks(planned: usize, measured: Option<usize>) -> Result<Option<(String, Value)>, Failure> {
    let Some(world) = world() else { return Ok(None) };
    let own = json!([planned, measured]).to_string();
    let all = world.gather(own.as_bytes()).map_err(Failure::run)?;
    let all =
        all.iter().map(|told| serde_json::from_slice::<(usize, Option<usize>)>(told).unwrap_or_default());
    let (mut table, mut objects) = (String::new(), Vec::new());
    for (rank, (planned, measured)) in all.enumerate() {
        let words = measured.map_or("unknown".into(), in_words);
        let line = if rank > 0 { "\n" } else { "" };
        let _ = write!(table, "{line}rank {rank}: planned peak {}, measured {words}", in_words(planned));
        objects.push(json!({ "planned_peak_bytes": planned, "measured_peak_bytes": measured }));
    }
    Ok(Some((table, Value::Array(objects))))
}

/// Refuses what processes cannot have.
fn check(options: &RunOptions) -> Result<(), Failure> {
    match options.ranks.ranks {
        Some(0) => return Err(Failure::usage("--ranks must be at least 1")),
        Some(MOST_RANKS..) => return Err(Failure::usage(format!("--ranks must be below {MOST_RANKS}"))),
        Some(_) if options.devices.are_logical() => {
            return Err(Failure::usage(
                "--replicas and --place are for devices of one process: leave them or --ranks out",
            ));
        }
        Some(_) if options.machine.device != Device::Cpu => {
            return Err(Failure::usage("--ranks train on the cpu: leave --device out"));
        }
        _ => {}
    }
    let (lines, ranks) = (options.machine.memory.count(), options.ranks.ranks);
    match ranks.or_else(|| (!launched()).then_some(1)) {
        Some(ranks) if lines > 1 && lines != ranks => Err(Failure::usage(format!(
            "--memory has {lines} lines, and there {} {ranks} process{}: give one for each, or one for all",
            if ranks == 1 { "is" } else { "are" },
            if ranks == 1 { "" } else { "es" }
        ))),
        _ => Ok(()),
    }
}

/// The plans of all ranks, as `plan --ranks` prints them, and as JSON.
pub fn plans(options: &RunOptions, setup: &Setup) -> Result<Option<Value>, Failure> {
    check(options)?;
    let Some(ranks) = options.ranks.ranks.filter(|&ranks| ranks > 1) else { return Ok(None) };
    let available = setup.available_bytes.unwrap_or(usize::MAX);
    let line = |rank| match options.machine.memory.of(rank) {
        Size::Bytes(bytes) => bytes,
        // The processes share this machine.
        share => share.bytes(available) / ranks,
    };
    let lines: Vec<usize> = (0..ranks).map(line).collect();
    let plans = setup.trainer.plan_ranks(&setup.data, &lines).map_err(|e| answer(e, options.json))?;
    let rows =
        plans.iter().enumerate().map(|(rank, plan)| Row::new(rank, plan)).collect::<Result<Vec<_>, _>>()?;
    let exchanges = Exchanges::new(options, &plans, &rows)?;
    if !options.json {
        if options.sheet {
            plans
                .iter()
                .enumerate()
                .for_each(|(rank, plan)| say(&format!("rank {rank}\n{}", plan.load_sheet())));
        }
        say(&Row::HEADER.join(" "));
        rows.iter().for_each(|row| say(&row.in_words()));
        let sums = match options.ranks.reduce.unwrap_or_default() {
            Reduction::Chain => "Sums over the batch pass from rank to rank".to_string(),
            Reduction::Fast => format!(
                "The MPI library adds sums up, so results depend on the number of ranks ({ranks} here)"
            ),
        };
        say(&format!(
            "\n{sums}; what a rank receives in a step is told above. The time is that of computing and of copying what it receives."
        ));
        say(&exchanges.in_words());
        if options.ranks.shard != Shard::None {
            let (whole, _) = plans[0].whole_state_bytes()?;
            let even = whole.sharded(ranks, options.ranks.shard).total() as usize;
            say(&format!(
                "Parameters, gradients and optimizer state take {} on one process, and {} on each where they are dealt out evenly.",
                in_words(whole.total() as usize),
                in_words(even)
            ));
        }
    }
    if let Some(file) = options.page.file(None)? {
        page::write(&page::view_of_ranks(options, setup, &plans)?, &file)?;
    }
    let rows: Vec<Value> = rows.iter().map(Row::object).collect();
    Ok(Some(json!({ "ranks": rows, "exchanges": exchanges.object() })))
}

/// All that the ranks pass to each other in a step.
struct Exchanges {
    received: u64,
    /// The way between them and how long it takes by itself, where that is known; and whether the way was measured here.
    time: Option<(Network, u64, bool)>,
}

impl Exchanges {
    fn new(options: &RunOptions, plans: &[TrainingPlan], rows: &[Row]) -> Result<Self, Failure> {
        let network = match &options.elsewhere {
            Some(elsewhere) => elsewhere.network().map(|network| (network, false)),
            None => loopback().ok().map(|(bytes_per_second, latency_ns)| {
                let at_once = std::thread::available_parallelism().map_or(1, usize::from);
                (Network { bytes_per_second, latency_ns, at_once, measured: Vec::new() }, true)
            }),
        };
        let time = network.map(|(network, measured)| {
            communication(plans, &network).map(|time_ns| (network, time_ns, measured))
        });
        Ok(Self { received: rows.iter().map(|row| row.received).sum(), time: time.transpose()? })
    }

    fn in_words(&self) -> String {
        let bytes = in_words(self.received as usize);
        let Some((network, time_ns, measured)) = &self.time else {
            return format!(
                "All ranks together receive {bytes}; the machine file says nothing of a network: add [network] for the time that it takes."
            );
        };
        let (time, latency) = (time_in_words(*time_ns), time_in_words(network.latency_ns));
        let rate = network.bytes_per_second / 1e9;
        let from = if *measured {
            "as measured between processes of this machine"
        } else {
            "as the machine file says"
        };
        format!(
            "All ranks together receive {bytes}. By itself that takes {time}, at {rate:.2} GB/s and {latency} for each message, {from}."
        )
    }

    fn object(&self) -> Value {
        let time = self.time.as_ref().map(|(network, time_ns, _)| (network, time_ns));
        json!({
            "received_bytes": self.received, "predicted_us": time.map(|(_, ns)| ns / 1_000),
            "bytes_per_second": time.map(|(network, _)| network.bytes_per_second),
            "latency_ns": time.map(|(network, _)| network.latency_ns),
        })
    }
}

/// A rank in the table of plans.
struct Row {
    rank: usize,
    planned: usize,
    line: usize,
    arena: usize,
    state: StateBytes,
    received: u64,
    step_us: u64,
}

impl Row {
    const HEADER: [&str; 9] = [
        "rank ",
        "   planned",
        "      line",
        "     arena",
        "parameters",
        " gradients",
        " optimizer",
        "    receives",
        "        step",
    ];

    fn new(rank: usize, plan: &TrainingPlan) -> Result<Self, Failure> {
        let sheet = plan.load_sheet();
        let sums = plan.plans.first().map_or(0, |plan| plan.received_bytes(rank));
        let (_, parameters) = plan.whole_state_bytes()?;
        Ok(Self {
            rank,
            planned: sheet.total_bytes,
            line: sheet.line_bytes,
            arena: plan.arena_bytes,
            state: plan.state_bytes(),
            received: sums + parameters,
            step_us: sheet.plans.first().map_or(0, |plan| plan.predicted_us),
        })
    }

    fn in_words(&self) -> String {
        let StateBytes { parameters, gradients, optimizer } = self.state;
        let [planned, line, arena] = [self.planned, self.line, self.arena].map(in_words);
        let [parameters, gradients, optimizer, received] =
            [parameters, gradients, optimizer, self.received].map(|bytes| in_words(bytes as usize));
        let step = time_in_words(self.step_us.saturating_mul(1_000));
        format!(
            "{:<5} {planned:>10} {line:>10} {arena:>10} {parameters:>10} {gradients:>10} {optimizer:>10} {received:>12} {step:>12}",
            self.rank
        )
    }

    fn object(&self) -> Value {
        json!({
            "rank": self.rank, "planned_peak_bytes": self.planned, "line_bytes": self.line, "arena_bytes": self.arena,
            "parameter_bytes": self.state.parameters, "gradient_bytes": self.state.gradients,
            "optimizer_bytes": self.state.optimizer, "received_bytes": self.received, "predicted_step_us": self.step_us,
        })
    }
}
