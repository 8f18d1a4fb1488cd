//! How far orders and placements are from the best there is, found by trying everything.

use super::{Choices, random_graph};
use crate::NullTarget;
use crate::order::order;
use crate::placement::{Block, live_peak, place};
use crate::tide::Tide;
use crate::work::{TaskId, Work};

/// The peak of an order.
fn peak(work: &Work<'_>, order: &[TaskId]) -> usize {
    let mut tide = Tide::new(work);
    let body = order.iter().take_while(|&&t| !work.tasks[t].tail).count();
    order[..body].iter().for_each(|&t| tide.run(t));
    tide.end_body();
    order[body..].iter().for_each(|&t| tide.run(t));
    tide.peak
}

/// The smallest peak of all orders that respect what must come before what.
fn smallest_peak(work: &Work<'_>, order: &mut Vec<TaskId>, best: &mut usize) {
    if order.len() == work.tasks.len() {
        *best = peak(work, order).min(*best);
        return;
    }
    let waits = |t: TaskId| (0..work.tasks.len()).any(|b| !order.contains(&b) && work.tasks[b].after.contains(&t));
    let body_left = (0..work.tasks.len()).any(|t| !order.contains(&t) && !work.tasks[t].tail);
    let ready: Vec<TaskId> = (0..work.tasks.len())
        .filter(|&t| !order.contains(&t) && !waits(t) && !(body_left && work.tasks[t].tail))
        .collect();
    for task in ready {
        order.push(task);
        smallest_peak(work, order, best);
        order.pop();
    }
}

#[test]
fn orders_of_small_graphs_are_near_the_best_of_all_orders() {
    let (mut graphs, mut exact, mut worst) = (0, 0, 1.0_f64);
    for seed in 0..4_000 {
        let graph = random_graph(seed, 9, 1);
        let work = Work::new("test", &graph, &NullTarget::default()).unwrap();
        if !(3..=9).contains(&work.tasks.len()) {
            continue;
        }
        let mut best = usize::MAX;
        smallest_peak(&work, &mut Vec::new(), &mut best);
        let found = peak(&work, &order(&work));
        assert!(found >= best);
        graphs += 1;
        exact += usize::from(found == best);
        worst = worst.max(found as f64 / best as f64);
    }
    eprintln!("{exact} of {graphs} exact, worst {worst}");
    assert!(graphs > 500, "{graphs}");
    assert!(exact * 1_000 >= graphs * 995, "{exact} of {graphs}");
    assert!(worst <= 1.1, "{worst}");
}

/// The lowest placement: some order of lowest fits makes it.
fn lowest(blocks: &[Block], placed: &mut Vec<(usize, usize)>, best: &mut usize) {
    if placed.len() == blocks.len() {
        let height = placed.iter().map(|&(id, offset)| offset + blocks[id].size).max().unwrap_or(0);
        *best = height.min(*best);
        return;
    }
    for id in (0..blocks.len()).filter(|id| !placed.iter().any(|p| p.0 == *id)).collect::<Vec<_>>() {
        let meets = |other: &Block| other.first <= blocks[id].last && blocks[id].first <= other.last;
        let mut taken: Vec<(usize, usize)> = placed.iter().filter(|p| meets(&blocks[p.0])).map(|p| (p.1, p.0)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, other) in taken {
            if start >= offset + blocks[id].size {
                break;
            }
            offset = offset.max(start + blocks[other].size);
        }
        placed.push((id, offset));
        lowest(blocks, placed, best);
        placed.pop();
    }
}

#[test]
fn placements_of_small_sets_are_the_lowest_of_all() {
    let (mut exact, mut worst, sets) = (0, 1.0_f64, 400);
    for seed in 0..sets {
        let mut c = Choices(seed);
        let blocks: Vec<Block> = (0..7)
            .map(|_| {
                let first = c.below(8);
                Block { size: 64 * (1 + c.below(9)), first, last: first + c.below(5) }
            })
            .collect();
        let mut best = usize::MAX;
        lowest(&blocks, &mut Vec::new(), &mut best);
        let offsets = place(&blocks);
        let found = blocks.iter().zip(&offsets).map(|(b, o)| b.size + o).max().unwrap();
        assert!(found >= best && best >= live_peak(&blocks).0);
        exact += usize::from(found == best);
        worst = worst.max(found as f64 / best as f64);
    }
    eprintln!("{exact} of {sets} exact, worst {worst}");
    assert_eq!(exact, sets as usize, "worst {worst}");
}

#[test]
fn five_thousand_buffers_are_placed_within_three_percent() {
    let mut c = Choices(3);
    // Forward makes, backward frees, with short-lived values in between: the shape of a training step.
    let steps = 5_000;
    let blocks: Vec<Block> = (0..steps)
        .map(|i| {
            let kept = i < steps / 2 && c.below(3) == 0;
            let last = if kept { steps - 1 - i } else { (i + c.below(6)).min(steps - 1) };
            Block { size: 64 * (1 + c.below(4_000)), first: i, last }
        })
        .collect();
    let height = blocks.iter().zip(place(&blocks)).map(|(b, o)| b.size + o).max().unwrap();
    let (bound, _) = live_peak(&blocks);
    assert!(height * 100 <= bound * 103, "{height} over {bound}");
}
