//! Minimum cut by Dinic's algorithm, on graphs of a few thousand vertices.

/// A flow network.
#[derive(Default)]
pub(crate) struct Network {
    /// (to, capacity left); edge `e ^ 1` is the reverse of edge `e`.
    edges: Vec<(usize, u64)>,
    /// Edges out of each vertex.
    out: Vec<Vec<usize>>,
}

/// A capacity that no cut pays.
pub(crate) const INFINITE: u64 = u64::MAX / 4;

impl Network {
    /// A network of `vertices` without edges.
    pub fn new(vertices: usize) -> Self {
        Self { edges: Vec::new(), out: vec![Vec::new(); vertices] }
    }

    /// Adds an edge.
    pub fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        self.out[from].push(self.edges.len());
        self.edges.push((to, capacity));
        self.out[to].push(self.edges.len());
        self.edges.push((from, 0));
    }

    /// The vertices from which the sink can still be reached after the largest flow has been sent: the sink's side of
    /// the minimum cut that lies nearest to the sink.
    pub fn sink_side(mut self, source: usize, sink: usize) -> Vec<bool> {
        while let Some(levels) = self.levels(source, sink) {
            let mut next = vec![0; self.out.len()];
            while self.augment(source, sink, &levels, &mut next) > 0 {}
        }
        let mut side = vec![false; self.out.len()];
        side[sink] = true;
        let mut stack = vec![sink];
        while let Some(vertex) = stack.pop() {
            for &edge in &self.out[vertex] {
                let from = self.edges[edge].0;
                if self.edges[edge ^ 1].1 > 0 && !side[from] {
                    side[from] = true;
                    stack.push(from);
                }
            }
        }
        side
    }

    /// Distance of every vertex from the source along edges with capacity, if the sink can be reached.
    fn levels(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut levels = vec![usize::MAX; self.out.len()];
        levels[source] = 0;
        let mut queue = std::collections::VecDeque::from([source]);
        while let Some(vertex) = queue.pop_front() {
            for &edge in &self.out[vertex] {
                let (to, capacity) = self.edges[edge];
                if capacity > 0 && levels[to] == usize::MAX {
                    levels[to] = levels[vertex] + 1;
                    queue.push_back(to);
                }
            }
        }
        (levels[sink] != usize::MAX).then_some(levels)
    }

    /// Sends flow along one path of rising levels; iterative, because chains can be thousands of vertices long.
    fn augment(&mut self, source: usize, sink: usize, levels: &[usize], next: &mut [usize]) -> u64 {
        let mut path: Vec<usize> = Vec::new();
        let mut vertex = source;
        while vertex != sink {
            let Some(&edge) = self.out[vertex].get(next[vertex]) else {
                let Some(back) = path.pop() else { return 0 };
                vertex = self.edges[back ^ 1].0;
                next[vertex] += 1;
                continue;
            };
            let (to, capacity) = self.edges[edge];
            if capacity > 0 && levels[to] == levels[vertex] + 1 {
                path.push(edge);
                vertex = to;
            } else {
                next[vertex] += 1;
            }
        }
        let sent = path.iter().map(|&e| self.edges[e].1).min().unwrap_or(0);
        for edge in path {
            self.edges[edge].1 -= sent;
            self.edges[edge ^ 1].1 += sent;
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_nearest_to_the_sink_is_found() {
        // source -5-> 1 -3-> 2 -3-> sink: two cuts of 3; the nearer one leaves only the sink behind it.
        let mut network = Network::new(4);
        network.edge(0, 1, 5);
        network.edge(1, 2, 3);
        network.edge(2, 3, 3);
        assert_eq!(network.sink_side(0, 3), [false, false, false, true]);
    }

    #[test]
    fn parallel_paths_add_up() {
        let mut network = Network::new(4);
        network.edge(0, 1, 2);
        network.edge(0, 2, 2);
        network.edge(1, 3, INFINITE);
        network.edge(2, 3, INFINITE);
        network.edge(1, 2, 1);
        assert_eq!(network.sink_side(0, 3), [false, true, true, true]);
    }
}
