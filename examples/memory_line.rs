//! The line instead of the whole machine: what there is, what a run takes of it and that this is what was planned, a second
//! process beside it, and a setting that comes too late.
//!
//!     cargo run --release --example memory_line

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::eager::{Eager, Error, tensor};
use plimsoll::memory;
use plimsoll::plan::{Executor, in_words};
use plimsoll::prelude::*;
use std::process::Command;

/// A process with this variable is the second one.
const BESIDE: &str = "PLIMSOLL_BESIDE";
const LINE: usize = 256 << 20;

/// Trains under the line; returns the planned and the measured peak. The session stays open.
fn train() -> Result<(Session, usize, usize), Box<dyn std::error::Error>> {
    memory::configure_heap();
    let data = datasets::mnist()?;
    let model = Sequential::classifier([28, 28, 1], 10).push(Flatten);
    let model =
        model.push(Dense::new(3072)).push(Relu).push(Dense::new(3072)).push(Relu).push(Dense::new(10));
    let plan =
        Trainer::new(model, AdamW::new(1e-4)).batch(64).steps(8).memory(Size::Bytes(LINE)).plan(&data)?;
    let planned = plan.load_sheet().total_bytes;
    let mut session = plan.start()?;
    session.fit()?;
    let measured = memory::measured_peak().unwrap_or(planned);
    Ok((session, planned, measured))
}

/// Lists the device, trains, and starts a second process beside this one.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os(BESIDE).is_some() {
        let (_, planned, measured) = train()?;
        println!("beside: {planned} {measured}");
        return Ok(());
    }
    let cores = std::thread::available_parallelism()?.get();
    let machine = memory::total().unwrap_or(usize::MAX);
    println!("physical devices:");
    println!("    cpu:0   {}, {} of memory", Cpu::new(cores)?.target().name(), in_words(machine));

    let (session, planned, measured) = train()?;
    let share = 100.0 * planned as f64 / machine as f64;
    println!("a run under {}: planned {} ({share:.2} % of the machine)", in_words(LINE), in_words(planned));
    println!(
        "    measured {}, {:.1} % of planned",
        in_words(measured),
        100.0 * measured as f64 / planned as f64
    );
    assert!(measured <= planned && planned <= LINE);
    assert!(planned - measured < planned / 25, "use is the plan");

    // The session is still open: its memory is taken.
    let second =
        Command::new(std::env::current_exe()?).args(std::env::args().skip(1)).env(BESIDE, "1").output()?;
    let text = String::from_utf8_lossy(&second.stdout);
    let figures =
        text.lines().find_map(|line| line.split("beside: ").nth(1)).ok_or("the second process failed")?;
    let [also_planned, also_measured]: [usize; 2] = figures
        .split(' ')
        .map(str::parse)
        .collect::<Result<Vec<_>, _>>()?
        .try_into()
        .map_err(|_| "two figures")?;
    println!(
        "a second process beside it: planned {}, measured {}",
        in_words(also_planned),
        in_words(also_measured)
    );
    println!("    both together {} under two lines", in_words(measured + also_measured));
    assert!(also_measured <= also_planned && measured + also_measured <= 2 * LINE);
    drop(session);

    let first = tensor([1.0f32, 2.0])?; // makes the default context, without a line
    let Err(late @ Error::Late) = Eager::builder().line(Size::Bytes(LINE)).make_default() else {
        return Err("it came too late".into());
    };
    println!("a line for eager tensors after the first of them ({}): {late}", first.ty());
    Ok(())
}
