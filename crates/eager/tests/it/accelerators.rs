//! A device whose memory is not the host's: the simulated accelerator, whose addresses the host cannot follow.

use super::{normal, random_programs};
use plimsoll_eager::{Eager, Error, Result, Tape, Tensor, compile};
use plimsoll_plan::{Link, MiB, TIER_ALIGNMENT};
use plimsoll_simulated::Simulated;
use plimsoll_testing::{Scratch, or_skip};
use std::time::{Duration, Instant};

/// An accelerator behind a link that takes no time.
fn accelerator() -> Simulated {
    Simulated::with_link(2, Link::default()).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn random_programs_stay_under_the_line_of_device_memory() {
    let folder = Scratch::new("eager-accelerator");
    let mut refused = 0;
    for seed in 0..2 {
        let e = Eager::builder().executor(accelerator()).line(MiB(8)).build().unwrap();
        refused += random_programs::run(&e, seed, 1500, 8 << 20);
    }
    assert!(refused > 10, "the line was hardly reached: {refused}");
    // What passes on the way to the file is host memory: the line is the device's alone.
    let e = Eager::builder().executor(accelerator()).line(MiB(8)).spill(&folder.0, MiB(256)).build().unwrap();
    assert_eq!(random_programs::run(&e, 1, 1500, 8 << 20), 0, "everything fits the file");
    assert!(e.pool().offloaded > 16 << 20 && e.pool().line == 8 << 20, "{}", e.pool());
}

/// Larger than what passes host memory at a time.
#[test]
fn large_values_wait_in_the_file_and_pass_between_accelerators() -> Result<()> {
    let folder = Scratch::new("eager-pieces");
    let make = || Eager::builder().executor(accelerator()).line(MiB(20));
    let (first, second) = (make().spill(&folder.0, MiB(64)).build()?, make().build()?);
    let (x, y) = (normal(&first, "x", "f32[3000,1000]"), normal(&first, "y", "f32[3000,1000]"));
    assert_eq!(first.pool().in_file, 12_000_000_u64.next_multiple_of(TIER_ALIGNMENT));
    let there = x.to(&second)?;
    let wanted = [
        bits(&normal(&super::eager(), "x", "f32[3000,1000]")),
        bits(&normal(&super::eager(), "y", "f32[3000,1000]")),
    ];
    assert!(bits(&there) == wanted[0] && bits(&x) == wanted[0] && bits(&y) == wanted[1]);
    Ok(())
}

#[test]
fn values_that_are_moved_together_arrive() -> Result<()> {
    let e = Eager::builder().executor(accelerator()).build()?;
    let mut values: Vec<Tensor> = (0..4000).map(|i| e.tensor(vec![i as f32; 100])).collect::<Result<_>>()?;
    let mapped = e.pool().mapped;
    let mut number = 0;
    values.retain(|_| {
        number += 1;
        number % 64 == 0
    });
    assert!(e.pool().mapped - e.pool().cached < mapped / 2, "{}", e.pool());
    for (i, value) in values.iter().enumerate() {
        assert!(value.to_vec::<f32>()?.iter().all(|x| *x == (64 * i + 63) as f32), "value {i}");
    }
    Ok(())
}

#[test]
fn a_device_that_is_full_is_out_of_memory() -> Result<()> {
    let e = Eager::builder().executor(accelerator().memory(9 << 20)).build()?;
    let (x, y) = (normal(&e, "x", "f32[1000,1000]"), normal(&e, "y", "f32[1000,1000]"));
    let Err(Error::OutOfMemory(short)) = (&x + &y).get() else { panic!("three times 4 MB in 9 MiB") };
    assert_eq!((short.asked, short.op, short.holders.len()), (4_000_000, "add", 2));
    let words = short.to_string();
    assert!(words.contains("held, and the device gives no more (") && words.contains("are free"), "{words}");
    // What is kept for later is given back before a device counts as full.
    drop(y);
    assert!(e.pool().cached > 0);
    let smaller = x.slice(0, ..900).get()?;
    assert_eq!(smaller.to_vec::<f32>()?.len(), 900_000);
    Ok(())
}

/// Forward on the CPU and on the accelerator, backward the same way, and the whole as a compiled function: the bits of the CPU.
#[test]
fn tapes_and_compiled_functions_have_the_bits_of_the_cpu() -> Result<()> {
    let (cpu, device) = (super::eager(), Eager::builder().executor(accelerator()).build()?);
    assert!(device.device().starts_with("simulated:"), "{}", device.device());
    let step = |first: &Eager, second: &Eager| {
        let x = normal(first, "x", "f32[40,8]").batch();
        let (w1, w2) = (normal(first, "w1", "f32[8,6]"), normal(second, "w2", "f32[6,3]"));
        let tape = Tape::new();
        tape.watch(&w1);
        tape.watch(&w2);
        let hidden = (x.matmul(&w1).tanh() * 0.5).to(second)?;
        let loss = hidden.matmul(&w2).square().mean(&[0, 1], false).get()?;
        let found = tape.gradient(&loss, &[&w1, &w2])?;
        assert_eq!([found[0].device(), found[1].device()], [first.device(), second.device()]);
        Ok::<_, Error>([bits(&loss), bits(&found[0]), bits(&found[1])])
    };
    let wanted = step(&cpu, &cpu)?;
    for (first, second) in [(&cpu, &device), (&device, &cpu), (&device, &device)] {
        assert_eq!(step(first, second)?, wanted);
    }
    let function = |inputs: &[Tensor]| {
        let tape = Tape::new();
        tape.watch(&inputs[1]);
        let loss = inputs[0].matmul(&inputs[1]).exp().mean(&[0, 1], false).get()?;
        let gradients = tape.gradient(&loss, &[&inputs[1]])?;
        Ok([vec![loss], gradients].concat())
    };
    let run = |e: &Eager| {
        let (x, w) = (normal(e, "x", "f32[40,8]"), normal(e, "w", "f32[8,6]"));
        let compiled = compile(function, &[&x, &w], MiB(4))?.run(&[&x, &w])?;
        assert_eq!(compiled[0].device(), e.device());
        let eager = function(&[x, w])?;
        assert_eq!([0, 1].map(|i| bits(&compiled[i])), [0, 1].map(|i| bits(&eager[i])));
        Ok::<_, Error>([0, 1].map(|i| bits(&eager[i])))
    };
    assert_eq!(run(&device)?, run(&cpu)?);
    Ok(())
}

#[test]
fn copies_pass_the_link() -> Result<()> {
    // 4 MiB take 40 ms there and 20 ms back.
    let link = Link { load_ns_per_mib: 10_000_000, store_ns_per_mib: 5_000_000, ..Link::default() };
    let (cpu, device) = (super::eager(), Eager::builder().executor(Simulated::with_link(1, link)?).build()?);
    let x = cpu.zeros("f32[1024,1024]".parse().unwrap())?;
    let start = Instant::now();
    let there = x.to(&device)?;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(40), "{took:?}");
    let start = Instant::now();
    there.to_host()?;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(20), "{took:?}");
    Ok(())
}

