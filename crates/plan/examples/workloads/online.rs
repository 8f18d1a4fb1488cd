//! What a method that cannot see the future would do: Dynamic Tensor Rematerialization with its rule of thumb.
//!
//! Whenever a call does not fit, the tensor goes with the least time to make again for its bytes and for how long ago it
//! was used. The time counts the dropped tensors around it, by sets that are joined when neighbours are dropped.

use plimsoll_plan::remat::Problem;

/// Runs for each call at which to give up.
const RUNS: usize = 20;

/// Nanoseconds of all runs under a line, unless it gets nowhere.
pub fn online(problem: &Problem, line: u64) -> Option<u64> {
    let mut online = Online::new(problem, line);
    for call in 0..problem.calls.len() {
        online.run(call, 0)?;
        let what = &problem.calls[call];
        for &tensor in what.inputs.iter().chain(&what.outputs) {
            if online.last[tensor] <= call && !online.kept[tensor] {
                online.drop(tensor);
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
    maker: Vec<usize>,
    readers: Vec<Vec<usize>>,
    last: Vec<usize>,
    kept: Vec<bool>,
    ran: Vec<bool>,
    resident: Vec<bool>,
    list: Vec<usize>,
    locks: Vec<u32>,
    used_at: Vec<u64>,
    /// By tensor: its set of dropped neighbours, and by set the time to make it again.
    set: Vec<usize>,
    sets: Vec<(usize, f64)>,
    used: u64,
    nanoseconds: u64,
    runs: usize,
}

impl<'a> Online<'a> {
    fn new(problem: &'a Problem, line: u64) -> Self {
        let tensors = problem.tensors.len();
        let mut maker = vec![usize::MAX; tensors];
        let mut readers = vec![Vec::new(); tensors];
        let mut last = vec![0; tensors];
        for (at, call) in problem.calls.iter().enumerate() {
            call.outputs.iter().for_each(|&t| (maker[t], last[t]) = (at, at));
            for &tensor in &call.inputs {
                readers[tensor].push(at);
                last[tensor] = at;
            }
        }
        let mut kept = vec![false; tensors];
        let mut resident = vec![false; tensors];
        problem.keep.iter().for_each(|&t| kept[t] = true);
        problem.pinned.iter().for_each(|&t| (kept[t], resident[t]) = (true, true));
        Self {
            problem,
            line,
            maker,
            readers,
            last,
            kept,
            ran: vec![false; problem.calls.len()],
            resident,
            list: Vec::new(),
            locks: vec![0; tensors],
            used_at: vec![0; tensors],
            set: vec![usize::MAX; tensors],
            sets: Vec::new(),
            used: problem.pinned.iter().map(|&t| problem.tensors[t]).sum(),
            nanoseconds: 0,
            runs: 0,
        }
    }

    fn hold(&mut self, tensor: usize, depth: usize) -> Option<()> {
        if !self.resident[tensor] {
            self.run(self.maker[tensor], depth + 1)?;
        }
        self.locks[tensor] += 1;
        self.used_at[tensor] = self.nanoseconds;
        Some(())
    }

    fn run(&mut self, call: usize, depth: usize) -> Option<()> {
        let problem = self.problem;
        let what = &problem.calls[call];
        self.runs += 1;
        if depth > 2_000 || self.runs > RUNS * problem.calls.len() || (what.once && self.ran[call]) {
            return None;
        }
        for &tensor in &what.inputs {
            self.hold(tensor, depth)?;
        }
        what.outputs.iter().for_each(|&t| self.locks[t] += 1);
        let new: u64 = what.outputs.iter().filter(|&&t| !self.resident[t]).map(|&t| problem.tensors[t]).sum();
        // An output takes over an input that the program is done with.
        let done = |t: &&usize| depth == 0 && self.last[**t] <= call && !self.kept[**t];
        let over = what.in_place.iter().filter(done).map(|&t| problem.tensors[t]);
        let room = (new + what.workspace).saturating_sub(over.sum());
        while self.used + room > self.line {
            let victim = self.victim()?;
            self.drop(victim);
        }
        self.ran[call] = true;
        self.nanoseconds += what.nanoseconds;
        for &tensor in what.inputs.iter().chain(&what.outputs) {
            self.locks[tensor] -= 1;
            self.used_at[tensor] = self.nanoseconds;
        }
        for &tensor in &what.outputs {
            if !std::mem::replace(&mut self.resident[tensor], true) {
                self.list.push(tensor);
                self.used += problem.tensors[tensor];
            }
            if self.set[tensor] != usize::MAX {
                let set = self.root(self.set[tensor]);
                self.sets[set].1 -= what.nanoseconds as f64;
                self.set[tensor] = usize::MAX;
            }
        }
        Some(())
    }

    fn victim(&mut self) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for at in 0..self.list.len() {
            let tensor = self.list[at];
            let bytes = self.problem.tensors[tensor];
            let maker = &self.problem.calls[self.maker[tensor]];
            if self.locks[tensor] > 0 || bytes == 0 || maker.once {
                continue;
            }
            let mut cost = maker.nanoseconds as f64;
            let mut seen = Vec::new();
            for other in self.neighbours(tensor) {
                let set = self.root(self.set[other]);
                if !seen.contains(&set) {
                    seen.push(set);
                    cost += self.sets[set].1;
                }
            }
            let age = (self.nanoseconds - self.used_at[tensor]) as f64 + 1.0;
            let score = cost / (bytes as f64 * age);
            if best.is_none_or(|b| score < b.0) {
                best = Some((score, tensor));
            }
        }
        best.map(|b| b.1)
    }

    /// Dropped tensors that a tensor is made from, or that are made from it.
    fn neighbours(&self, tensor: usize) -> Vec<usize> {
        let calls = &self.problem.calls;
        let from = calls[self.maker[tensor]].inputs.iter().copied();
        let into =
            self.readers[tensor].iter().filter(|&&r| self.ran[r]).flat_map(|&r| calls[r].outputs.iter());
        from.chain(into.copied()).filter(|&t| !self.resident[t] && self.set[t] != usize::MAX).collect()
    }

    fn drop(&mut self, tensor: usize) {
        if self.maker[tensor] == usize::MAX || !std::mem::replace(&mut self.resident[tensor], false) {
            return;
        }
        self.list.retain(|&t| t != tensor);
        self.used -= self.problem.tensors[tensor];
        let set = self.sets.len();
        self.sets.push((set, self.problem.calls[self.maker[tensor]].nanoseconds as f64));
        for other in self.neighbours(tensor) {
            let other = self.root(self.set[other]);
            if other != set {
                self.sets[set].1 += self.sets[other].1;
                self.sets[other].0 = set;
            }
        }
        self.set[tensor] = set;
    }

    fn root(&mut self, mut set: usize) -> usize {
        while self.sets[set].0 != set {
            let above = self.sets[set].0;
            self.sets[set].0 = self.sets[above].0;
            set = above;
        }
        set
    }
}
