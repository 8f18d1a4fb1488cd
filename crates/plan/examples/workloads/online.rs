//! An online method for comparison: Dynamic Tensor Rematerialization (DTR) with its `eq` heuristic.
//!
//! Whenever a call does not fit, the tensor is evicted with the least cost for its bytes and staleness. The cost counts
//! evicted neighbours, by equivalence classes (union-find) that are joined when neighbours are evicted.

use plimsoll_plan::remat::{Call, Problem};

/// Runs for each call, at most.
const MAX_RUNS_PER_CALL: usize = 20;

/// Nanoseconds of all runs under a line, if it fits.
pub fn online(problem: &Problem, line: u64) -> Option<u64> {
    let mut online = Online::new(problem, line);
    for call in 0..problem.calls.len() {
        online.run(call, 0)?;
        let Call { inputs, outputs, .. } = &problem.calls[call];
        for &tensor in inputs.iter().chain(outputs) {
            if online.last_use[tensor] <= call && !online.kept[tensor] {
                online.evict(tensor);
            }
        }
    }
    for &tensor in &problem.keep {
        online.hold(tensor, 0)?;
    }
    Some(online.nanoseconds)
}

struct Online<'a> {
    problem: &'a Problem,
    line: u64,
    producer: Vec<usize>,
    readers: Vec<Vec<usize>>,
    last_use: Vec<usize>,
    kept: Vec<bool>,
    ran: Vec<bool>,
    resident: Vec<bool>,
    residents: Vec<usize>,
    locks: Vec<u32>,
    last_access: Vec<u64>,
    /// By evicted tensor: its equivalence class; by class: its parent, and the time to rematerialize its members.
    class: Vec<usize>,
    classes: Vec<(usize, f64)>,
    live_bytes: u64,
    nanoseconds: u64,
    runs: usize,
}

impl<'a> Online<'a> {
    fn new(problem: &'a Problem, line: u64) -> Self {
        let tensors = problem.tensors.len();
        let mut producer = vec![usize::MAX; tensors];
        let mut readers = vec![Vec::new(); tensors];
        let mut last_use = vec![0; tensors];
        for (at, call) in problem.calls.iter().enumerate() {
            call.outputs.iter().for_each(|&t| (producer[t], last_use[t]) = (at, at));
            for &tensor in &call.inputs {
                readers[tensor].push(at);
                last_use[tensor] = at;
            }
        }
        let mut kept = vec![false; tensors];
        let mut resident = vec![false; tensors];
        problem.keep.iter().for_each(|&t| kept[t] = true);
        problem.pinned.iter().for_each(|&t| (kept[t], resident[t]) = (true, true));
        Self {
            problem,
            line,
            producer,
            readers,
            last_use,
            kept,
            ran: vec![false; problem.calls.len()],
            resident,
            residents: Vec::new(),
            locks: vec![0; tensors],
            last_access: vec![0; tensors],
            class: vec![usize::MAX; tensors],
            classes: Vec::new(),
            live_bytes: problem.pinned.iter().map(|&t| problem.tensors[t]).sum(),
            nanoseconds: 0,
            runs: 0,
        }
    }

    fn hold(&mut self, tensor: usize, depth: usize) -> Option<()> {
        if !self.resident[tensor] {
            self.run(self.producer[tensor], depth + 1)?;
        }
        self.locks[tensor] += 1;
        self.last_access[tensor] = self.nanoseconds;
        Some(())
    }

    fn run(&mut self, call: usize, depth: usize) -> Option<()> {
        let problem = self.problem;
        let what = &problem.calls[call];
        self.runs += 1;
        if depth > 2_000
            || self.runs > MAX_RUNS_PER_CALL * problem.calls.len()
            || (what.once && self.ran[call])
        {
            return None;
        }
        for &tensor in &what.inputs {
            self.hold(tensor, depth)?;
        }
        what.outputs.iter().for_each(|&t| self.locks[t] += 1);
        let new: u64 = what.outputs.iter().filter(|&&t| !self.resident[t]).map(|&t| problem.tensors[t]).sum();
        // In place: an output is written over an input that the program no longer uses.
        let unused = |t: &&usize| depth == 0 && self.last_use[**t] <= call && !self.kept[**t];
        let in_place = what.in_place.iter().filter(unused).map(|&t| problem.tensors[t]);
        let bytes = (new + what.workspace).saturating_sub(in_place.sum());
        while self.live_bytes + bytes > self.line {
            let victim = self.victim()?;
            self.evict(victim);
        }
        self.ran[call] = true;
        self.nanoseconds += what.nanoseconds;
        for &tensor in what.inputs.iter().chain(&what.outputs) {
            self.locks[tensor] -= 1;
            self.last_access[tensor] = self.nanoseconds;
        }
        for &tensor in &what.outputs {
            if !std::mem::replace(&mut self.resident[tensor], true) {
                self.residents.push(tensor);
                self.live_bytes += problem.tensors[tensor];
            }
            if self.class[tensor] != usize::MAX {
                let class = self.root(self.class[tensor]);
                self.classes[class].1 -= what.nanoseconds as f64;
                self.class[tensor] = usize::MAX;
            }
        }
        Some(())
    }

    fn victim(&mut self) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for at in 0..self.residents.len() {
            let tensor = self.residents[at];
            let bytes = self.problem.tensors[tensor];
            let producer = &self.problem.calls[self.producer[tensor]];
            if self.locks[tensor] > 0 || bytes == 0 || producer.once {
                continue;
            }
            let mut cost = producer.nanoseconds as f64;
            let mut seen = Vec::new();
            for other in self.neighbours(tensor) {
                let class = self.root(self.class[other]);
                if !seen.contains(&class) {
                    seen.push(class);
                    cost += self.classes[class].1;
                }
            }
            let staleness = (self.nanoseconds - self.last_access[tensor]) as f64 + 1.0;
            let score = cost / (bytes as f64 * staleness);
            if best.is_none_or(|b| score < b.0) {
                best = Some((score, tensor));
            }
        }
        best.map(|b| b.1)
    }

    /// Evicted tensors that a tensor is produced from, or that are produced from it.
    fn neighbours(&self, tensor: usize) -> Vec<usize> {
        let calls = &self.problem.calls;
        let from = calls[self.producer[tensor]].inputs.iter().copied();
        let into =
            self.readers[tensor].iter().filter(|&&r| self.ran[r]).flat_map(|&r| calls[r].outputs.iter());
        from.chain(into.copied()).filter(|&t| !self.resident[t] && self.class[t] != usize::MAX).collect()
    }

    fn evict(&mut self, tensor: usize) {
        if self.producer[tensor] == usize::MAX || !std::mem::replace(&mut self.resident[tensor], false) {
            return;
        }
        self.residents.retain(|&t| t != tensor);
        self.live_bytes -= self.problem.tensors[tensor];
        let class = self.classes.len();
        self.classes.push((class, self.problem.calls[self.producer[tensor]].nanoseconds as f64));
        for other in self.neighbours(tensor) {
            let other = self.root(self.class[other]);
            if other != class {
                self.classes[class].1 += self.classes[other].1;
                self.classes[other].0 = class;
            }
        }
        self.class[tensor] = class;
    }

    fn root(&mut self, mut class: usize) -> usize {
        while self.classes[class].0 != class {
            let parent = self.classes[class].0;
            self.classes[class].0 = self.classes[parent].0;
            class = parent;
        }
        class
    }
}
