//! Runs of several processes, here threads with channels between them: the bits of one process, lines that differ, what is refused,
//! and stops that all ranks follow.

use plimsoll_cpu::Cpu;
use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{BatchMark, Graph, Node, Op, Role};
use plimsoll_nn::zoo::{Gpt, mlp_of, resnet20_of};
use plimsoll_nn::{AdamW, Clip, Model, Policy, Precision, Recipe};
use plimsoll_plan::{Message, Ranks, StateHome, StatePlacement, Transport, check_passes};
use plimsoll_runtime::spill::SpillFile;
use plimsoll_testing::Scratch;
use plimsoll_train::{
    Control, Names, Progress, Reduction, Session, Shard, StateBytes, TrainError, TrainEvent, TrainState,
    Trainer, checkpoints,
};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const GPT: Gpt = Gpt {
    layers: 2,
    width: 32,
    heads: 2,
    context: 16,
    vocabulary: 64,
    gpt2: false,
    key_heads: None,
    window: None,
};

/// What was sent: from, to and chain, in order.
type Posted = HashMap<(usize, usize, u32), Vec<Vec<u8>>>;

/// Ranks that are threads. What is sent is copied.
#[derive(Default)]
struct Post {
    posted: Mutex<Posted>,
    /// Bytes of all that was gathered.
    gathered: Mutex<Vec<usize>>,
    arrived: Condvar,
}

struct Thread {
    post: Arc<Post>,
    rank: usize,
    count: usize,
}

/// The chain of what is gathered.
const GATHERED: u32 = u32::MAX;
/// The chain of what is added up over all.
const REDUCED: u32 = u32::MAX - 1;

impl Thread {
    fn post(&self, to: usize, chain: u32, bytes: &[u8]) {
        let mut posted = self.post.posted.lock().unwrap();
        posted.entry((self.rank, to, chain)).or_default().push(bytes.to_vec());
        self.post.arrived.notify_all();
    }

    fn take(&self, from: usize, chain: u32) -> Result<Vec<u8>, String> {
        let mut posted = self.post.posted.lock().unwrap();
        loop {
            if let Some(first) = posted.get_mut(&(from, self.rank, chain)).filter(|all| !all.is_empty()) {
                return Ok(first.remove(0));
            }
            let (found, waited) = self.post.arrived.wait_timeout(posted, Duration::from_secs(60)).unwrap();
            posted = found;
            if waited.timed_out() {
                return Err(format!("rank {from} is silent"));
            }
        }
    }
}

impl Transport for Thread {
    fn device(&self) -> usize {
        self.rank
    }

    fn devices(&self) -> usize {
        self.count
    }

