//! What a change makes of an order is measured where it changes something, as if all of it were.

use super::{Choices, random_graph};
use crate::order::course::Course;
use crate::work::{InFile, TaskId, Work};
use crate::{Disk, NullTarget};

/// Tasks in any order that respects what must come before what.
fn shuffled(work: &Work<'_>, tasks: &[TaskId], choices: &mut Choices) -> Vec<TaskId> {
    let mut left = tasks.to_vec();
    let mut order = Vec::new();
    while !left.is_empty() {
        let body_left = left.iter().any(|&t| !work.tasks[t].tail);
        let waits = |t: TaskId| left.iter().any(|&earlier| work.tasks[earlier].after.contains(&t));
        let ready = |t: &TaskId| !(waits(*t) || body_left && work.tasks[*t].tail);
        let ready: Vec<TaskId> = left.iter().copied().filter(ready).collect();
        let next = ready[choices.below(ready.len())];
        left.retain(|&t| t != next);
        order.push(next);
    }
    order
}

#[test]
fn a_changed_order_costs_what_it_costs_anew() {
    let mut lower = 0;
    for (seed, micro_batches) in (0..40).flat_map(|seed| [(seed, 1), (seed, 4)]) {
        let graph = random_graph(seed, 40, micro_batches);
        let homes = vec![InFile::No; graph.states.len()];
        let work = Work::new("test", &graph, &NullTarget::default(), &homes, Disk::default()).unwrap();
        let anew = |order: &[TaskId]| Course::new(&work).follow(order.to_vec());
        let choices = &mut Choices(seed);
        let mut course = Course::new(&work);
        course.follow(shuffled(&work, &(0..work.tasks.len()).collect::<Vec<_>>(), choices));
        for _ in 0..if work.tasks.is_empty() { 0 } else { 40 } {
            let start = choices.below(course.order.len());
            let end = start + 1 + choices.below(course.order.len() - start);
            let tasks = shuffled(&work, &course.order[start..end], choices);
            let mut changed = course.order.clone();
            changed[start..end].copy_from_slice(&tasks);
            let cost = anew(&changed);
            assert_eq!(course.less(start, &tasks), Some(cost).filter(|cost| *cost < course.cost()));
            lower += usize::from(cost < course.cost());
            if choices.below(2) == 0 {
                course.change(start, &tasks);
                assert_eq!((course.cost(), &course.order), (cost, &changed));
            }
        }
    }
    assert!(lower > 100, "{lower}");
}
