//! Memory: who owns it, when it is free, and what the line does.

use super::{eager, normal};
use plimsoll_eager::{Eager, Error, Result, checkpoint};
use plimsoll_plan::{MiB, Size};
use plimsoll_testing::Scratch;

#[test]
fn a_value_is_free_when_its_last_owner_is_dropped() -> Result<()> {
    let e = eager();
    let x = normal(&e, "x", "f32[1000,100]");
    let bytes = 400_000;
    assert_eq!(e.pool().held, bytes);
    let alias = x.reshape([100, 1000]).get()?;
    assert_eq!(e.pool().held, bytes, "a view shares its elements");
    drop(x);
    assert_eq!(e.pool().held, bytes);
    let y = (&alias * 2.0).get()?;
    assert_eq!(e.pool().held, 2 * bytes);
    let report = e.memory_report();
    assert_eq!(report.iter().map(|v| v.bytes).collect::<Vec<_>>(), [bytes; 2]);
    assert!(report[1].to_string().contains("lifetime.rs"), "{}", report[1]);
    drop((alias, y));
    assert_eq!((e.pool().held, e.memory_report().len()), (0, 0));
    e.trim();
    assert_eq!(e.pool().mapped, 0);
    Ok(())
}

/// An operand that is moved in and that nobody else holds is written over.
#[test]
fn results_take_the_place_of_operands_that_are_not_used_again() -> Result<()> {
    let e = Eager::builder().threads(1).line(MiB(9)).build()?;
    let x = normal(&e, "x", "f32[1000,1000]");
    let y = (&x + 1.0).get()?;
    assert!(matches!((&x + &y).get(), Err(Error::OutOfMemory(_))), "three times 4 MB");
    let y = ((y * 2.0).exp().tanh() + &x).relu().get()?;
    assert_eq!(e.pool().held, 8_000_000);
    let alias = y.clone();
    assert!((y * 2.0).get().is_err(), "somebody else holds it");
    assert_eq!(alias.ty().to_string(), "f32[1000,1000]");
    Ok(())
}

#[test]
fn an_op_that_would_cross_the_line_names_the_holders() -> Result<()> {
    let e = Eager::builder().threads(1).line(MiB(9)).build()?;
    let held = normal(&e, "held", "f32[1000,1000]");
    let small = normal(&e, "small", "f32[10]");
    let Err(Error::OutOfMemory(short)) = held.exp().matmul(&held).get() else { panic!("12 MB in 9 MiB") };
    assert_eq!((short.asked, short.op), (4_000_000, "matmul"));
    assert_eq!(short.holders.iter().map(|v| v.bytes).collect::<Vec<_>>(), [4_000_000, 4_000_000, 40]);
    let words = short.to_string();
    assert!(
        words.starts_with("matmul needs 3.8 MiB more for f32[1000,1000]: 7.6 MiB of values are held"),
        "{words}"
    );
    assert!(words.contains("lifetime.rs:"), "{words}");
    // The context goes on, and what is free is used.
    drop(held);
    assert_eq!((&small + 1.0).get()?.shape()[..], [10]);
    assert!(e.zeros("f32[1500,1000]".parse().unwrap()).is_ok());
    assert!(matches!(e.zeros(format!("f32[{},4]", usize::MAX).parse().unwrap()), Err(Error::OutOfMemory(_))));
    Ok(())
}

/// Scratch stays for the ops that follow, until a value needs the memory.
#[test]
fn scratch_that_is_kept_gives_way_to_values() -> Result<()> {
    let e = Eager::builder().threads(1).line(Size::Bytes(512 << 10)).build()?;
    let x = e.tensor(vec![1.0f32; 4096])?;
    let y = (&x + &x).get()?;
    let pool = e.pool();
    assert_eq!((pool.mapped, pool.held), (512 << 10, 32 << 10), "a slab of values, one of scratch");
    let small = e.tensor([2.0f32])?;
    assert_eq!(e.pool().mapped, 512 << 10, "the slab of scratch is one for small values");
    assert_eq!((small.item()?, y.to_vec::<f32>()?), (2.0, vec![2.0; 4096]));
    drop((x, y, small));
    e.trim();
    assert_eq!((e.pool().mapped, e.pool().free), (0, 0));
    Ok(())
}

#[test]
fn a_scope_tells_what_outlives_it() -> Result<()> {
    let e = eager();
    let before = normal(&e, "before", "f32[3]");
    let scope = e.scope();
    let mut kept = Vec::new();
    for i in 0..3 {
        let loss = (&before * f64::from(i)).sum(&[0], false).get()?;
        if i == 1 {
            kept.push(loss);
        }
    }
    let leaked = scope.finish();
    assert_eq!(leaked.iter().map(|v| v.ty.to_string()).collect::<Vec<_>>(), ["f32[]"]);
    drop(kept);
    assert!(e.scope().finish().is_empty());
    Ok(())
}

/// Values of a checkpoint die when it ends; those that only a tape holds die with the tape.
#[test]
fn a_tape_holds_values_until_it_is_done() -> Result<()> {
    let e = eager();
    let x = normal(&e, "x", "f32[1000]");
    let (own, bytes) = (e.pool().held, 4000);
    let deep = || -> Result<_> {
        let mut y = x.exp().get()?;
        for _ in 0..4 {
            y = y.sin().get()?;
        }
        Ok(y)
    };
    let tape = plimsoll_eager::Tape::new();
    tape.watch(&x);
    let y = deep()?;
    assert_eq!(e.pool().held, own + 5 * bytes);
    drop(tape);
    assert_eq!(e.pool().held, own + bytes);
    drop(y);
    let tape = plimsoll_eager::Tape::new();
    tape.watch(&x);
    let y = checkpoint(deep)?;
    assert_eq!(e.pool().held, own + bytes, "only the result is kept");
    let again = tape.gradient(y.sum(&[0], false), &[&x])?;
    let tape = plimsoll_eager::Tape::new();
    tape.watch(&x);
    let plain = tape.gradient(deep()?.sum(&[0], false), &[&x])?;
    assert_eq!(again[0].to_vec::<f32>()?, plain[0].to_vec::<f32>()?);
    drop((again, plain, y));
    assert_eq!(e.pool().held, own);
    Ok(())
}

/// What an op reads stays in memory while it runs, also where everything else may go to the file.
#[test]
fn operands_are_not_offloaded_from_under_their_op() -> Result<()> {
    let folder = Scratch::new("eager-operands");
    let line = (9 << 20) + plimsoll_cpu::DISK_STAGING_BYTES;
    let e = Eager::builder().threads(1).line(Size::Bytes(line)).spill(&folder.0, MiB(64)).build()?;
    let values = (0..4).map(|i| e.full(&"f32[1000,1000]".parse().unwrap(), f64::from(i)).get());
    let values = values.collect::<Result<Vec<_>>>()?;
    assert!(e.pool().in_file > 0 && e.pool().mapped <= line);
    let (a, b) = (&values[1], &values[2]);
    assert!(matches!((a + b).get(), Err(Error::OutOfMemory(_))), "three times 4 MB in 9 MiB");
    for (i, value) in values.iter().enumerate() {
        let found = (value + 1.0).to_vec::<f32>()?;
        assert!(found.iter().all(|x| *x == i as f32 + 1.0), "value {i}");
    }
    Ok(())
}