    unsafe fn send(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String> {
        self.post(to, message.chain, bytes);
        Ok(())
    }

    fn hand(&self, to: usize, message: Message, bytes: &[u8]) -> Result<(), String> {
        self.post(to, message.chain, bytes);
        Ok(())
    }

    fn receive(&self, from: usize, message: Message, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(&self.take(from, message.chain)?);
        Ok(())
    }

    unsafe fn all_reduce(&self, numbers: *mut [f32]) -> Result<(), String> {
        // SAFETY: the promise of the caller.
        let numbers = unsafe { &mut *numbers };
        let own: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let all: Vec<Vec<u8>> = {
            (0..self.count).for_each(|to| self.post(to, REDUCED, &own));
            (0..self.count).map(|from| self.take(from, REDUCED)).collect::<Result<_, _>>()?
        };
        numbers.fill(0.0);
        // From the last one on: not the order of the chain.
        for bytes in all.iter().rev() {
            let found = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            numbers.iter_mut().zip(found).for_each(|(sum, number)| *sum += number);
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Ranks for Thread {
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.post.gathered.lock().unwrap().push(bytes.len());
        (0..self.count).for_each(|to| self.post(to, GATHERED, bytes));
        (0..self.count).map(|from| self.take(from, GATHERED)).collect()
    }

    fn bytes(&self) -> usize {
        1 << 20
    }
}

/// Runs `work` on every rank, and returns what each found.
pub(crate) fn on_ranks<T: Send>(count: usize, work: impl Fn(Arc<dyn Ranks>) -> T + Sync) -> Vec<T> {
    on_ranks_of(&Arc::new(Post::default()), count, work)
}

/// As [`on_ranks`], with what they pass to each other.
fn on_ranks_of<T: Send>(post: &Arc<Post>, count: usize, work: impl Fn(Arc<dyn Ranks>) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |rank| {
            let (post, work) = (post.clone(), &work);
            scope.spawn(move || work(Arc::new(Thread { post, rank, count })))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn examples(model: &dyn Model, count: usize) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), count, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

pub(crate) fn trainer(model: impl Model + 'static, precision: Precision, batch: usize) -> Trainer {
    let trainer = Trainer::new(model, AdamW::new(1e-2)).precision(Policy::new(precision)).batch(batch);
    trainer.epochs(1).threads(1).line(usize::MAX)
}

/// The losses, and every state after the run.
pub(crate) fn bits(session: &mut Session) -> Vec<Vec<u8>> {
    let mut losses = Vec::new();
    session
        .fit_with(&mut |event| {
            if let TrainEvent::Step { loss, .. } = event {
                losses.extend(loss.to_ne_bytes());
            }
            Control::Continue
        })
        .unwrap();
    let names: Vec<String> = session.plans().states.iter().map(|state| state.name.clone()).collect();
    let states = names.iter().map(|name| session.state(name).unwrap().as_bytes().to_vec());
    std::iter::once(losses).chain(states).collect()
}

#[test]
fn several_processes_end_in_the_bits_of_one() {
    let mlp = || mlp_of(&[20], &[32, 32], 5);
    for precision in [Precision::F32, Precision::BF16] {
        // A remainder in the last step, which not every rank takes a part of.
        let of_mlp = || (trainer(mlp(), precision, 384), examples(&mlp(), 2 * 384 + 40));
        let of_gpt = || (trainer(GPT, precision, 24), examples(&GPT, 53));
        let alone =
            |(trainer, data): (Trainer, Dataset)| bits(&mut trainer.plan(&data).unwrap().start().unwrap());
        let (mlp, gpt) = (alone(of_mlp()), alone(of_gpt()));
        for (count, micro_batches) in [(2, 1), (2, 2), (3, 1)] {
            let found = on_ranks(count, |ranks| {
                let run = |(trainer, data): (Trainer, Dataset)| {
                    let trainer = trainer.ranks(ranks.clone()).micro_batches(micro_batches);
                    bits(&mut trainer.plan(&data).unwrap().start().unwrap())
                };
                (run(of_mlp()), run(of_gpt()))
            });
            for (rank, (of_mlp, of_gpt)) in found.into_iter().enumerate() {
                assert!(of_mlp == mlp, "mlp, {precision}, rank {rank} of {count}, {micro_batches}");
                assert!(of_gpt == gpt, "gpt, {precision}, rank {rank} of {count}, {micro_batches}");
            }
        }
    }
}

#[test]
fn batch_norm_over_processes_has_the_bits_of_one() {
    let model = || resnet20_of([8, 8, 3], 10);
    // The last step is a block and a half: one rank takes a part of a block, and the third one nothing.
    let run = || (trainer(model(), Precision::F32, 96), examples(&model(), 96 + 48));
    let (alone, data) = run();
    let alone = bits(&mut alone.plan(&data).unwrap().start().unwrap());
    for count in [2, 3] {
        let found = on_ranks(count, |ranks| {
            let (trainer, data) = run();
            bits(&mut trainer.ranks(ranks).plan(&data).unwrap().start().unwrap())
        });
        assert!(found.iter().all(|found| *found == alone), "{count}");
    }
}

#[test]
fn each_rank_keeps_its_own_line_and_all_agree_on_micro_batches() {
    let run = || trainer(GPT, Precision::F32, 48);
    let data = || examples(&GPT, 96);
    let alone = bits(&mut run().plan(&data()).unwrap().start().unwrap());
    let free = on_ranks(2, |ranks| run().ranks(ranks).plan(&data()).unwrap().load_sheet().total_bytes);
    let line = free[1] * 9 / 10;
    let found = on_ranks(2, |ranks| {
        let line = if ranks.device() == 1 { line } else { usize::MAX };
        let plan = run().line(line).ranks(ranks).plan(&data()).unwrap();
        assert!(plan.load_sheet().total_bytes <= line);
        let parts = plan.plans[0].graph.micro_batches;
        (parts, bits(&mut plan.start().unwrap()))
    });
    assert_eq!(found[0].0, found[1].0);
    assert!(found.iter().all(|(_, bits)| *bits == alone));
    let planned = run().plan_ranks(&data(), &[usize::MAX, line]).unwrap();
    assert_eq!(planned.iter().map(|plan| plan.plans[0].graph.micro_batches).max(), Some(found[0].0));
}

#[test]
fn a_rank_whose_line_is_too_low_ends_the_others_by_name() {
    let errors = on_ranks(2, |ranks| {
        let line = if ranks.device() == 1 { 64 << 10 } else { usize::MAX };
        let run = trainer(GPT, Precision::F32, 24).line(line).ranks(ranks);
        run.plan(&examples(&GPT, 24)).err().map(|error| error.to_string()).unwrap()
    });
    assert!(errors[0].starts_with("rank 1: ") && !errors[1].starts_with("rank"), "{errors:?}");
}

#[test]
fn ranks_that_differ_are_refused_by_what_differs() {
    let errors = on_ranks(3, |ranks| {
        let seed = if ranks.device() == 2 { 7 } else { 0 };
        let run = trainer(GPT, Precision::F32, 24).seed(seed).ranks(ranks);
        let mut session = run.plan(&examples(&GPT, 24)).unwrap().start().unwrap();
        session.fit().unwrap_err().to_string()
    });
    assert!(errors[0].starts_with("rank 2 has another seed, `7` instead of `0`"), "{}", errors[0]);
    assert!(errors[2].starts_with("rank 0 has another seed, `0` instead of `7`"), "{}", errors[2]);
}

#[test]
fn a_rank_that_stops_takes_the_others_along_and_the_first_one_saves() {
    let scratch = Scratch::new("ranks");
    let folder = &scratch.0;
    let stopped = on_ranks(2, |ranks| {
        let rank = ranks.device();
        let run = trainer(GPT, Precision::F32, 24).checkpoints(folder, None).ranks(ranks);
        let mut session = run.plan(&examples(&GPT, 240)).unwrap().start().unwrap();
        let report = session.fit_with(&mut |event| match event {
            TrainEvent::Step { step: 2, .. } if rank == 1 => Control::Leave,
            _ => Control::Continue,
        });
        matches!(report, Err(TrainError::Interrupted { step: 2, .. }))
    });
    assert_eq!(stopped, [true, true]);
    assert_eq!(checkpoints(folder).unwrap().len(), 1);
    // A run of another number of processes goes on to the same bits.
    let finish = |trainer: Trainer| {
        let mut session = trainer.plan(&examples(&GPT, 240)).unwrap().start().unwrap();
        session.resume(folder).unwrap();
        bits(&mut session)[1..].to_vec()
    };
    let three = on_ranks(3, |ranks| finish(trainer(GPT, Precision::F32, 24).ranks(ranks)));
    let whole =
        bits(&mut trainer(GPT, Precision::F32, 24).plan(&examples(&GPT, 240)).unwrap().start().unwrap());
    assert!(three.iter().all(|found| found[..] == whole[1..]));
}

/// As [`bits`], by name.
fn named_bits(session: &mut Session) -> BTreeMap<String, Vec<u8>> {
    let mut found = bits(session).into_iter();
    let losses = ("losses".to_string(), found.next().unwrap());
    let names = session.plans().states.iter().map(|state| state.name.clone());
    std::iter::once(losses).chain(names.zip(found)).collect()
}

/// Ranks hold the states of one process between them, and each one's are its own; how many hold each.
fn holders(
    found: &[BTreeMap<String, Vec<u8>>],
    whole: &BTreeMap<String, Vec<u8>>,
) -> BTreeMap<String, usize> {
    for (rank, found) in found.iter().enumerate() {
        for (name, bytes) in found {
            assert!(whole[name] == *bytes, "{name} of rank {rank} of {}", found.len());
        }
    }
    let holders = |name: &String| found.iter().filter(|found| found.contains_key(name)).count();
    whole.keys().map(|name| (name.clone(), holders(name))).collect()
}

/// What it is, the run, and in which ways it is done: processes, what is sharded, micro-batches.
type Run = (&'static str, Box<dyn Fn() -> (Trainer, Dataset) + Sync>, [(usize, Shard, usize); 3]);

#[test]
fn sharded_runs_have_the_bits_of_one_process() {
    let normed = || resnet20_of([8, 8, 3], 10);
    let clipped = || {
        let optimizer = Recipe::new(AdamW::new(1e-2)).clip(Clip::GlobalNorm(0.5));
        let trainer = Trainer::new(GPT, optimizer).precision(Policy::new(Precision::F16)).batch(24);
        (trainer.threads(1).line(usize::MAX), examples(&GPT, 48))
    };
    let (optimizer, gradients, parameters) = (Shard::Optimizer, Shard::Gradients, Shard::Parameters);
    // Batch norm needs the whole batch at once.
    let runs: [Run; 3] = [
        (
            "gpt",
            Box::new(|| (trainer(GPT, Precision::BF16, 24), examples(&GPT, 53))),
            [(2, optimizer, 1), (3, gradients, 2), (2, parameters, 2)],
        ),
        ("gpt, clipped, f16", Box::new(clipped), [(3, optimizer, 2), (2, gradients, 1), (3, parameters, 1)]),
        (
            "resnet",
            Box::new(move || (trainer(normed(), Precision::F32, 96), examples(&normed(), 96 + 48))),
            [(2, optimizer, 1), (3, gradients, 1), (3, parameters, 1)],
        ),
    ];
    for (what, run, ways) in &runs {
        let (alone, data) = run();
        let alone = named_bits(&mut alone.plan(&data).unwrap().start().unwrap());
        for &(count, shard, micro_batches) in ways {
            let found = on_ranks(count, |ranks| {
                let (trainer, data) = run();
                let trainer = trainer.ranks(ranks).shard(shard).micro_batches(micro_batches);
                let plan = trainer.plan(&data).unwrap();
                named_bits(&mut plan.start().unwrap())
            });
            let holders = holders(&found, &alone);
            let of = |wanted: usize| holders.values().filter(|&&holders| holders == wanted).count();
            assert_eq!(of(0), 0, "{what}");
            let kernels =
                holders.iter().filter(|(name, _)| name.contains("kernel/")).map(|(_, holders)| *holders);
            assert!(kernels.clone().count() > 10 && kernels.max() == Some(1), "{what}: {holders:?}");
            let alone = |name: &&String| name.ends_with("kernel") && holders[*name] == 1;
            assert_eq!(holders.keys().any(|name| alone(&name)), shard == parameters, "{what}: {holders:?}");
        }
    }
}

#[test]
fn sharded_parameters_have_the_bits_of_one_process_with_and_without_a_line() {
    for (precision, count, low) in
        [(Precision::F32, 2, true), (Precision::F32, 4, false), (Precision::BF16, 3, true)]
    {
        // A remainder that the last ranks take nothing of, though they hold parameters.
        let run = || (trainer(GPT, precision, 48), examples(&GPT, 48 + 13));
        let (alone, data) = run();
        let alone = named_bits(&mut alone.plan(&data).unwrap().start().unwrap());
        let sharded = || run().0.shard(Shard::Parameters);
        let free = sharded().plan_ranks(&data, &vec![usize::MAX; count]).unwrap();
        let peaks: Vec<usize> = free.iter().map(|plan| plan.load_sheet().total_bytes).collect();
        let found = on_ranks(count, |ranks| {
            let (trainer, data) = (sharded(), run().1);
            let line = if low { peaks[ranks.device()] * 9 / 10 } else { usize::MAX };
            let plan = trainer.line(line).ranks(ranks).plan(&data).unwrap();
            assert!(plan.load_sheet().total_bytes <= line);
            named_bits(&mut plan.start().unwrap())
        });
        let holders = holders(&found, &alone);
        let kernels = holders.iter().filter(|(name, _)| name.ends_with("kernel"));
        assert!(kernels.clone().count() > 5 && kernels.into_iter().all(|(_, &holders)| holders == 1));
        assert_eq!(holders["losses"], count, "{precision}, {count}, {low}");
    }
}

#[test]
fn running_averages_are_evaluated_where_parameters_are_sharded() {
    let run = || {
        let optimizer = Recipe::new(AdamW::new(1e-2)).average(0.9);
        (Trainer::new(GPT, optimizer).batch(24).threads(1).line(usize::MAX), examples(&GPT, 53))
    };
    let evaluated = |(trainer, data): (Trainer, Dataset)| {
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        let report = session.fit().unwrap();
        let own = session.evaluate(&data.test).unwrap();
        assert_eq!(own.loss, report.evaluation.loss);
        let parameters = session.parameters().count();
        (report.evaluation.loss, report.evaluation.accuracy, parameters)
    };
    let (loss, accuracy, parameters) = evaluated(run());
    let found = on_ranks(3, |ranks| {
        let (trainer, data) = run();
        evaluated((trainer.ranks(ranks).shard(Shard::Parameters), data))
    });
    assert!(found.iter().all(|found| (found.0, found.1) == (loss, accuracy)), "{found:?}");
    assert_eq!(found.iter().map(|found| found.2).sum::<usize>(), parameters);
}

#[test]
fn exchanges_of_sharded_parameters_are_in_one_order() {
    let data = examples(&GPT, 48);
    let plans = trainer(GPT, Precision::F32, 48).micro_batches(2).shard(Shard::Parameters);
    let plans = plans.plan_ranks(&data, &[usize::MAX; 3]).unwrap();
    let graphs = |at: usize| -> Vec<Graph> {
        plans.iter().map(|plan| plan.plans[at].graph.as_ref().clone()).collect()
    };
    let check = |graphs: &[Graph]| check_passes(&graphs.iter().collect::<Vec<_>>());
    for at in 0..plans[0].plans.len() {
        let mut graphs = graphs(at);
        assert_eq!(check(&graphs), Ok(()), "{}", plans[0].plans[at].name);
        let gives = |node: &Node| matches!(node.op, Op::Exchange(Exchange::Give { .. }));
        let mut given: Vec<&mut Node> = graphs[0].nodes.iter_mut().filter(|node| gives(node)).collect();
        let (first, rest) = given.split_first_mut().unwrap();
        std::mem::swap(&mut first.op, &mut rest.last_mut().unwrap().op);
        let error = check(&graphs).unwrap_err();
        assert!(error.contains("out of turn") || error.contains("is not what"), "{error}");
    }
    // Each process gets what it lacks before forward and before backward, in both micro-batches.
    for (rank, plan) in plans.iter().enumerate() {
        let takes = |node: &&Node| match &node.op {
            Op::Exchange(Exchange::Take { mark, .. }) => *mark != BatchMark::SUM,
            _ => false,
        };
        let graph = &plan.plans[0].graph;
        let taken = graph.nodes.iter().filter(takes).map(|node| graph.ty(node.outputs[1]).bytes() as u64);
        let (whole, _) = plan.whole_state_bytes().unwrap();
        let (lacks, taken) = (whole.parameters - plan.state_bytes().parameters, taken.sum::<u64>());
        assert!(
            lacks > whole.parameters / 2 && taken > lacks && taken <= 2 * lacks,
            "{rank}: {taken} of {lacks}"
        );
        let received = plan.plans[0].received_bytes(rank);
        assert!(received > 2 * taken, "{received} of {taken}");
    }
}

#[test]
fn weights_of_sharded_parameters_are_saved_together() {
    let scratch = Scratch::new("sharded-weights");
    let run = || (trainer(GPT, Precision::F32, 24), examples(&GPT, 24));
    let save = |(trainer, data): (Trainer, Dataset), file: &Path, names| {
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        session.fit().unwrap();
        session.save_as(file, names).unwrap();
        session
    };
    for names in [Names::Own, Names::Torch] {
        let [one, many] = ["one", "many"].map(|name| scratch.0.join(name));
        save(run(), &one, names);
        on_ranks(3, |ranks| {
            let (trainer, data) = run();
            let rank = ranks.device();
            let mut session = save((trainer.ranks(ranks).shard(Shard::Parameters), data), &many, names);
            assert!(session.saves_together());
            // Each loads what it holds.
            if rank > 0 {
                session.load(&one).unwrap();
            }
        });
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&many).unwrap());
    }
}

#[test]
fn sharded_states_are_saved_whole_and_resumed_in_any_number_of_processes() {
    for shard in [Shard::Optimizer, Shard::Parameters] {
        save_and_resume(shard);
    }
}

fn save_and_resume(shard: Shard) {
    let scratch = Scratch::new(&format!("sharded-ranks-{shard}"));
    let folder = &scratch.0;
    let run = || (trainer(GPT, Precision::F32, 24), examples(&GPT, 120));
    let stopped = on_ranks(3, |ranks| {
        let rank = ranks.device();
        let (trainer, data) = run();
        let trainer = trainer.checkpoints(folder, None).ranks(ranks).shard(shard);
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        let report = session.fit_with(&mut |event| match event {
            TrainEvent::Step { step: 2, .. } if rank == 1 => Control::Leave,
            _ => Control::Continue,
        });
        matches!(report, Err(TrainError::Interrupted { step: 2, .. }))
    });
    assert_eq!(stopped, [true; 3]);
    let finish = |trainer: Trainer, data: &Dataset| {
        let mut session = trainer.plan(data).unwrap().start().unwrap();
        session.resume(folder).unwrap();
        let mut found = named_bits(&mut session);
        found.remove("losses");
        found
    };
    let (alone, data) = run();
    let mut whole = named_bits(&mut alone.plan(&data).unwrap().start().unwrap());
    whole.remove("losses");
    assert!(finish(run().0, &data) == whole);
    for (count, shard) in
        [(2, Shard::None), (2, Shard::Gradients), (3, Shard::Optimizer), (4, Shard::Parameters)]
    {
        let found = on_ranks(count, |ranks| {
            let (trainer, data) = run();
            finish(trainer.ranks(ranks).shard(shard), &data)
        });
        assert!(holders(&found, &whole).values().all(|&holders| holders > 0), "{count}, {shard}");
    }
}

#[test]
fn each_process_writes_its_part_of_a_checkpoint_and_the_first_file_makes_them_count() {
    let scratch = Scratch::new("checkpoint-parts");
    let folder = &scratch.0;
    let run = || (trainer(GPT, Precision::F32, 24), examples(&GPT, 72));
    let (alone, data) = run();
    let mut whole = named_bits(&mut alone.plan(&data).unwrap().start().unwrap());
    whole.remove("losses");
    on_ranks(3, |ranks| {
        let (trainer, data) = run();
        let trainer = trainer.checkpoints(folder, Some(1)).ranks(ranks).shard(Shard::Parameters);
        trainer.plan(&data).unwrap().start().unwrap().fit().unwrap();
    });
    let files = checkpoints(folder).unwrap();
    let [second, third] = &files[..] else { panic!("{files:?}") };
    let part = |of: &Path, part: usize| of.with_extension(format!("{part}of3.safetensors"));
    let bytes: Vec<u64> = [third.clone(), part(third, 1), part(third, 2)]
        .map(|file| std::fs::metadata(file).unwrap().len())
        .into();
    let all: u64 = whole.values().map(|state| state.len() as u64).sum();
    assert!(bytes.iter().all(|&bytes| bytes > all / 4 && bytes < all / 2), "{bytes:?} of {all}");
    // Two sets are kept, and their parts.
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 2 * 3 + 1);
    let resumed = |trainer: Trainer| {
        let mut session = trainer.plan(&run().1).unwrap().start().unwrap();
        let found = session.resume(folder).unwrap();
        (found.state.steps_done, found.refused.join("; "), named_bits(&mut session))
    };
    let same = |mut found: BTreeMap<String, Vec<u8>>| {
        found.remove("losses");
        found == whole
    };
    let (steps, refused, found) = resumed(run().0);
    assert!(steps == 3 && refused.is_empty() && same(found), "{steps}, {refused}");
    // Weights are read from it, too.
    let mut session = run().0.plan(&data).unwrap().start().unwrap();
    session.load_checkpoint(folder).unwrap();
    let kernel = whole.keys().find(|name| name.ends_with("kernel")).unwrap();
    assert!(session.state(kernel).unwrap().as_bytes() == whole[kernel]);
    // A part that is damaged, or another checkpoint's, and a run that was killed before the first file was there: the set before counts.
    let good = std::fs::read(part(third, 1)).unwrap();
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let other = std::fs::read(part(second, 1)).unwrap();
    for (bytes, reason) in [(&damaged, "it is damaged"), (&other, "a part of another checkpoint")] {
        std::fs::write(part(third, 1), bytes).unwrap();
        let (steps, refused, found) = resumed(run().0);
        assert!(steps == 2 && refused.contains(reason) && same(found), "{steps}, {refused}");
    }
    std::fs::write(part(third, 1), good).unwrap();
    std::fs::remove_file(third).unwrap();
    let found = on_ranks(2, |ranks| resumed(run().0.ranks(ranks).shard(Shard::Gradients)));
    assert!(found.iter().all(|(steps, refused, _)| *steps == 2 && refused.is_empty()));
    let found: Vec<_> = found.into_iter().map(|(_, _, found)| found).collect();
    assert!(found.iter().flatten().all(|(name, bits)| name == "losses" || whole[name] == *bits));
}

#[test]
fn state_falls_as_the_formulas_say() {
    let (run, data) = (|| trainer(GPT, Precision::F32, 32), examples(&GPT, 64));
    let planned = |shard: Shard| run().shard(shard).plan_ranks(&data, &[usize::MAX; 4]).unwrap();
    let (whole, sharded) = (planned(Shard::None), planned(Shard::Optimizer));
    let (gradients, parameters) = (planned(Shard::Gradients), planned(Shard::Parameters));
    let all = whole[0].state_bytes();
    // Two moments of four bytes for each parameter and its gradient.
    assert!(all.optimizer == 2 * all.parameters && all.gradients >= all.parameters, "{all:?}");
    let even = all.sharded(4, Shard::Optimizer);
    assert_eq!(even, StateBytes { optimizer: all.optimizer / 4, ..all });
    for (rank, plan) in sharded.iter().enumerate() {
        let own = plan.state_bytes();
        let (told, received) = plan.whole_state_bytes().unwrap();
        assert_eq!(told, all, "rank {rank}");
        assert!(received > all.parameters / 2 && received < all.parameters);
        // Whole parameters are dealt out, so that shares differ by a parameter's.
        let off = own.optimizer.abs_diff(even.optimizer) as f64 / even.optimizer as f64;
        assert!(off < 0.2, "rank {rank} holds {} of {}", own.optimizer, all.optimizer);
        // Sums that all ranks read, and a parameter more or less.
        let own = gradients[rank].state_bytes();
        assert_eq!(gradients[rank].whole_state_bytes().unwrap().0, all, "rank {rank}");
        let off = own.gradients.abs_diff(all.gradients / 4) as f64 / (all.gradients / 4) as f64;
        assert!(off < 0.3 && own.optimizer < all.optimizer / 3, "rank {rank} keeps {own:?} of {all:?}");
        assert!(gradients[rank].load_sheet().arena_bytes < plan.load_sheet().arena_bytes);
        let own = parameters[rank].state_bytes();
        assert_eq!(parameters[rank].whole_state_bytes().unwrap(), (all, 0), "rank {rank}");
        let off = own.parameters.abs_diff(all.parameters / 4) as f64 / (all.parameters / 4) as f64;
        assert!(off < 0.3 && own.optimizer < all.optimizer / 3, "rank {rank} keeps {own:?} of {all:?}");
        assert!(parameters[rank].load_sheet().arena_bytes < gradients[rank].load_sheet().arena_bytes);
        let saved = whole[rank].load_sheet().arena_bytes - plan.load_sheet().arena_bytes;
        assert!(saved as u64 > (all.optimizer - own.optimizer) * 9 / 10, "rank {rank}: {saved}");
    }
}

#[test]
fn sharded_states_that_are_offloaded_have_the_bits_of_one_process() {
    let folders = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"].map(Path::new);
    let folder = folders.into_iter().find(|folder| SpillFile::create(folder, 1).is_ok()).unwrap();
    let model = || mlp_of(&[37], &[600; 4], 7);
    let data = || examples(&model(), 128);
    let run = || trainer(model(), Precision::F32, 64).executor(Cpu::new(1).unwrap().spilling(folder));
    let alone = named_bits(&mut run().plan(&data()).unwrap().start().unwrap());
    for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
        let free = run().shard(shard).plan_ranks(&data(), &[usize::MAX; 2]).unwrap();
        // About the lowest line, where parameters are offloaded, too.
        let fits = |line: &usize| run().shard(shard).plan_ranks(&data(), &[usize::MAX, *line]).is_ok();
        let lines = (11..20).map(|part| free[1].load_sheet().total_bytes * part / 20);
        let line = lines.into_iter().find(fits).unwrap();
        let found = on_ranks(2, |ranks| {
            let line = if ranks.device() == 1 { line } else { usize::MAX };
            let plan = run().line(line).ranks(ranks).shard(shard).plan(&data()).unwrap();
            let is_away = |state: &StatePlacement| matches!(state.home, StateHome::Offloaded { .. });
            let away =
                plan.states.iter().filter(|state| state.role == Role::Parameter && is_away(state)).count();
            (away, named_bits(&mut plan.start().unwrap()))
        });
        let (away, found): (Vec<usize>, Vec<_>) = found.into_iter().unzip();
        assert!(away[0] == 0 && away[1] > 0, "{shard}: {away:?}");
        assert!(holders(&found, &alone).values().all(|&holders| holders > 0), "{shard}");
    }
}

#[test]
fn fast_sums_are_those_of_one_process_but_for_their_order() {
    let normed = || resnet20_of([8, 8, 3], 10);
    let of_gpt = || (trainer(GPT, Precision::F32, 24), examples(&GPT, 53));
    // A remainder that the third process takes nothing of, and statistics of batch norm.
    let of_norm = || (trainer(normed(), Precision::F32, 96), examples(&normed(), 96 + 48));
    let alone =
        |(trainer, data): (Trainer, Dataset)| named_bits(&mut trainer.plan(&data).unwrap().start().unwrap());
    let (gpt, norm) = (alone(of_gpt()), alone(of_norm()));
    let floats = |bits: &BTreeMap<String, Vec<u8>>, name: &str| -> Vec<f32> {
        bits[name].chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    for (shard, micro_batches) in [(Shard::None, 2), (Shard::Optimizer, 1)] {
        let found = on_ranks(3, |ranks| {
            let run = |(trainer, data): (Trainer, Dataset), micro_batches| {
                let trainer = trainer.ranks(ranks.clone()).shard(shard).reduction(Reduction::Fast);
                alone((trainer.micro_batches(micro_batches), data))
            };
            [run(of_gpt(), micro_batches), run(of_norm(), 1)]
        });
        for (model, whole) in [&gpt, &norm].into_iter().enumerate() {
            // Every process has what the others have.
            let first = &found[0][model];
            for other in &found[1..] {
                let same =
                    other[model].iter().all(|(name, bits)| first.get(name).is_none_or(|own| own == bits));
                assert!(same, "{model}, {shard}");
            }
            assert!(
                first["losses"] != whole["losses"],
                "{model}, {shard}: the sums have the order of the chain"
            );
            let losses = first["losses"].chunks_exact(8).zip(whole["losses"].chunks_exact(8));
            for (fast, exact) in losses {
                let [fast, exact] = [fast, exact].map(|b| f64::from_ne_bytes(b.try_into().unwrap()));
                assert!((fast - exact).abs() < 1e-3 * exact.abs(), "{model}, {shard}: {fast} {exact}");
            }
            let parameters = first.keys().filter(|name| name.ends_with("kernel") || name.ends_with("bias"));
            for name in parameters {
                let near = floats(first, name).into_iter().zip(floats(whole, name));
                assert!(near.clone().all(|(a, b)| (a - b).abs() < 0.05), "{model}, {shard}: {name}");
            }
        }
    }
}

#[test]
fn fast_sums_are_refused_where_they_cannot_be_and_recorded_where_they_are() {
    let run = || trainer(GPT, Precision::F32, 24).reduction(Reduction::Fast);
    let data = || examples(&GPT, 48);
    for shard in [Shard::Gradients, Shard::Parameters] {
        let refused = run().shard(shard).plan_ranks(&data(), &[usize::MAX; 2]);
        let message = refused.err().map(|error| error.to_string()).unwrap();
        assert!(message.contains("sharded gradients pass along the chain"), "{message}");
    }
    let planned = run().plan_ranks(&data(), &[usize::MAX; 2]).unwrap();
    let chained = trainer(GPT, Precision::F32, 24).plan_ranks(&data(), &[usize::MAX; 2]).unwrap();
    let received = |plans: &[plimsoll_train::TrainingPlan]| -> u64 {
        plans.iter().enumerate().map(|(rank, plan)| plan.plans[0].received_bytes(rank)).sum()
    };
    // Of every sum each of two processes gets as much as there is, either way: half of it twice, or the whole from the other one.
    assert_eq!(received(&planned), received(&chained));
    let scratch = Scratch::new("reduced-ranks");
    let folder = &scratch.0;
    on_ranks(2, |ranks| {
        let trainer = run().checkpoints(folder, None).ranks(ranks);
        trainer.plan(&data()).unwrap().start().unwrap().fit().unwrap();
    });
    assert_eq!(TrainState::read(folder).unwrap().reduction, "fast over 2 processes");
    let mut session = trainer(GPT, Precision::F32, 24).plan(&data()).unwrap().start().unwrap();
    let differs = session.resume(folder).unwrap().differs.unwrap();
    assert!(differs.contains("fast over 2 processes, resumed with chain; bits may differ"), "{differs}");
}

/// Losses and accuracies of the validations after each of two steps, or the step after which the run was left.
fn validations(trainer: Trainer) -> Result<Vec<(f64, Option<f64>)>, u64> {
    // Fifty times the examples of a step, and a remainder.
    let data = examples(&mlp_of(&[20], &[16], 5), 50 * 192 + 40);
    let mut session = trainer.steps(2).validate_every(1).plan(&data).unwrap().start().unwrap();
    let mut found = Vec::new();
    let report = session.fit_with(&mut |event| {
        if let TrainEvent::Validation { evaluation, .. } = event {
            found.push((evaluation.loss, evaluation.accuracy));
        }
        Control::Continue
    });
    match report {
        Ok(report) => {
            assert_eq!(found.last(), Some(&(report.evaluation.loss, report.evaluation.accuracy)));
            Ok(found)
        }
        Err(TrainError::Interrupted { step, .. }) => Err(step),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn ranks_share_validations_and_have_the_figures_of_one_process() {
    let run = || trainer(mlp_of(&[20], &[16], 5), Precision::F32, 192);
    let alone = validations(run()).unwrap();
    assert!(alone.len() == 2 && alone[0].1.is_some());
    let post = Arc::new(Post::default());
    for found in on_ranks_of(&post, 3, |ranks| validations(run().ranks(ranks))) {
        assert_eq!(found.as_ref(), Ok(&alone));
    }
    // Of the first 48 of 51 groups each has told 16, twice.
    let told = |bytes: usize| post.gathered.lock().unwrap().iter().filter(|&&found| found == bytes).count();
    assert_eq!((told(1 + 16 * 32), told(1 + 32)), (2 * 3, 2 * 3));
    // Where parameters pass in every batch, all compute it.
    for found in on_ranks(3, |ranks| validations(run().ranks(ranks).shard(Shard::Parameters))) {
        assert_eq!(found.as_ref(), Ok(&alone));
    }
    // One that is asked to leave takes the others along.
    for shard in [Shard::None, Shard::Parameters] {
        let left = on_ranks(3, |ranks| {
            let rank = ranks.device();
            validations(run().ranks(ranks).shard(shard).on_progress(move |progress| match progress {
                Progress::Evaluating { examples, .. } if rank == 1 && *examples > 1000 => Control::Leave,
                _ => Control::Continue,
            }))
        });
        assert_eq!(left, [Err(1), Err(1), Err(1)], "{shard}");
    }
}
