//! Makes a schedule faster: takes repeats out, alone and in groups, and shaves what then is too high.

use super::ledger::{Change, Ledger};
use super::random::Random;
use super::shave::{Effort, shave};
use super::table::Table;

/// Rounds without success after which refining ends, for each repeat.
const PATIENCE: usize = 12;

/// Takes out every repeat without which a list is still under its line: neighbours together first, then one by one, the
/// longest first.
pub(super) fn prune(ledger: &mut Ledger, table: &Table, until: u64) {
    for size in [64, 16, 4, 1] {
        let places = repeats(table, &ledger.runs);
        let mut groups: Vec<Vec<usize>> = places.chunks(size).map(<[usize]>::to_vec).collect();
        if size == 1 {
            let time = |at: usize| table.nanoseconds[ledger.runs[at] as usize];
            groups.sort_by_key(|g| (std::cmp::Reverse(time(g[0])), g[0]));
        }
        let mut gone: Vec<usize> = Vec::new();
        for group in groups {
            if ledger.work > until || group.len() * 2 < size {
                break;
            }
            if take_out(ledger, group.iter().map(|&at| at - gone.partition_point(|&g| g < at)).collect()) {
                group.iter().for_each(|&at| gone.insert(gone.partition_point(|&g| g < at), at));
            }
        }
    }
}

/// Takes runs out if the list then is still under its line.
fn take_out(ledger: &mut Ledger, remove: Vec<usize>) -> bool {
    let change = Change { remove, ..Change::default() };
    let fits = ledger.effect(&change).high <= ledger.line;
    if fits {
        ledger.apply(&change);
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
pub(super) fn refine(ledger: &mut Ledger, table: &Table, random: &mut Random, until: u64, near: u64) {
    prune(ledger, table, until);
    let mut current = ledger.clone();
    let mut trial = ledger.clone();
    let mut stale = 0;
    while trial.work < until && ledger.nanoseconds > near {
        let now = current.nanoseconds;
        let places = repeats(table, &current.runs);
        trial.work += current.runs.len() as u64;
        if stale > PATIENCE * (places.len() + 2) {
            break;
        }
        stale += 1;
        trial.clone_from(&current);
        let remove = some(&places, random);
        trial.apply(&Change { remove, ..Change::default() });
        let effort = Effort { tries: 3 + random.below(6), noise: [0.0, 0.3, 1.0][random.below(3)], until };
        if !shave(&mut trial, table, random, effort) || trial.nanoseconds > now + now / 200 {
            continue;
        }
        prune_some(&mut trial, table, random);
        if trial.nanoseconds <= now + now / 2000 {
            current.clone_from(&trial);
        }
        if current.nanoseconds < ledger.nanoseconds {
            stale = 0;
            ledger.clone_from(&current);
        } else if current.nanoseconds > ledger.nanoseconds + ledger.nanoseconds / 500 {
            current.clone_from(ledger);
        }
    }
    ledger.work = trial.work;
}

/// A few repeats that lie together, or anywhere.
fn some(places: &[usize], random: &mut Random) -> Vec<usize> {
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
fn prune_some(ledger: &mut Ledger, table: &Table, random: &mut Random) {
    for _ in 0..8 {
        let places = repeats(table, &ledger.runs);
        if places.is_empty() {
            break;
        }
        take_out(ledger, vec![places[random.below(places.len())]]);
    }
}
