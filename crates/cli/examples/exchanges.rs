//! What the processes of a run pass to each other in a step, alone: measured over MPI, beside what is predicted.
//!
//!     mpirun -n 3 target/release/examples/exchanges --model mlp --batch 256 --shard gradients
//!
//! Each process plans the step, measures how fast a message goes around all of them, and then does the exchanges of its plan, without any
//! kernel, some times; all on one machine, whose clock they share. The first one prints a line of JSON: bytes that all receive in a step, the
//! median of the longest times of each round, and the prediction. `benches/ranks.py --exchanges` makes a table of it.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use clap::Parser;
use plimsoll::data::SyntheticSpec;
use plimsoll::nn::zoo::{ZOO, ZooOptions};
use plimsoll::plan::{Exchanged, Passing, Ranks, STATES, Transport, exchanges};
use plimsoll::prelude::*;
use plimsoll::train::{Reduction, Shard, communication};
use plimsoll_collective::{World, measure};
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::time::{Duration, SystemTime};

/// How long before the exchanges of a step all processes agree on when they begin: with more of them than cores that takes milliseconds.
const AHEAD_NS: u64 = 20_000_000;

/// Measures the exchanges of a step
#[derive(Parser)]
struct Flags {
    /// A model of the zoo, in its default sizes
    #[arg(long, value_name = "NAME", default_value = "mlp")]
    model: String,
    /// Examples of a step
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// As for `plimsoll train`
    #[arg(long, default_value_t)]
    shard: Shard,
    /// As for `plimsoll train`
    #[arg(long, default_value_t)]
    reduce: Reduction,
    /// How often the exchanges of a step are done
    #[arg(long, default_value_t = 21)]
    rounds: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let world = World::connect(Duration::from_secs(60), || 0, 0)?;
    let entry = ZOO.iter().find(|entry| entry.name == flags.model);
    let entry = entry.ok_or("--model is none of the zoo: `plimsoll zoo` lists them")?;
    let model = (entry.make)(&ZooOptions::default());
    let synthetic = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let options = OpenOptions { synthetic: Some(synthetic), examples: flags.batch, ..OpenOptions::default() };
    let data = open("synthetic", &options)?;
    let trainer = Trainer::new((entry.make)(&ZooOptions::default()), AdamW::new(1e-3)).threads(1);
    let trainer = trainer.batch(flags.batch).shard(flags.shard).reduction(flags.reduce);
    let plans = trainer.plan_ranks(&data, &vec![usize::MAX; world.size()])?;
    let (rank, own) = (world.rank(), &plans[world.rank()]);
    let states = own.shared_states()?;
    let passes = plans
        .iter()
        .enumerate()
        .map(|(rank, plan)| exchanges(&plan.plans[0].graph, (rank, world.size()), &states));
    let all_passes = passes.collect::<Result<Vec<_>, _>>()?;
    let largest = all_passes.iter().flatten().map(|pass| pass.bytes).max().unwrap_or(0);
    let together = all_passes.iter().map(|passes| places(passes).1).max().unwrap_or(0);
    let passes = &all_passes[rank];
    let cores = std::thread::available_parallelism()?.get();
    let mut buffers = Buffers::new(passes);
    let (mut measured, mut predicted) = (Vec::new(), Vec::new());
    for _ in 0..flags.rounds.max(1) {
        // The machine's speed changes: it is measured beside each round.
        let network = measure(world.as_ref(), cores, largest, together)?;
        predicted.push(communication(&plans, &network)?);
        // All begin at one time, which the first one chooses: nobody waits for another that comes late. They sleep until then, because there
        // may be more of them than cores.
        let begin = words(&world.gather(&(now_ns() + AHEAD_NS).to_le_bytes())?).next().unwrap_or(0);
        std::thread::sleep(Duration::from_nanos(begin.saturating_sub(now_ns())));
        buffers.pass(world.as_ref(), passes)?;
        let all = world.gather(&now_ns().saturating_sub(begin).to_le_bytes())?;
        let times = words(&all);
        measured.push(times.max().unwrap_or(0));
    }
    if rank == 0 {
        let ranks = plans.iter().enumerate();
        let received: u64 = ranks.map(|(rank, plan)| plan.plans[0].received_bytes(rank)).sum();
        let shared: usize = states.iter().map(|(_, bytes)| bytes * (world.size() - 1)).sum();
        let [measured, predicted] = [measured, predicted].map(|times| median(times) as f64 / 1e6);
        let bytes = received + shared as u64;
        println!(r#"{{"bytes": {bytes}, "measured_ms": {measured:.4}, "predicted_ms": {predicted:.4}}}"#);
    }
    Ok(())
}

/// The time of this machine's clock, which all its processes share.
fn now_ns() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64)
}

/// The number that each process told.
fn words(all: &[Vec<u8>]) -> impl Iterator<Item = u64> {
    all.iter().filter_map(|told| Some(u64::from_le_bytes(told[..].try_into().ok()?)))
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The place of each value that passes, and the end of the last one.
fn places(passes: &[Exchanged]) -> (Vec<Range<usize>>, usize) {
    let (mut sums, mut end) = (BTreeMap::new(), 0);
    let places = passes.iter().map(|pass| {
        let start = match pass.passing {
            // A state has the chain's number of another value, and pieces of which each lies elsewhere.
            Passing::Receive(_, message) | Passing::Send(_, message) | Passing::Hand(_, message)
                if &*pass.layer != STATES =>
            {
                *sums.entry((message.chain, pass.bytes)).or_insert(end)
            }
            _ => end,
        };
        end = end.max(start + pass.bytes);
        start..start + pass.bytes
    });
    (places.collect(), end)
}

/// Where a device sends from and receives into. Each value has a place of its own, as in an arena, and a sum is sent on from where it was
/// received.
struct Buffers {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
    added: Vec<f32>,
}

impl Buffers {
    fn new(passes: &[Exchanged]) -> Self {
        let (places, end) = places(passes);
        let added = passes.iter().filter(|pass| pass.passing == Passing::AllReduce);
        let most_added = added.map(|pass| pass.bytes).max().unwrap_or(0);
        Self { bytes: vec![1; end], places, added: vec![0.0; most_added / size_of::<f32>()] }
    }

    /// Does all exchanges of a step.
    fn pass(&mut self, world: &World, passes: &[Exchanged]) -> Result<(), String> {
        for (Exchanged { passing, bytes, .. }, place) in passes.iter().zip(&self.places) {
            let place = place.clone();
            match *passing {
                Passing::Receive(from, message) => world.receive(from, message, &mut self.bytes[place])?,
                // SAFETY: a sum is received anew only when all have what was sent of it.
                Passing::Send(to, message) => unsafe { world.send(to, message, &self.bytes[place]) }?,
                Passing::Hand(to, message) => world.hand(to, message, &self.bytes[place])?,
                Passing::Clear => self.bytes[place].fill(0),
                Passing::AllReduce => {
                    // SAFETY: nothing else touches them until the wait is over.
                    unsafe { world.all_reduce(&raw mut self.added[..bytes / size_of::<f32>()]) }?;
                    world.finish()?;
                }
            }
        }
        world.finish()
    }
}
