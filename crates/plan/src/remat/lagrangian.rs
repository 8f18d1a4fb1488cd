//! One moment of a step on its own: what must be resident then, and what must run again afterwards.
//!
//! While a call runs for the first time, every tensor made so far is resident or not. What is read later and is not
//! must be made again, and what it is made from must be resident or be made again too. The least time of that under the
//! line is a knapsack with an order, and its relaxation, in which bytes have a price, is a smallest cut. The prices give
//! a lower bound for any schedule that keeps the recorded order, and the cuts are where to begin. Repeats up to a later
//! moment are bounded in the same way, by what is read until then.

use super::bound::call_bytes;
use super::table::Table;
use plimsoll_graph::FlowNetwork;

/// Never cut.
const WALL: u64 = 1 << 62;
/// Prices tried, at most.
const PRICES: usize = 24;

/// What is best at one relaxation.
pub(super) struct Best {
    /// Nanoseconds that repeats after the moment, up to the other, take at least.
    pub bound: f64,
    /// Calls that run again, for the cuts nearest to the line from below and from above, in bytes.
    pub again: Vec<Vec<bool>>,
}

struct Cut {
    /// What it costs: no choice costs less, prices rounded down.
    value: f64,
    nanoseconds: f64,
    bytes: f64,
    again: Vec<bool>,
}

/// Finds the best prices at the moment when a call runs for the first time, for what is read up to another call's first
/// run, or up to the end if there is none.
pub(super) fn best_at(table: &Table, call: usize, until: Option<usize>, line: u64) -> Best {
    let mut relaxation = Relaxation::new(table, call, until);
    let room = line as f64 - relaxation.own as f64;
    let total: f64 = table.nanoseconds[..call].iter().map(|&n| n as f64).sum();
    // Two cuts on either side of the line; the price at which they cost the same is tried next.
    let mut over = relaxation.cut(0.0);
    let mut under = relaxation.cut(total + 1.0);
    let mut best = Best { bound: 0.0, again: Vec::new() };
    if over.bytes <= room {
        best.again.push(over.again);
        return best;
    }
    if room < 0.0 {
        // The call call_bytes does not fit: no schedule does.
        best.bound = under.nanoseconds;
        best.again.push(under.again);
        return best;
    }
    for _ in 0..PRICES {
        let price = (under.nanoseconds - over.nanoseconds) / (over.bytes - under.bytes);
        if price.is_nan() || price <= 0.0 {
            break;
        }
        let cut = relaxation.cut(price);
        best.bound = best.bound.max(cut.value - price * room);
        let known = over.nanoseconds + price * over.bytes;
        if cut.value >= known * (1.0 - 1e-9) {
            break;
        }
        if cut.bytes <= room {
            under = cut;
        } else {
            over = cut;
        }
    }
    best.again.push(under.again);
    best.again.push(over.again);
    best
}

/// The first call after one that reads a tensor in the recorded order; the end reads what is to be kept.
pub(super) fn reading(table: &Table, tensor: u32, after: usize) -> Option<usize> {
    let mut readers = table.readers.row(tensor as usize).iter().map(|&r| r as usize);
    readers.find(|&r| r > after).or(table.kept[tensor as usize].then_some(table.calls))
}

struct Relaxation<'a> {
    table: &'a Table,
    call: usize,
    /// Capacities are nanoseconds times this, so that rounding does not matter.
    scale: u64,
    /// What the call itself holds beside what is pinned, and what is.
    own: u64,
    network: FlowNetwork,
    /// The edges with a price: (edge, tensor).
    priced: Vec<(usize, u32)>,
    /// The other edges with their capacities.
    fixed: Vec<(usize, u64)>,
}

impl<'a> Relaxation<'a> {
    /// Nodes are the calls before the moment and the tensors they wrote, then source and sink. On the sink's side: calls
    /// that run again, tensors that are read afterwards.
    fn new(table: &'a Table, call: usize, until: Option<usize>) -> Self {
        let node = |t: u32| call + t as usize;
        let (source, sink) = (call + table.tensors, call + table.tensors + 1);
        let mut network = FlowNetwork::new(sink + 1);
        let mut fixed = Vec::new();
        let mut priced = Vec::new();
        let mut wall = |network: &mut FlowNetwork, from, to, capacity| {
            fixed.push((network.edge(from, to, capacity), capacity));
        };
        let held = table.inputs.row(call);
        let total: u64 = table.nanoseconds[..call].iter().sum();
        let scale = ((WALL >> 4) / (total + 1)).clamp(1, 1 << 20);
        for maker in 0..call {
            let again = if table.once[maker] { WALL } else { table.nanoseconds[maker] * scale };
            wall(&mut network, source, maker, again);
            for &input in table.inputs.row(maker) {
                wall(&mut network, node(input), maker, WALL);
            }
            for &tensor in table.outputs.row(maker) {
                if !held.contains(&tensor) {
                    priced.push((network.edge(maker, node(tensor), 0), tensor));
                }
                if reading(table, tensor, call).is_some_and(|r| until.is_none_or(|u| r <= u)) {
                    wall(&mut network, node(tensor), sink, WALL);
                }
            }
        }
        Self { table, call, scale, own: call_bytes(table, call), network, priced, fixed }
    }

    /// The cheapest choice if a resident byte costs a price.
    fn cut(&mut self, price: f64) -> Cut {
        for &(edge, capacity) in &self.fixed {
            self.network.reset(edge, capacity);
        }
        for &(edge, tensor) in &self.priced {
            let cost = price * self.table.bytes[tensor as usize] as f64 * self.scale as f64;
            self.network.reset(edge, cost.min((WALL / 2) as f64) as u64);
        }
        let sink = self.call + self.table.tensors + 1;
        let value = self.network.min_cut(sink - 1, sink) as f64 / self.scale as f64;
        let again: Vec<bool> = (0..self.call).map(|c| !self.network.is_source_side(c)).collect();
        let time = again.iter().zip(&self.table.nanoseconds).filter(|p| *p.0).map(|p| *p.1 as f64).sum();
        let kept = self.priced.iter().filter(|&&(_, t)| {
            let maker = self.table.maker[t as usize] as usize;
            !again[maker] && !self.network.is_source_side(self.call + t as usize)
        });
        let bytes = kept.map(|&(_, t)| self.table.bytes[t as usize] as f64).sum();
        Cut { value, nanoseconds: time, bytes, again }
    }
}
