//! Changes measured where they change something, against measuring the whole list.

use super::generate::{random_step, random_step_with_once};
use crate::search::gauge::Gauge;
use crate::search::ledger::{Change, Ledger};
use crate::search::random::Random;
use crate::search::refine::repeats;
use crate::search::table::Table;

#[test]
fn changes_are_measured_as_the_whole_list_is() {
    for seed in 0..300 {
        let step = if seed % 2 == 0 { random_step } else { random_step_with_once };
        let table = Table::new(&step(seed, 10 + (seed % 30) as usize)).unwrap();
        let mut random = Random::new(seed);
        let recorded: Vec<u32> = (0..table.calls as u32).collect();
        let line = 60 + random.below(60) as u64;
        let mut ledger = Ledger::new(&table, &recorded, line);
        let mut gauge = Gauge::new(&table);
        for _ in 0..30 {
            let position = 1 + random.below(ledger.runs.len());
            let ran = ledger.runs[..position].iter().copied().max().unwrap() as usize + 1;
            let insert = (0..random.below(4)).map(|_| random.below(ran) as u32).collect();
            let mut remove = repeats(&table, &ledger.runs);
            remove.retain(|_| random.below(3) == 0);
            let change = Change { position, insert, remove };
            let before = excess(&ledger);
            let effect = ledger.effect(&change);
            let time = ledger.nanoseconds as i64 + effect.nanoseconds;
            ledger.apply(&change);
            let level = gauge.measure(&ledger.runs);
            let heights: Vec<i64> = gauge.heights.iter().map(|&h| h as i64).collect();
            assert_eq!(ledger.heights, heights, "seed {seed}: {change:?}");
            assert_eq!((ledger.peak(), ledger.nanoseconds), (level.peak, level.nanoseconds));
            assert_eq!((excess(&ledger), ledger.nanoseconds as i64), (before + effect.excess, time));
            assert!(effect.high <= level.peak, "seed {seed}: {effect:?} over {}", level.peak);
            assert_eq!(ledger.fullest().is_some(), level.peak > line);
        }
    }
}

fn excess(ledger: &Ledger) -> i64 {
    ledger.heights.iter().map(|&h| (h - ledger.line as i64).max(0)).sum()
}
