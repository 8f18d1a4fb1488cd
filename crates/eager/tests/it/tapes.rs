//! Tapes: which gradients they give, how often, and what they refuse.

use super::{eager, normal};
use plimsoll_eager::{Error, Optimizer, Result, Tape, Tensor};
use plimsoll_nn::{AdamW, Clip, Recipe, Sgd};

#[test]
fn a_tape_gives_gradients_once_and_a_persistent_one_often() -> Result<()> {
    let e = eager();
    let x = e.tensor([3.0f32])?;
    let tape = Tape::new();
    tape.watch(&x);
    let y = x.square().sum(&[0], false).get()?;
    assert_eq!(tape.gradient(&y, &[&x])?[0].to_vec::<f32>()?, [6.0]);
    let error = tape.gradient(&y, &[&x]).unwrap_err();
    assert!(matches!(error, Error::TapeUsed) && error.to_string().contains("Tape::persistent()"));

    let tape = Tape::persistent();
    tape.watch(&x);
    let y = x.square().sum(&[0], false).get()?;
    let z = (&y * &y).get()?;
    assert_eq!(tape.gradient(&z, &[&x])?[0].to_vec::<f32>()?, [108.0]);
    assert_eq!(tape.gradient(&y, &[&x])?[0].to_vec::<f32>()?, [6.0]);
    assert_eq!(tape.gradient(&z, &[&y])?[0].to_vec::<f32>()?, [18.0], "of a value on the way");
    Ok(())
}

/// A value that only the expression holds, and that the gradient of another operand needs.
#[test]
fn operands_that_backward_needs_are_not_written_over() -> Result<()> {
    let e = eager();
    let (x, w) = (e.tensor([2.0f32, 3.0])?, e.tensor([5.0f32, 7.0])?);
    let tape = Tape::new();
    tape.watch(&w);
    let loss = ((&x + 1.0) * &w).sum(&[0], false).get()?;
    assert_eq!(tape.gradient(&loss, &[&w])?[0].to_vec::<f32>()?, [3.0, 4.0]);
    Ok(())
}

#[test]
fn nested_tapes_give_second_derivatives() -> Result<()> {
    let e = eager();
    let x = e.tensor([0.5f32, 2.0])?;
    let outer = Tape::new();
    outer.watch(&x);
    let inner = Tape::new();
    inner.watch(&x);
    let y = (x.square() * &x).sum(&[0], false).get()?;
    let first = inner.gradient(&y, &[&x])?.remove(0);
    assert_eq!(first.to_vec::<f32>()?, [0.75, 12.0]);
    let second = outer.gradient(first.sum(&[0], false), &[&x])?;
    assert_eq!(second[0].to_vec::<f32>()?, [3.0, 12.0]);
    Ok(())
}

#[test]
fn what_was_not_watched_is_named() -> Result<()> {
    let e = eager();
    let (x, w) = (normal(&e, "x", "f32[3]"), normal(&e, "w", "f32[3]"));
    let tape = Tape::persistent();
    tape.watch(&w);
    let loss = (&x * &w).sum(&[0], false).get()?;
    let unrelated = x.sum(&[0], false).get()?;
    for unwatched in [&x, &normal(&e, "bystander", "f32[3]")] {
        let error = tape.gradient(&loss, &[&w, unwatched]).unwrap_err().to_string();
        assert!(error.contains("variable 1 (f32[3]) was not watched: call `tape.watch"), "{error}");
    }
    let error = tape.gradient(&unrelated, &[&w]).unwrap_err().to_string();
    assert!(error.starts_with("the loss (f32[]) was not watched"), "{error}");
    let error = tape.gradient((&w * &x).get()?, &[&w]).unwrap_err().to_string();
    assert!(error.contains("a loss must be one float"), "{error}");
    Ok(())
}

/// A custom loop: the losses of the same steps by hand.
#[test]
fn optimizers_of_nn_update_variables() -> Result<()> {
    let e = eager();
    let (x, mut w) = (normal(&e, "x", "f32[8,3]"), normal(&e, "w", "f32[3,1]"));
    let mut by_hand = w.to_vec::<f32>()?;
    let mut optimizer = Optimizer::new(Sgd::new(0.1));
    for step in 0..5 {
        let tape = Tape::new();
        tape.watch(&w);
        let loss = x.matmul(&w).square().mean(&[0, 1], false).get()?;
        let gradients = tape.gradient(&loss, &[&w])?;
        for (w, g) in by_hand.iter_mut().zip(gradients[0].to_vec::<f32>()?) {
            *w -= 0.1 * g;
        }
        drop(tape);
        optimizer.apply(&mut [&mut w], &gradients)?;
        let found = w.to_vec::<f32>()?;
        assert!(
            found.iter().zip(&by_hand).all(|(a, b)| (a - b).abs() < 1e-6),
            "step {step}: {found:?} {by_hand:?}"
        );
    }
    assert_eq!(optimizer.steps(), 5);
    let gradient = normal(&e, "g", "f32[3,1]");
    assert!(optimizer.apply(&mut [&mut w], &[]).is_err());
    // Two variables, clipped together, with moments in place of the old ones.
    let mut b = normal(&e, "b", "f32[4]");
    let mut adam = Optimizer::new(Recipe::new(AdamW::new(0.01)).clip(Clip::GlobalNorm(1.0)))
        .names(&["w/kernel", "w/bias"]);
    let gradients = [gradient, normal(&e, "gb", "f32[4]")];
    adam.apply(&mut [&mut w, &mut b], &gradients)?;
    let held = e.pool().held;
    adam.apply(&mut [&mut w, &mut b], &gradients)?;
    assert_eq!(e.pool().held, held);
    Ok(())
}

/// A Tensor is not bound to the thread that made it.
#[test]
fn tensors_may_go_to_another_thread() {
    let e = eager();
    let x = normal(&e, "x", "f32[100]");
    let sums: Vec<f64> = std::thread::scope(|s| {
        let run = |x: Tensor| {
            move || (0..100).map(|i| (&x * f64::from(i)).sum(&[0], false).item().unwrap()).sum::<f64>()
        };
        let handles: Vec<_> = (0..4).map(|_| s.spawn(run(x.clone()))).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    assert!(sums.windows(2).all(|pair| pair[0] == pair[1]));
}
