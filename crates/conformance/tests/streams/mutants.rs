//! Programs with one wait or one record less, or elsewhere: the checker finds those that matter, and shows that the others do not.

use super::order::{Event, Program};
use std::collections::{BTreeMap, HashMap};

/// What became of the waits, or of the records, of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub all: usize,
    /// Found when it alone is dropped.
    pub dropped: usize,
    /// Of those found dropped, such as were also moved to the other side of what they order; and those of these that were found.
    pub moved: [usize; 2],
    /// Needed where all others that are not needed are dropped, too.
    pub needed: usize,
}

/// By what waits for what.
pub type Counts = BTreeMap<String, Count>;

/// A line for each kind.
pub fn in_words(counts: &Counts) -> String {
    let line = |(what, count): (&String, &Count)| {
        let Count { all, dropped, moved: [moved, found], needed } = count;
        let moved = if *moved > 0 { format!(", {found} of {moved} moved") } else { String::new() };
        let needed =
            if what.starts_with("records") { String::new() } else { format!("; {needed} are needed") };
        format!("  {what}: {dropped} of {all} dropped alone are found{moved}{needed}\n")
    };
    counts.iter().map(line).collect()
}

/// Tries all mutants of a program whose streams have these names.
pub fn try_all(program: &Program, names: &HashMap<u64, &'static str>) -> Counts {
    let mut counts = Counts::new();
    let order = program.order();
    let name = |stream: &u64| names.get(stream).copied().unwrap_or("a stream");
    // The last record of each event.
    let mut recorded: HashMap<u64, (usize, u64)> = HashMap::new();
    let mut waits = Vec::new();
    for (at, event) in program.events.iter().enumerate() {
        let of = |event: &u64| recorded.get(event).map(|(_, stream)| name(stream));
        let what = match event {
            Event::Record { event, stream } => {
                recorded.insert(*event, (at, *stream));
                let count = counts.entry(format!("records of {}", name(stream))).or_default();
                count.all += 1;
                count.dropped += usize::from(program.has_race(&without(&order, at)));
                continue;
            }
            // An event that was never recorded has happened.
            Event::Wait { stream, event } => of(event).map(|of| format!("{} wait for {of}", name(stream))),
            Event::Reach(event) => of(event).map(|of| format!("the host waits for an event of {of}")),
            Event::FinishStream(stream) => Some(format!("the host waits for all {}", name(stream))),
            Event::FinishAll | Event::Work { .. } | Event::Host(_) => None,
        };
        let Some(what) = what else { continue };
        waits.push((at, what.clone()));
        let count = counts.entry(what).or_default();
        count.all += 1;
        let dropped = without(&order, at);
        let races = program.races(&dropped);
        if races.is_empty() {
            continue;
        }
        count.dropped += 1;
        for moved in moves(program, at, &races, &recorded, &dropped) {
            count.moved[0] += 1;
            count.moved[1] += usize::from(program.has_race(&moved));
        }
    }
    // Drops all that are not needed beside those that are left.
    let mut left = order;
    for (at, what) in waits {
        let fewer = without(&left, at);
        if program.has_race(&fewer) {
            counts.entry(what).or_default().needed += 1;
        } else {
            left = fewer;
        }
    }
    assert!(!program.has_race(&left), "what is not needed is dropped");
    counts
}

fn without(order: &[usize], at: usize) -> Vec<usize> {
    order.iter().copied().filter(|&other| other != at).collect()
}

/// A wait of a stream behind the first thing of the stream that needs it; and its record before the last thing that it is for. `dropped`
/// has all but the wait.
fn moves(
    program: &Program,
    at: usize,
    races: &[(usize, usize)],
    recorded: &HashMap<u64, (usize, u64)>,
    dropped: &[usize],
) -> Vec<Vec<usize>> {
    let Event::Wait { stream, event } = &program.events[at] else { return Vec::new() };
    let Some((record, of)) = recorded.get(event) else { return Vec::new() };
    let is_of =
        |at: usize, own: &u64| matches!(&program.events[at], Event::Work { stream, .. } if stream == own);
    let mut moved = Vec::new();
    if let Some(first) = races.iter().map(|&(_, b)| b).filter(|&b| is_of(b, stream)).min() {
        let place = dropped.iter().position(|&other| other == first).expect("it is there") + 1;
        moved.push([&dropped[..place], &[at], &dropped[place..]].concat());
    }
    if let Some(last) = races.iter().map(|&(a, _)| a).filter(|&a| is_of(a, of) && a < *record).max() {
        let fewer = without(&program.order(), *record);
        let place = fewer.iter().position(|&other| other == last).expect("it is there");
        moved.push([&fewer[..place], &[*record], &fewer[place..]].concat());
    }
    moved
}
