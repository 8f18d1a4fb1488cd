//! Makes a schedule faster: takes repeats out, alone and in groups, and shaves what then is too high.

use super::incremental_peak::{Change, IncrementalPeak};
use super::insert::{Effort, insert_runs};
use super::table::Table;
use plimsoll_tensor::random::Lcg;

/// Rounds without success after which refining ends, for each repeat.
const PATIENCE: usize = 12;

/// Takes out every repeat without which a list is still under its line: neighbours together first, then one by one, the
/// longest first.
pub(super) fn prune(incremental: &mut IncrementalPeak, table: &Table, until: u64) {
    for size in [64, 16, 4, 1] {
        let places = repeats(table, &incremental.runs);
        let mut groups: Vec<Vec<usize>> = places.chunks(size).map(<[usize]>::to_vec).collect();
        if size == 1 {
            let time = |at: usize| table.nanoseconds[incremental.runs[at] as usize];
            groups.sort_by_key(|g| (std::cmp::Reverse(time(g[0])), g[0]));
        }
        let mut gone: Vec<usize> = Vec::new();
        for group in groups {
            if incremental.task_graph > until || group.len() * 2 < size {
                break;
            }
            if take_out(incremental, group.iter().map(|&at| at - gone.partition_point(|&g| g < at)).collect())
            {
                group.iter().for_each(|&at| gone.insert(gone.partition_point(|&g| g < at), at));
            }
        }
    }
}

/// Takes runs out if the list then is still under its line.
fn take_out(incremental: &mut IncrementalPeak, remove: Vec<usize>) -> bool {
    let change = Change { remove, ..Change::default() };
    let fits = incremental.effect(&change).high <= incremental.line;
    if fits {
        incremental.apply(&change);
    }
    fits
}

/// Positions of the runs that are not the first of their call.
pub(super) fn repeats(table: &Table, runs: &[u32]) -> Vec<usize> {
    let mut seen = vec![false; table.calls];
    let again = |&(_, &call): &(usize, &u32)| std::mem::replace(&mut seen[call as usize], true);
    runs.iter().enumerate().filter(again).map(|(at, _)| at).collect()
}

/// Improves a list that is under its line until the work is used up, or its time is near enough to what is possible.
pub(super) fn local_search(
    incremental: &mut IncrementalPeak,
    table: &Table,
    random: &mut Lcg,
    until: u64,
    near: u64,
) {
    prune(incremental, table, until);
    let mut current = incremental.clone();
    let mut trial = incremental.clone();
    let mut stale = 0;
    while trial.task_graph < until && incremental.nanoseconds > near {
        let now = current.nanoseconds;
        let places = repeats(table, &current.runs);
        trial.task_graph += current.runs.len() as u64;
        if stale > PATIENCE * (places.len() + 2) {
            break;
        }
        stale += 1;
        trial.clone_from(&current);
        let remove = some(&places, random);
        trial.apply(&Change { remove, ..Change::default() });
        let effort = Effort { tries: 3 + random.below(6), noise: [0.0, 0.3, 1.0][random.below(3)], until };
        if !insert_runs(&mut trial, table, random, effort) || trial.nanoseconds > now + now / 200 {
            continue;
        }
        prune_some(&mut trial, table, random);
        if trial.nanoseconds <= now + now / 2000 {
            current.clone_from(&trial);
        }
        if current.nanoseconds < incremental.nanoseconds {
            stale = 0;
            incremental.clone_from(&current);
        } else if current.nanoseconds > incremental.nanoseconds + incremental.nanoseconds / 500 {
            current.clone_from(incremental);
        }
    }
    incremental.task_graph = trial.task_graph;
}

/// A few repeats that lie together, or anywhere.
fn some(places: &[usize], random: &mut Lcg) -> Vec<usize> {
    let centre = random.below(places.len());
    let count = 1 + random.below(12.min(places.len()));
    if random.below(3) > 0 {
        let first = centre.saturating_sub(count / 2);
        return places[first..].iter().take(count).copied().collect();
    }
    let mut some: Vec<usize> = (0..count.min(4)).map(|_| places[random.below(places.len())]).collect();
    some.sort_unstable();
    some.dedup();
    some
}

/// Tries a few repeats at random.
fn prune_some(incremental: &mut IncrementalPeak, table: &Table, random: &mut Lcg) {
    for _ in 0..8 {
        let places = repeats(table, &incremental.runs);
        if places.is_empty() {
            break;
        }
        take_out(incremental, vec![places[random.below(places.len())]]);
    }
}