#[test]
fn devices_are_named() -> Result<()> {
    let refused = |name: &str| Eager::builder().on(name).build().map(drop).unwrap_err();
    for name in ["tpu", "cuda:first", "cpu:0", ""] {
        assert!(
            refused(name).to_string().contains("name `cpu`, or a GPU like `cuda:0`"),
            "{}",
            refused(name)
        );
    }
    assert!(matches!(refused("cuda:999"), Error::Gpu(_)));
    let two = Eager::builder().on("cpu").executor(accelerator()).build().map(drop).unwrap_err();
    assert!(two.to_string().contains("on one device"), "{two}");
    assert!(Eager::builder().on("cpu").threads(1).build()?.device().starts_with("cpu:"));
    Ok(())
}

/// A context on the first GPU, if there is one.
fn gpu() -> Option<plimsoll_eager::EagerBuilder> {
    or_skip(Eager::builder().on("cuda:0").build()).map(|_| Eager::builder().on("cuda:0"))
}

#[test]
fn random_programs_stay_under_the_line_of_a_gpu() {
    let Some(builder) = gpu() else { return };
    let e = builder.line(MiB(16)).build().unwrap();
    assert_eq!(e.device(), "cuda:0");
    assert!(random_programs::run(&e, 0, 1500, 16 << 20) > 10, "the line was hardly reached");
    let folder = Scratch::new("eager-gpu");
    let e = Eager::builder().on("cuda:0").line(MiB(16)).spill(&folder.0, MiB(256)).build().unwrap();
    assert_eq!(random_programs::run(&e, 1, 1500, 16 << 20), 0, "everything fits the file");
    assert!(e.pool().offloaded > 16 << 20, "{}", e.pool());
}

/// A step on a GPU: always the same bits, near those of the CPU, and those of the step as a compiled function.
#[test]
fn a_step_on_a_gpu_is_near_the_cpus_and_always_the_same() -> Result<()> {
    let Some(builder) = gpu() else { return Ok(()) };
    let (gpu, cpu) = (builder.build()?, super::eager());
    let function = |inputs: &[Tensor]| {
        let tape = Tape::new();
        tape.watch(&inputs[1]);
        let loss = inputs[0].matmul(&inputs[1]).tanh().square().mean(&[0, 1], false).get()?;
        let gradients = tape.gradient(&loss, &[&inputs[1]])?;
        Ok([vec![loss], gradients].concat())
    };
    let step = |e: &Eager| function(&[normal(e, "x", "f32[640,80]"), normal(e, "w", "f32[80,60]")]);
    let (found, again, wanted) = (step(&gpu)?, step(&gpu)?, step(&cpu)?);
    let (x, w) = (normal(&gpu, "x", "f32[640,80]"), normal(&gpu, "w", "f32[80,60]"));
    let compiled = compile(function, &[&x, &w], MiB(64))?.run(&[&x, &w])?;
    for i in 0..2 {
        assert_eq!(found[i].device(), "cuda:0");
        assert!(bits(&found[i]) == bits(&again[i]) && bits(&found[i]) == bits(&compiled[i]));
        for (x, y) in found[i].to_vec::<f32>()?.iter().zip(wanted[i].to_vec::<f32>()?) {
            assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{x}, {y} on the CPU");
        }
    }
    Ok(())
}
