//! The optimal order of a few neighbouring tasks.
//!
//! Live bytes after a set of tasks do not depend on the order they ran in. So permuting a window changes nothing outside it, and
//! inside it is a shortest-bottleneck path through the subsets of its tasks.

use super::evaluation::OrderEvaluation;
use crate::lower::TaskId;
use crate::schedule::Liveness;

/// Tasks in a window; the number of subsets doubles with each.
const WIDTH: usize = 10;

/// How far before a position the windows around it start.
pub(super) const STARTS: [usize; 3] = [WIDTH / 2, WIDTH - 1, 0];

/// The start of the window that starts so far before a position, and its optimal order, if that has a lower peak than the
/// current one.
pub(super) fn around(
    evaluation: &mut OrderEvaluation<'_>,
    before: &[Vec<TaskId>],
    position: usize,
    back: usize,
) -> Option<(usize, Vec<TaskId>)> {
    let part = evaluation.phase_of(position);
    let start = position.saturating_sub(back).max(part.start);
    let window = evaluation.order.get(start..part.end.min(start + WIDTH)).filter(|w| !w.is_empty())?.to_vec();
    evaluation.seek(start);
    Some((start, lowest(&mut evaluation.liveness, before, &window)?))
}

/// The optimal order of a window's tasks, if it has a lower peak than the current one.
fn lowest(liveness: &mut Liveness<'_>, before: &[Vec<TaskId>], window: &[TaskId]) -> Option<Vec<TaskId>> {
    let count = window.len();
    let inside = |t: &TaskId| window.iter().position(|w| w == t);
    let needs: Vec<usize> = window
        .iter()
        .map(|&t| before[t].iter().filter_map(inside).fold(0, |set, at| set | 1 << at))
        .collect();
    // By subset of tasks: the lowest peak of a path there, the last task of that path, and the live bytes.
    let mut ways: Vec<Option<(usize, usize, usize)>> = vec![None; 1 << count];
    ways[0] = Some((0, 0, liveness.live));
    let start = liveness.live;
    let mut height_now = 0;
    for done in 0..ways.len() {
        let Some((height, _, live)) = ways[done] else { continue };
        let tasks = |done: usize| (0..count).filter(move |at| done & (1 << at) != 0);
        tasks(done).for_each(|at| liveness.mark_read(window[at]));
        liveness.live = live;
        for at in (0..count).filter(|&at| done & (1 << at) == 0 && needs[at] & !done == 0) {
            let effect = liveness.effect(window[at]);
            let high = height.max(live + effect.during);
            // Inputs without readers are freed after the very first task.
            let after =
                if done == 0 { liveness.live_after(effect) } else { (live as isize + effect.after) as usize };
            let way = &mut ways[done | 1 << at];
            if way.is_none_or(|(known, ..)| high < known) {
                *way = Some((high, at, after));
            }
            // The current order.
            if done + 1 == 1 << at {
                height_now = height_now.max(live + effect.during);
            }
        }
        tasks(done).for_each(|at| liveness.unmark_read(window[at]));
    }
    liveness.live = start;
    let mut done = ways.len() - 1;
    if ways[done].is_none_or(|(height, ..)| height >= height_now) {
        return None;
    }
    let mut order = Vec::with_capacity(count);
    while let Some((_, at, _)) = ways[done].filter(|_| done > 0) {
        order.push(window[at]);
        done &= !(1 << at);
    }
    order.reverse();
    Some(order)
}
