//! Incremental evaluation against simulation of the whole list.

use super::generate::{random_step, random_step_with_once};
use crate::remat::incremental_peak::{Change, IncrementalPeak};
use crate::remat::local_search::rematerialized_runs;
use crate::remat::peak::PeakSimulator;
use crate::remat::table::Table;
use plimsoll_tensor::random::Lcg;

#[test]
fn incremental_evaluation_agrees_with_the_simulation() {
    for seed in 0..300 {
        let step = if seed % 2 == 0 { random_step } else { random_step_with_once };
        let table = Table::new(&step(seed, 10 + (seed % 30) as usize)).unwrap();
        let mut random = Lcg::new(seed);
        let recorded: Vec<u32> = (0..table.calls as u32).collect();
        let line = 60 + random.below(60) as u64;
        let mut incremental = IncrementalPeak::new(&table, &recorded, line);
        let mut simulator = PeakSimulator::new(&table);
        for _ in 0..30 {
            let position = 1 + random.below(incremental.runs.len());
            let ran = incremental.runs[..position].iter().copied().max().unwrap() as usize + 1;
            let insert = (0..random.below(4)).map(|_| random.below(ran) as u32).collect();
            let mut remove = rematerialized_runs(&table, &incremental.runs);
            remove.retain(|_| random.below(3) == 0);
            let change = Change { position, insert, remove };
            let before = excess(&incremental);
            let effect = incremental.effect(&change);
            let (was_under, fits) = (incremental.peak() <= line, incremental.fits(&change));
            let time = incremental.nanoseconds as i64 + effect.nanoseconds;
            incremental.apply(&change);
            let measured = simulator.measure(&incremental.runs);
            let live_bytes: Vec<i64> = measured.live_bytes.iter().map(|&live| live as i64).collect();
            assert_eq!(incremental.live_bytes, live_bytes, "seed {seed}: {change:?}");
            assert_eq!((incremental.peak(), incremental.nanoseconds), (measured.peak, measured.nanoseconds));
            assert_eq!(
                (excess(&incremental), incremental.nanoseconds as i64),
                (before + effect.excess, time)
            );
            assert!(!was_under || fits == (measured.peak <= line), "seed {seed}: {change:?}");
            assert!(fits || measured.peak > line, "seed {seed}: {change:?}");
            assert_eq!(incremental.peak_over_line().is_some(), measured.peak > line);
        }
    }
}

fn excess(incremental: &IncrementalPeak) -> i64 {
    incremental.live_bytes.iter().map(|&live| (live - incremental.line as i64).max(0)).sum()
}
