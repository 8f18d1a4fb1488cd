//! Minimum cuts of flow networks, by Dinic's algorithm.
//!
//! Two decisions reduce to a cut: what forward saves for backward (`transform`), and what the planner rematerializes under a
//! Lagrangian price for bytes (`plan`).

use std::collections::VecDeque;

/// A directed network of vertices and edges with capacities.
///
/// ```
/// use plimsoll_graph::FlowNetwork;
/// let mut network = FlowNetwork::new(3);
/// network.edge(0, 1, 5);
/// network.edge(1, 2, 3);
/// assert_eq!(network.min_cut(0, 2), 3);
/// assert!(network.is_source_side(1));
/// assert_eq!(network.sink_side(2), [false, false, true]);
/// ```
pub struct FlowNetwork {
    /// Edges out of each vertex; edge `e ^ 1` is the reverse of edge `e`.
    out: Vec<Vec<u32>>,
    to: Vec<u32>,
    /// Residual capacity by edge.
    residual: Vec<u64>,
    /// Distance from the source along residual edges, plus one; 0 where it cannot be reached.
    level: Vec<u32>,
    /// The edge at which the search out of each vertex goes on.
    next: Vec<u32>,
}

impl FlowNetwork {
    /// A capacity that no minimum cut contains.
    pub const INFINITE: u64 = u64::MAX / 4;

    /// A network of so many vertices without edges.
    pub fn new(vertices: usize) -> Self {
        let (out, level, next) = (vec![Vec::new(); vertices], vec![0; vertices], vec![0; vertices]);
        Self { out, to: Vec::new(), residual: Vec::new(), level, next }
    }

    /// Adds an edge and returns its number.
    pub fn edge(&mut self, from: usize, to: usize, capacity: u64) -> usize {
        let id = self.to.len();
        self.out[from].push(id as u32);
        self.out[to].push(id as u32 + 1);
        self.to.extend([to as u32, from as u32]);
        self.residual.extend([capacity, 0]);
        id
    }

    /// Sets the capacity of an edge and removes the flow along it.
    pub fn reset(&mut self, edge: usize, capacity: u64) {
        (self.residual[edge], self.residual[edge + 1]) = (capacity, 0);
    }

    /// Sends the maximum flow and returns it: the capacity of a minimum cut. [`Self::is_source_side`] and
    /// [`Self::sink_side`] then give the sides of a cut.
    pub fn min_cut(&mut self, source: usize, sink: usize) -> u64 {
        let mut flow = 0;
        let mut path = Vec::new();
        while self.find_levels(source, sink) {
            self.next.fill(0);
            path.clear();
            while let Some(sent) = self.augment(source, sink, &mut path) {
                flow = u64::saturating_add(flow, sent);
            }
        }
        flow
    }

    /// Whether a vertex is on the source's side of the minimum cut nearest to the source.
    pub fn is_source_side(&self, vertex: usize) -> bool {
        self.level[vertex] > 0
    }

    /// The vertices on the sink's side of the minimum cut nearest to the sink: those that still reach it.
    pub fn sink_side(&self, sink: usize) -> Vec<bool> {
        let mut side = vec![false; self.out.len()];
        side[sink] = true;
        let mut stack = vec![sink];
        while let Some(vertex) = stack.pop() {
            for &edge in &self.out[vertex] {
                let from = self.to[edge as usize] as usize;
                if self.residual[edge as usize ^ 1] > 0 && !side[from] {
                    side[from] = true;
                    stack.push(from);
                }
            }
        }
        side
    }

    fn find_levels(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(0);
        self.level[source] = 1;
        let mut queue = VecDeque::from([source]);
        while let Some(vertex) = queue.pop_front() {
            for &edge in &self.out[vertex] {
                let to = self.to[edge as usize] as usize;
                if self.residual[edge as usize] > 0 && self.level[to] == 0 {
                    self.level[to] = self.level[vertex] + 1;
                    queue.push_back(to);
                }
            }
        }
        self.level[sink] > 0
    }

    /// Sends flow along one path of rising levels, and leaves its beginning up to the first edge without capacity, from where
    /// the next path goes on. Iterative, because chains can be thousands of vertices long.
    fn augment(&mut self, source: usize, sink: usize, path: &mut Vec<u32>) -> Option<u64> {
        let mut vertex = path.last().map_or(source, |&edge| self.to[edge as usize] as usize);
        while vertex != sink {
            let out = &self.out[vertex];
            let open = (self.next[vertex] as usize..out.len()).find(|&i| {
                let edge = out[i] as usize;
                self.residual[edge] > 0 && self.level[self.to[edge] as usize] == self.level[vertex] + 1
            });
            match open {
                Some(i) => {
                    self.next[vertex] = i as u32;
                    path.push(out[i]);
                    vertex = self.to[out[i] as usize] as usize;
                }
                None => {
                    self.next[vertex] = out.len() as u32;
                    let edge = path.pop()?;
                    vertex = self.to[edge as usize ^ 1] as usize;
                    self.next[vertex] += 1;
                }
            }
        }
        let sent = path.iter().map(|&e| self.residual[e as usize]).min()?;
        for &edge in path.iter() {
            self.residual[edge as usize] -= sent;
            self.residual[edge as usize ^ 1] += sent;
        }
        let full = path.iter().position(|&edge| self.residual[edge as usize] == 0);
        path.truncate(full.unwrap_or(0));
        Some(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::FlowNetwork;

    #[test]
    fn sink_side_is_the_cut_nearest_to_the_sink() {
        // source -5-> 1 -3-> 2 -3-> sink: two cuts of 3; the nearer one leaves only the sink behind it.
        let mut network = FlowNetwork::new(4);
        network.edge(0, 1, 5);
        network.edge(1, 2, 3);
        network.edge(2, 3, 3);
        assert_eq!(network.min_cut(0, 3), 3);
        assert_eq!(network.sink_side(3), [false, false, false, true]);
        assert_eq!([0, 1, 2, 3].map(|v| network.is_source_side(v)), [true, true, false, false]);
    }

    #[test]
    fn parallel_paths_add_up() {
        let mut network = FlowNetwork::new(4);
        network.edge(0, 1, 2);
        network.edge(0, 2, 2);
        network.edge(1, 3, FlowNetwork::INFINITE);
        network.edge(2, 3, FlowNetwork::INFINITE);
        network.edge(1, 2, 1);
        assert_eq!(network.min_cut(0, 3), 4);
        assert_eq!(network.sink_side(3), [false, true, true, true]);
    }
}
