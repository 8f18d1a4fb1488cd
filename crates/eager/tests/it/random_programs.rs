//! Random programs under a line: create, alias, compute, drop, run out of memory, offload, and go on.

use plimsoll_eager::{Eager, Error, Tensor};
use plimsoll_plan::{MiB, Size};
use plimsoll_tensor::random::Lcg;
use plimsoll_testing::Scratch;

/// A tensor, and the number that all of its elements have.
struct Known {
    tensor: Tensor,
    number: f32,
}

/// Runs a program of so many steps; returns how often it ran out of memory.
pub fn run(e: &Eager, seed: u64, steps: usize, line: usize) -> usize {
    let (mut random, mut live, mut refused) = (Lcg::new(seed), Vec::<Known>::new(), 0);
    for step in 0..steps {
        let pick = |random: &mut Lcg, live: &[Known]| random.below(live.len());
        let made = match random.below(10) {
            0..=2 => {
                let limit = if random.below(4) == 0 { 400_000 } else { 4_000 };
                let (count, number) = (1 + random.below(limit), random.below(9) as f32);
                Some((e.tensor(vec![number; count]), number))
            }
            _ if live.is_empty() => None,
            3 => {
                let Known { tensor, number } = &live[pick(&mut random, &live)];
                Some((Ok(tensor.clone()), *number))
            }
            4 => {
                let Known { tensor, number } = &live[pick(&mut random, &live)];
                Some((tensor.reshape([1, tensor.shape().elements()]).get(), *number))
            }
            5 => {
                let Known { tensor, number } = &live[pick(&mut random, &live)];
                Some(((tensor * 0.5 + 1.0).get(), number * 0.5 + 1.0))
            }
            6 => {
                // Moved in: in place if nobody else holds it, and gone if it fails.
                let i = pick(&mut random, &live);
                let Known { tensor, number } = live.swap_remove(i);
                Some(((tensor * 0.25 + 2.0).relu().get(), number * 0.25 + 2.0))
            }
            7 => {
                let Known { tensor, number } = &live[pick(&mut random, &live)];
                let found = tensor.to_vec::<f32>();
                match found {
                    Ok(found) => assert!(found.iter().all(|x| x == number), "step {step}"),
                    Err(error) => assert!(matches!(error, Error::OutOfMemory(_)), "{error}"),
                }
                None
            }
            _ => {
                let i = pick(&mut random, &live);
                live.swap_remove(i);
                None
            }
        };
        match made {
            Some((Ok(tensor), number)) => live.push(Known { tensor, number }),
            Some((Err(Error::OutOfMemory(short)), _)) => {
                assert!(short.asked > 0 && !short.holders.is_empty());
                refused += 1;
            }
            Some((Err(error), _)) => panic!("{error}"),
            None => {}
        }
        let pool = e.pool();
        assert!(pool.mapped <= line && pool.peak <= line, "step {step}: {pool}");
    }
    for Known { tensor, number } in live.drain(..) {
        assert!(tensor.to_vec::<f32>().unwrap().iter().all(|x| *x == number));
    }
    let pool = e.pool();
    assert_eq!((pool.held, pool.in_file, e.memory_report().len()), (0, 0, 0));
    e.trim();
    assert_eq!(e.pool().mapped, 0);
    refused
}

#[test]
fn random_programs_stay_under_the_line() {
    let mut refused = 0;
    for seed in 0..4 {
        let e = Eager::builder().threads(2).line(MiB(8)).build().unwrap();
        refused += run(&e, seed, 1500, 8 << 20);
    }
    assert!(refused > 20, "the line was hardly reached: {refused}");
}

#[test]
fn random_programs_offload_what_does_not_fit() {
    let folder = Scratch::new("eager-spill");
    let line = (8 << 20) + plimsoll_cpu::DISK_STAGING_BYTES;
    for seed in 0..2 {
        let e =
            Eager::builder().threads(2).line(Size::Bytes(line)).spill(&folder.0, MiB(256)).build().unwrap();
        assert_eq!(run(&e, seed, 1500, 8 << 20), 0, "everything fits the file");
        assert!(e.pool().offloaded > 16 << 20, "{}", e.pool());
    }
    // A file that is full is out of memory, too.
    let e = Eager::builder().threads(1).line(Size::Bytes(line)).spill(&folder.0, MiB(2)).build().unwrap();
    assert!(run(&e, 0, 1500, 8 << 20) > 0);
}
