//! temp
use super::Short;
use super::bound;
use super::gauge::Gauge;
use super::random::Random;
use super::refine::{prune, refine};
use super::shave::{Effort, shave};
use super::sweep::{Taste, sweep};
use super::table::Table;

pub(super) fn solve(table: &Table, line: u64) -> Result<Vec<u32>, Short> {
    let mut gauge = Gauge::new(table);
    let debug = std::env::var("DBG").is_ok();
    let recorded: Vec<u32> = (0..table.calls as u32).collect();
    let base: u64 = table.nanoseconds.iter().sum();
    let mut best: Option<(u64, Vec<u32>)> = None;
    let pc = |t: u64| (t as f64 / base as f64 - 1.0) * 100.0;
    for chain in [false, true] {
        for distance in [0.0, 0.5, 1.0, 2.0] {
            if let Some(mut runs) = sweep(table, line, Taste { distance, chain }) {
                let l = gauge.measure(&runs, line);
                let l2 = prune(&mut gauge, table, &mut runs, line, u64::MAX);
                if debug { eprintln!("  sweep {chain} {distance}: {:.2} pruned {:.2} peak ok {}", pc(l.nanoseconds), pc(l2.nanoseconds), l.peak <= line); }
                if best.as_ref().is_none_or(|b| l2.nanoseconds < b.0) { best = Some((l2.nanoseconds, runs)); }
            } else if debug { eprintln!("  sweep {chain} {distance}: fails"); }
        }
    }
    let w0 = gauge.work;
    let mut runs = recorded.clone();
    let e = Effort { tries: 8, noise: 0.0, until: u64::MAX };
    if shave(&mut gauge, table, &mut runs, line, &mut Random::new(1), e).is_some() {
        let l = gauge.measure(&runs, line);
        let l2 = prune(&mut gauge, table, &mut runs, line, u64::MAX);
        if debug { eprintln!("  shave {:.2} pruned {:.2} work {}", pc(l.nanoseconds), pc(l2.nanoseconds), gauge.work - w0); }
        if best.as_ref().is_none_or(|b| l2.nanoseconds < b.0) { best = Some((l2.nanoseconds, runs)); }
    } else if debug { eprintln!("  shave fails, work {}", gauge.work - w0); }
    let Some((_, mut runs)) = best else { return Err(Short { line_bytes: line, smallest_line_bytes: u64::MAX, floor_bytes: bound::floor(table) }) };
    let budget: u64 = std::env::var("BUDGET").ok().and_then(|b| b.parse().ok()).unwrap_or(20_000_000);
    let w = gauge.work;
    let l = refine(&mut gauge, table, &mut runs, line, w + budget, 7);
    if debug { eprintln!("  refined {:.2}", pc(l.nanoseconds)); }
    Ok(runs)
}
pub(super) fn frontier(_table: &Table) -> Vec<(u64, u64)> { Vec::new() }
