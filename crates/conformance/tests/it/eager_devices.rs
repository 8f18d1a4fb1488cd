//! Eager tensors in the memory of every executor: values under its line, copies to and from it, errors of kernels that are queued.

use plimsoll_conformance::{compare, executors, random};
use plimsoll_eager::{Eager, Error, Result, Tape, Tensor};
use plimsoll_plan::MiB;
use plimsoll_tensor::random::Lcg;
use plimsoll_testing::Scratch;

/// The line of the device's memory.
const LINE: usize = 24 << 20;

/// Elements of values: slots of slabs, segments, and whole pages of a GPU.
const COUNTS: [usize; 6] = [1, 700, 4_000, 30_000, 330_000, 600_000];

/// Values come, are computed with and go; returns how often there was no memory. All elements of a value are one number.
fn program(e: &Eager, steps: usize) -> Result<usize> {
    let (mut draw, mut live, mut refused) = (Lcg::new(11), Vec::<(Tensor, f32)>::new(), 0);
    for _ in 0..steps {
        let (kind, pick) = (draw.below(4), draw.below(live.len().max(1)));
        let made = match kind {
            0 | 1 => {
                let (count, number) = (COUNTS[draw.below(COUNTS.len())], draw.below(9) as f32);
                (e.tensor(vec![number; count]), number)
            }
            2 if !live.is_empty() => {
                let (tensor, number) = &live[pick];
                ((tensor * 0.5 + 1.0).get(), number * 0.5 + 1.0)
            }
            _ if !live.is_empty() => {
                let (tensor, number) = live.swap_remove(pick);
                assert!(tensor.to_vec::<f32>()?.iter().all(|x| *x == number));
                continue;
            }
            _ => continue,
        };
        match made {
            (Ok(tensor), number) => live.push((tensor, number)),
            (Err(Error::OutOfMemory(_)), _) => {
                refused += 1;
                live.swap_remove(0);
            }
            (Err(error), _) => return Err(error),
        }
        assert!(e.pool().mapped <= LINE, "{}", e.pool());
    }
    for (tensor, number) in live {
        assert!(tensor.to_vec::<f32>()?.iter().all(|x| *x == number));
    }
    Ok(refused)
}

#[test]
pub(super) fn values_stay_under_a_line_of_device_memory() {
    for entry in executors() {
        let folder = Scratch::new("eager-devices");
        let build = || Eager::builder().boxed_executor(entry.kernels(2)).line(MiB(24));
        let probe = entry.on(1);
        let e = build().build().unwrap();
        let refused = program(&e, 300).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
        assert!(refused > 3, "{}: {refused}", entry.name);
        e.trim();
        assert_eq!((e.pool().mapped, e.pool().held), (0, 0), "{}", entry.name);
        let before = probe.device_bytes();
        let counts = [3_000_000, 330_000, 600_000];
        let held = counts.map(|count| e.tensor(vec![1.0f32; count]).unwrap());
        if let Some((before, now)) = before.zip(probe.device_bytes()) {
            let taken = now.saturating_sub(before);
            assert!(taken > 0 && taken <= e.pool().mapped, "{taken} of {}", e.pool());
        }
        drop((held, e));
        let e = build().spill(&folder.0, MiB(256)).build().unwrap();
        assert_eq!(program(&e, 300).unwrap(), 0, "{}: everything fits the file", entry.name);
        assert!(e.pool().offloaded > 0);
    }
}

/// Half of a computation on the CPU, and half on the device.
#[test]
pub(super) fn copies_and_their_gradients_arrive() {
    let host = |name: &str, ty: &str| random(name, &ty.parse().unwrap(), 1);
    let cpu = Eager::builder().threads(2).build().unwrap();
    for entry in executors() {
        let device = entry.eager(2);
        let large = host("large", "f32[2000,1200]");
        let there = cpu.tensor(large.clone()).unwrap().to(&device).unwrap();
        assert_eq!(there.device(), device.device());
        assert_eq!(there.to(&cpu).unwrap().to_host().unwrap(), large, "{}", entry.name);
        let run = |second: &Eager| -> Result<Vec<plimsoll_tensor::Tensor>> {
            let x = cpu.tensor(host("x", "f32[40,8]"))?;
            let (w1, w2) = (cpu.tensor(host("w1", "f32[8,6]"))?, second.tensor(host("w2", "f32[6,3]"))?);
            let tape = Tape::new();
            tape.watch(&w1);
            tape.watch(&w2);
            let hidden = x.matmul(&w1).tanh().to(second)?;
            let loss = (hidden.matmul(&w2) * 0.25).square().mean(&[0, 1], false).get()?;
            let gradients = tape.gradient(&loss, &[&w1, &w2])?;
            assert_eq!([gradients[0].device(), gradients[1].device()], [cpu.device(), second.device()]);
            [vec![loss], gradients].concat().iter().map(Tensor::to_host).collect()
        };
        for (found, wanted) in run(&device).unwrap().iter().zip(run(&cpu).unwrap()) {
            compare(found, &wanted, 1e-5).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        }
    }
}

/// Where kernels are queued the op has a result, and the error comes with what is read next.
#[test]
pub(super) fn an_index_out_of_range_is_told_at_the_next_read() {
    for entry in executors() {
        let e = entry.eager(1);
        let (table, index) = (e.tensor([[1.0f32], [2.0], [3.0]]).unwrap(), e.tensor([1, 3]).unwrap());
        let error = table.gather(&index).to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains("gather") && error.contains('3'), "{}: {error}", entry.name);
        assert_eq!(table.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0], "{}", entry.name);
        let queued = table.gather(&index).get().map(drop).and_then(|()| e.finish()).unwrap_err().to_string();
        assert!(queued.contains("gather") && queued.contains('3'), "{}: {queued}", entry.name);
        e.finish().unwrap();
    }
}
