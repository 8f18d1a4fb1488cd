//! The resident set of a process of its own: flat under many ops, and back where it was after a session.
#![cfg(target_os = "linux")]

use plimsoll_eager::{Eager, Result, Tensor, compile};
use plimsoll_plan::GiB;

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// One test, because others would change what is measured.
#[test]
fn the_resident_set_follows_the_owners() -> Result<()> {
    many_small_ops_leave_the_resident_set_flat()?;
    a_compiled_function_gives_its_memory_back()
}

fn many_small_ops_leave_the_resident_set_flat() -> Result<()> {
    let e = Eager::builder().threads(2).build()?;
    let (mut x, step) = (e.tensor(vec![1.0f32; 64])?, e.tensor(vec![0.5f32; 64])?);
    let run = |x: &mut Tensor, ops: usize| -> Result<()> {
        for i in 0..ops {
            // A number that changes prepares nothing anew.
            *x = ((&*x + &step) * (1.0 / (i + 2) as f64)).get()?;
        }
        Ok(())
    };
    run(&mut x, 2_000)?;
    let before = (resident(), e.pool().mapped);
    run(&mut x, 50_000)?;
    let grown = resident().saturating_sub(before.0);
    assert!(grown < 1 << 20, "{grown} bytes more after 100,000 ops");
    assert_eq!(e.pool().mapped, before.1);
    assert_eq!(e.memory_report().len(), 2);
    Ok(())
}

fn a_compiled_function_gives_its_memory_back() -> Result<()> {
    let e = Eager::builder().threads(2).build()?;
    let x = e.zeros("f32[2000,2000]".parse().unwrap())?;
    let before = resident();
    let mut compiled =
        compile(|i| Ok(vec![i[0].matmul(&i[0]).exp().sum(&[0, 1], false).get()?]), &[&x], GiB(1))?;
    compiled.run(&[&x])?;
    let during = resident();
    assert!(during > before + compiled.arena_bytes() * 9 / 10 && compiled.arena_bytes() > 30_000_000);
    drop(compiled);
    let after = resident();
    assert!(after < before + (8 << 20), "{before} before, {during} with the session, {after} after");
    Ok(())
}
