//! Local search: removes rematerialized runs, alone and in groups, inserts others where the list is then over the line,
//! and keeps what is faster.

use super::incremental_peak::{Change, IncrementalPeak};
use super::insert::{Effort, insert_runs};
use super::table::Table;
use plimsoll_tensor::random::Lcg;

/// Rounds without improvement after which the search ends, for each rematerialized run.
const PATIENCE: usize = 12;

/// Removes every rematerialized run without which a list is still under its line: first neighbours together, then one
/// by one, the slowest first.
pub(super) fn prune(incremental: &mut IncrementalPeak, table: &Table, work_limit: u64) {
    for size in [64, 16, 4, 1] {
        let positions = rematerialized_runs(table, &incremental.runs);
        let mut groups: Vec<Vec<usize>> = positions.chunks(size).map(<[usize]>::to_vec).collect();
        if size == 1 {
            let time = |at: usize| table.nanoseconds[incremental.runs[at] as usize];
            groups.sort_by_key(|g| (std::cmp::Reverse(time(g[0])), g[0]));
        }
        let mut removed: Vec<usize> = Vec::new();
        for group in groups {
            if incremental.work > work_limit || group.len() * 2 < size {
                break;
            }
            let current = |&at: &usize| at - removed.partition_point(|&r| r < at);
            if remove_if_fits(incremental, group.iter().map(current).collect()) {
                group.iter().for_each(|&at| removed.insert(removed.partition_point(|&r| r < at), at));
            }
        }
    }
}

/// Removes runs if the list is then still under its line.
fn remove_if_fits(incremental: &mut IncrementalPeak, remove: Vec<usize>) -> bool {
    let change = Change { remove, ..Change::default() };
    let fits = incremental.fits(&change);
    if fits {
        incremental.apply(&change);
    }
    fits
}

/// Positions of the runs that are not the first of their call.
pub(super) fn rematerialized_runs(table: &Table, runs: &[u32]) -> Vec<usize> {
    let mut ran = vec![false; table.calls];
    let ran_before = |&(_, &call): &(usize, &u32)| std::mem::replace(&mut ran[call as usize], true);
    runs.iter().enumerate().filter(ran_before).map(|(at, _)| at).collect()
}

/// Improves a list that is under its line until the work is used up, or its time is at most `good_enough`.
pub(super) fn local_search(
    incremental: &mut IncrementalPeak,
    table: &Table,
    random: &mut Lcg,
    work_limit: u64,
    good_enough: u64,
) {
    prune(incremental, table, work_limit);
    // The search may go on from a list that is slightly slower than the best.
    let mut current = incremental.clone();
    let mut trial = incremental.clone();
    let mut stale = 0;
    while trial.work < work_limit && incremental.nanoseconds > good_enough {
        let time = current.nanoseconds;
        let positions = rematerialized_runs(table, &current.runs);
        trial.work += current.runs.len() as u64;
        if stale > PATIENCE * (positions.len() + 2) {
            break;
        }
        stale += 1;
        trial.clone_from(&current);
        let remove = random_group(&positions, random);
        trial.apply(&Change { remove, ..Change::default() });
        let effort =
            Effort { tries: 3 + random.below(6), noise: [0.0, 0.3, 1.0][random.below(3)], work_limit };
        if !insert_runs(&mut trial, table, random, effort) || trial.nanoseconds > time + time / 200 {
            continue;
        }
        prune_some(&mut trial, table, random);
        if trial.nanoseconds <= time + time / 2000 {
            current.clone_from(&trial);
        }
        if current.nanoseconds < incremental.nanoseconds {
            stale = 0;
            incremental.clone_from(&current);
        } else if current.nanoseconds > incremental.nanoseconds + incremental.nanoseconds / 500 {
            current.clone_from(incremental);
        }
    }
    incremental.work = trial.work;
}

/// A few positions: neighbours twice as often as scattered ones.
fn random_group(positions: &[usize], random: &mut Lcg) -> Vec<usize> {
    let centre = random.below(positions.len());
    let count = 1 + random.below(12.min(positions.len()));
    if random.below(3) > 0 {
        let first = centre.saturating_sub(count / 2);
        return positions[first..].iter().take(count).copied().collect();
    }
    let mut group: Vec<usize> = (0..count.min(4)).map(|_| positions[random.below(positions.len())]).collect();
    group.sort_unstable();
    group.dedup();
    group
}

/// Removes a few rematerialized runs at random, where the list is then still under its line.
fn prune_some(incremental: &mut IncrementalPeak, table: &Table, random: &mut Lcg) {
    for _ in 0..8 {
        let positions = rematerialized_runs(table, &incremental.runs);
        if positions.is_empty() {
            break;
        }
        remove_if_fits(incremental, vec![positions[random.below(positions.len())]]);
    }
}
