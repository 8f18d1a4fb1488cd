//! Runs of several processes, here threads with channels between them: the bits of one process, lines that differ, what is refused,
//! and stops that all ranks follow.

use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::zoo::{Gpt, mlp_of};
use plimsoll_nn::{AdamW, Model, Policy, Precision};
use plimsoll_plan::{Message, Ranks, Transport};
use plimsoll_testing::Scratch;
use plimsoll_train::{Control, Session, TrainError, TrainEvent, Trainer, checkpoints};
use std::collections::HashMap;
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
    arrived: Condvar,
}

struct Thread {
    post: Arc<Post>,
    rank: usize,
    count: usize,
}

/// The chain of what is gathered.
const GATHERED: u32 = u32::MAX;

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

    fn receive(&self, from: usize, message: Message, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(&self.take(from, message.chain)?);
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Ranks for Thread {
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        (0..self.count).for_each(|to| self.post(to, GATHERED, bytes));
        (0..self.count).map(|from| self.take(from, GATHERED)).collect()
    }

    fn bytes(&self) -> usize {
        1 << 20
    }
}

/// Runs `work` on every rank, and returns what each found.
fn on_ranks<T: Send>(count: usize, work: impl Fn(Arc<dyn Ranks>) -> T + Sync) -> Vec<T> {
    let post = Arc::new(Post::default());
    std::thread::scope(|scope| {
        let start = |rank| {
            let (post, work) = (post.clone(), &work);
            scope.spawn(move || work(Arc::new(Thread { post, rank, count })))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn examples(model: &dyn Model, count: usize) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), count, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

fn trainer(model: impl Model + 'static, precision: Precision, batch: usize) -> Trainer {
    let trainer = Trainer::new(model, AdamW::new(1e-2)).precision(Policy::new(precision)).batch(batch);
    trainer.epochs(1).threads(1).line(usize::MAX)
}

/// The losses, and every state after the run.
fn bits(session: &mut Session) -> Vec<Vec<u8>> {
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
