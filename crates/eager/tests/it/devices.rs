//! Several devices: copies, gradients across them, lines of their own.

use super::normal;
use plimsoll_eager::{Eager, Error, Optimizer, Result, Tape, Tensor, checkpoint, compile};
use plimsoll_nn::AdamW;
use plimsoll_plan::MiB;

fn two() -> Vec<Eager> {
    Eager::logical(&[MiB(64), MiB(64)]).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// A network whose first half is on one device and whose second half on another; the input of the second is used by both.
fn loss(x: &Tensor, [w1, w2]: [&Tensor; 2], first: &Eager, second: &Eager) -> Result<Tensor> {
    let hidden = x.matmul(w1).tanh().get()?;
    let there = hidden.to(second)?;
    let scores = (there.matmul(w2).sigmoid() * &there).to(first)?;
    (scores + &hidden).square().mean(&[0, 1], false).get()
}

#[test]
fn halves_of_a_network_on_two_devices_have_the_gradients_of_one() -> Result<()> {
    let devices = two();
    let gradients = |first: &Eager, second: &Eager| {
        let x = normal(first, "x", "f32[40,8]").batch();
        let (mut w1, mut w2) = (normal(first, "w1", "f32[8,8]"), normal(second, "w2", "f32[8,8]"));
        let [mut one, mut other] = [0, 1].map(|_| Optimizer::new(AdamW::new(0.01)));
        for _ in 0..3 {
            let tape = Tape::new();
            tape.watch(&w1);
            tape.watch(&w2);
            let loss = loss(&x, [&w1, &w2], first, second)?;
            assert_eq!(loss.device(), first.device());
            let found = tape.gradient(loss, &[&w1, &w2])?;
            assert_eq!([found[0].device(), found[1].device()], [first.device(), second.device()]);
            drop(tape);
            one.apply(&mut [&mut w1], &found[..1])?;
            other.apply(&mut [&mut w2], &found[1..])?;
        }
        Ok::<_, Error>([bits(&w1), bits(&w2)])
    };
    assert_eq!(gradients(&devices[0], &devices[1])?, gradients(&devices[0], &devices[0])?);
    Ok(())
}

#[test]
fn tapes_that_are_nested_or_checkpointed_follow_copies() -> Result<()> {
    let devices = two();
    let x = devices[0].tensor([0.5f32, 2.0])?;
    let outer = Tape::new();
    outer.watch(&x);
    let inner = Tape::new();
    inner.watch(&x);
    let cube = (x.to(&devices[1])?.square() * x.to(&devices[1])?).sum(&[0], false).get()?;
    let first = inner.gradient(&cube, &[&x])?.remove(0);
    assert_eq!((first.device(), first.to_vec::<f32>()?), ("cpu:0", vec![0.75, 12.0]));
    let second = outer.gradient(first.sum(&[0], false), &[&x])?;
    assert_eq!(second[0].to_vec::<f32>()?, [3.0, 12.0]);

    let plain = |keeps: bool| {
        let tape = Tape::new();
        tape.watch(&x);
        let part = || x.exp().to(&devices[1])?.sin().to(&devices[0])?.exp().get();
        let y = if keeps { part()? } else { checkpoint(part)? };
        tape.gradient(y.sum(&[0], false), &[&x]).map(|found| bits(&found[0]))
    };
    assert_eq!(plain(true)?, plain(false)?);
    Ok(())
}

#[test]
fn each_device_keeps_its_own_line() -> Result<()> {
    let devices = Eager::logical(&[MiB(16), MiB(6)])?;
    let x = devices[0].tensor(vec![1.5f32; 1_000_000])?;
    let there = x.to(&devices[1])?;
    assert!(x.to(&devices[0])?.to_vec::<f32>()? == there.to_vec::<f32>()?);
    let Err(Error::OutOfMemory(short)) = x.to(&devices[1]) else { panic!("two of 4 MB in 6 MiB") };
    assert_eq!((short.op, short.asked, short.line), ("copy", 4_000_000, 6 << 20));
    drop(there);
    assert!(devices[1].memory_report().is_empty());
    (x.to(&devices[1])? + 1.0).get()?;
    Ok(())
}

#[test]
fn copies_in_opposite_directions_do_not_wait_for_each_other() -> Result<()> {
    let devices = two();
    let across = |from: usize, to: usize| {
        let x = normal(&devices[from], "x", "f32[64]");
        (0..2000).try_for_each(|_| x.to(&devices[to]).map(drop))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| across(1, 0));
        across(0, 1)?;
        other.join().unwrap()
    })
}

#[test]
fn what_is_on_two_devices_is_refused_with_what_to_do() -> Result<()> {
    let devices = two();
    let (mut x, mut y) = (normal(&devices[0], "x", "f32[4]"), normal(&devices[1], "y", "f32[4]"));
    let error = (&x + &y).get().unwrap_err().to_string();
    assert_eq!(
        error,
        "add: operands are on two devices, cpu:0 and cpu:1: copy one to the other with `tensor.to(&device)`"
    );
    let gradients = [x.clone(), y.clone()];
    let error = Optimizer::new(AdamW::new(0.1)).apply(&mut [&mut x, &mut y], &gradients).unwrap_err();
    assert!(error.to_string().contains("use one for each device"), "{error}");
    let away = devices[1].clone();
    let Err(error) = compile(move |inputs| Ok(vec![inputs[0].to(&away)?]), &[&x], MiB(1)) else {
        panic!("a compiled function is on one device")
    };
    assert!(error.to_string().contains("on one device"), "{error}");
    let mut on_one = compile(|inputs| Ok(vec![(&inputs[0] * 2.0).get()?]), &[&x], MiB(1))?;
    assert!(on_one.run(&[&y]).unwrap_err().to_string().contains("cpu:0 and cpu:1"));
    Ok(())
}
