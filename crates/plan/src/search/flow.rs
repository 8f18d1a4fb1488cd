//! The smallest cut of a network (Dinic's method).

use std::collections::VecDeque;

/// A network of nodes and edges with capacities.
pub(super) struct Network {
    heads: Vec<Vec<u32>>,
    to: Vec<u32>,
    left: Vec<u64>,
    level: Vec<u32>,
    next: Vec<u32>,
}

impl Network {
    pub fn new(nodes: usize) -> Self {
        let (heads, level, next) = (vec![Vec::new(); nodes], vec![0; nodes], vec![0; nodes]);
        Self { heads, to: Vec::new(), left: Vec::new(), level, next }
    }

    /// Adds an edge; edges come in pairs with their way back.
    pub fn edge(&mut self, from: usize, to: usize, capacity: u64) -> usize {
        let id = self.to.len();
        self.heads[from].push(id as u32);
        self.heads[to].push(id as u32 + 1);
        self.to.extend([to as u32, from as u32]);
        self.left.extend([capacity, 0]);
        id
    }

    /// Gives an edge another capacity and its way back none.
    pub fn reset(&mut self, edge: usize, capacity: u64) {
        (self.left[edge], self.left[edge + 1]) = (capacity, 0);
    }

    /// The capacity of the smallest cut between two nodes; [`Network::is_near`] then tells its sides.
    pub fn cut(&mut self, source: usize, sink: usize) -> u64 {
        let mut flow = 0;
        while self.layer(source, sink) {
            self.next.fill(0);
            loop {
                let pushed = self.push(source, sink);
                if pushed == 0 {
                    break;
                }
                flow = u64::saturating_add(flow, pushed);
            }
        }
        flow
    }

    /// Whether a node lies on the source's side of the cut last found.
    pub fn is_near(&self, node: usize) -> bool {
        self.level[node] > 0
    }

    fn layer(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(0);
        self.level[source] = 1;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.heads[node] {
                let to = self.to[edge as usize] as usize;
                if self.left[edge as usize] > 0 && self.level[to] == 0 {
                    self.level[to] = self.level[node] + 1;
                    queue.push_back(to);
                }
            }
        }
        self.level[sink] > 0
    }

    /// Pushes along one path, and returns how much.
    fn push(&mut self, source: usize, sink: usize) -> u64 {
        let mut path: Vec<u32> = Vec::new();
        let mut node = source;
        while node != sink {
            let heads = &self.heads[node];
            let open = (self.next[node] as usize..heads.len()).find(|&i| {
                let edge = heads[i] as usize;
                self.left[edge] > 0 && self.level[self.to[edge] as usize] == self.level[node] + 1
            });
            match open {
                Some(i) => {
                    self.next[node] = i as u32;
                    path.push(heads[i]);
                    node = self.to[heads[i] as usize] as usize;
                }
                None => {
                    self.next[node] = heads.len() as u32;
                    let Some(edge) = path.pop() else { return 0 };
                    node = self.to[edge as usize ^ 1] as usize;
                    self.next[node] += 1;
                }
            }
        }
        let least = path.iter().map(|&e| self.left[e as usize]).min().unwrap_or(0);
        for edge in path {
            self.left[edge as usize] -= least;
            self.left[edge as usize ^ 1] += least;
        }
        least
    }
}
