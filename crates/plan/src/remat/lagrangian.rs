//! Lagrangian relaxation of rematerialization at one program point.
//!
//! While a call runs for the first time, every tensor produced so far is resident or not. A tensor that is read later
//! and is not resident must be rematerialized, and so must the non-resident inputs of its producer. Choosing the
//! residents within the line at the least time of rematerialized runs is a precedence-constrained knapsack. The
//! relaxation prices each resident byte instead of limiting them; for one price it is a minimum cut. The best price
//! gives a lower bound for every schedule with the first runs in recorded order, and the cuts near it are starting
//! points for the search. With an end position, only tensors read up to there count, which bounds the runs between the
//! two positions.

use super::bound::call_bytes;
use super::table::Table;
use plimsoll_graph::FlowNetwork;

/// Capacity of an edge that is never cut.
const INFINITE: u64 = 1 << 62;
/// Prices tried, at most.
const MAX_PRICES: usize = 24;

/// The best relaxation found.
pub(super) struct Relaxed {
    /// Nanoseconds that rematerialized runs between the two positions take at least.
    pub bound: f64,
    /// For the cuts nearest to the line from below and from above, in bytes: whether each call is rematerialized.
    pub rematerialized: Vec<Vec<bool>>,
}

struct Cut {
    /// Time plus price of the resident bytes: a minimum, up to prices rounded down.
    value: f64,
    nanoseconds: f64,
    bytes: f64,
    rematerialized: Vec<bool>,
}

/// Searches the best price at the first run of a call, for tensors read up to the first run of `until`, or to the end.
pub(super) fn relax_at(table: &Table, call: usize, until: Option<usize>, line: u64) -> Relaxed {
    let mut relaxation = Relaxation::new(table, call, until);
    let capacity = line as f64 - relaxation.call_bytes as f64;
    let total: f64 = table.nanoseconds[..call].iter().map(|&n| n as f64).sum();
    // One cut on either side of the line; the price at which both cost the same is tried next.
    let mut over = relaxation.cut(0.0);
    let mut under = relaxation.cut(total + 1.0);
    let mut best = Relaxed { bound: 0.0, rematerialized: Vec::new() };
    if over.bytes <= capacity {
        best.rematerialized.push(over.rematerialized);
        return best;
    }
    if capacity < 0.0 {
        // The call alone does not fit: no schedule does.
        best.bound = under.nanoseconds;
        best.rematerialized.push(under.rematerialized);
        return best;
    }
    for _ in 0..MAX_PRICES {
        let price = (under.nanoseconds - over.nanoseconds) / (over.bytes - under.bytes);
        if price.is_nan() || price <= 0.0 {
            break;
        }
        let cut = relaxation.cut(price);
        best.bound = best.bound.max(cut.value - price * capacity);
        let known = over.nanoseconds + price * over.bytes;
        if cut.value >= known * (1.0 - 1e-9) {
            break;
        }
        if cut.bytes <= capacity {
            under = cut;
        } else {
            over = cut;
        }
    }
    best.rematerialized.push(under.rematerialized);
    best.rematerialized.push(over.rematerialized);
    best
}

/// The first call after `after` that reads a tensor in the recorded order; the end of the step reads kept tensors.
pub(super) fn next_read(table: &Table, tensor: u32, after: usize) -> Option<usize> {
    let mut readers = table.readers.row(tensor as usize).iter().map(|&r| r as usize);
    readers.find(|&r| r > after).or(table.kept[tensor as usize].then_some(table.calls))
}

struct Relaxation<'a> {
    table: &'a Table,
    call: usize,
    /// Capacities are nanoseconds times this, so that rounding does not matter.
    scale: u64,
    /// Bytes of the call itself, pinned tensors included.
    call_bytes: u64,
    network: FlowNetwork,
    /// Edges whose capacity is a tensor's price: (edge, tensor).
    priced: Vec<(usize, u32)>,
    /// The other edges with their capacities.
    fixed: Vec<(usize, u64)>,
}

impl<'a> Relaxation<'a> {
    /// Nodes are the calls before the position, the tensors they wrote, source and sink. On the sink's side are calls
    /// that are rematerialized and tensors that are read afterwards.
    fn new(table: &'a Table, call: usize, until: Option<usize>) -> Self {
        let node = |t: u32| call + t as usize;
        let (source, sink) = (call + table.tensors, call + table.tensors + 1);
        let mut network = FlowNetwork::new(sink + 1);
        let mut fixed = Vec::new();
        let mut priced = Vec::new();
        let mut add_fixed = |network: &mut FlowNetwork, from, to, capacity| {
            fixed.push((network.edge(from, to, capacity), capacity));
        };
        let resident = table.inputs.row(call);
        let total: u64 = table.nanoseconds[..call].iter().sum();
        let scale = ((INFINITE >> 4) / (total + 1)).clamp(1, 1 << 20);
        for producer in 0..call {
            let time = if table.once[producer] { INFINITE } else { table.nanoseconds[producer] * scale };
            add_fixed(&mut network, source, producer, time);
            for &input in table.inputs.row(producer) {
                add_fixed(&mut network, node(input), producer, INFINITE);
            }
            for &tensor in table.outputs.row(producer) {
                if !resident.contains(&tensor) {
                    priced.push((network.edge(producer, node(tensor), 0), tensor));
                }
                if next_read(table, tensor, call).is_some_and(|r| until.is_none_or(|u| r <= u)) {
                    add_fixed(&mut network, node(tensor), sink, INFINITE);
                }
            }
        }
        Self { table, call, scale, call_bytes: call_bytes(table, call), network, priced, fixed }
    }

    /// The minimum cut at a price per resident byte.
    fn cut(&mut self, price: f64) -> Cut {
        for &(edge, capacity) in &self.fixed {
            self.network.reset(edge, capacity);
        }
        for &(edge, tensor) in &self.priced {
            let cost = price * self.table.bytes[tensor as usize] as f64 * self.scale as f64;
            self.network.reset(edge, cost.min((INFINITE / 2) as f64) as u64);
        }
        let sink = self.call + self.table.tensors + 1;
        let value = self.network.min_cut(sink - 1, sink) as f64 / self.scale as f64;
        let rematerialized: Vec<bool> = (0..self.call).map(|c| !self.network.is_source_side(c)).collect();
        let times = rematerialized.iter().zip(&self.table.nanoseconds);
        let nanoseconds = times.filter(|p| *p.0).map(|p| *p.1 as f64).sum();
        let resident = self.priced.iter().filter(|&&(_, t)| {
            let producer = self.table.producer[t as usize] as usize;
            !rematerialized[producer] && !self.network.is_source_side(self.call + t as usize)
        });
        let bytes = resident.map(|&(_, t)| self.table.bytes[t as usize] as f64).sum();
        Cut { value, nanoseconds, bytes, rematerialized }
    }
}
