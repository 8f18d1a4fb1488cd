//! Generated training steps like those of real models: forward calls, then backward calls.
//!
//! Sizes are those of a batch's activations; times are those of a device with 10 TFLOP/s, 500 GB/s, and 5 microseconds
//! to launch a call.

use plimsoll_plan::remat::{Call, Problem};
use plimsoll_tensor::random::Lcg;

/// The kinds of steps.
pub const KINDS: [&str; 9] =
    ["densenet", "tree", "lstm", "unet", "mobilenet", "transformer", "chain", "ushape", "random"];

/// What the backward call of a forward call reads beside the gradient.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Inputs,
    Output,
    Nothing,
}

struct Forward {
    inputs: Vec<usize>,
    output: usize,
    reads: Reads,
    operations: u64,
    /// Bytes of its parameters.
    parameters: u64,
}

struct Step {
    problem: Problem,
    forward: Vec<Forward>,
    random: Lcg,
}

/// A step of a kind with approximately so many calls.
pub fn step(kind: &str, calls: usize) -> Option<Problem> {
    let mut step = Step { problem: Problem::default(), forward: Vec::new(), random: Lcg::new(1) };
    step.problem.tensors.push(8 << 20);
    step.problem.pinned.push(0);
    match kind {
        "densenet" => step.densenet(calls),
        "tree" => step.tree(calls / 42),
        "lstm" => step.lstm(calls / 20),
        "unet" => step.unet(calls),
        "mobilenet" => step.mobilenet(calls / 24),
        "transformer" => step.transformer(calls / 32),
        "chain" => step.chain(calls / 3),
        "ushape" => step.u_shape(calls / 8),
        "random" => step.random(calls / 5),
        _ => return None,
    }
    Some(step.finish())
}

const KIB: u64 = 1 << 10;

impl Step {
    fn bytes(&self, tensor: usize) -> u64 {
        self.problem.tensors[tensor]
    }

    /// Adds a call. Its time is that of its launch, its operations, and its bytes read and written.
    fn call(&mut self, inputs: &[usize], bytes: u64, operations: u64) -> usize {
        let moved = inputs.iter().map(|&t| self.bytes(t)).sum::<u64>() + bytes;
        let output = self.problem.tensors.len();
        self.problem.tensors.push(bytes);
        self.problem.calls.push(Call {
            nanoseconds: 5_000 + operations / 10_000 + moved / 500,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            ..Call::default()
        });
        output
    }

    fn op(&mut self, inputs: &[usize], bytes: u64, reads: Reads, operations: u64, parameters: u64) -> usize {
        let output = self.call(inputs, bytes, operations);
        let forward = Forward { inputs: inputs.to_vec(), output, reads, operations, parameters };
        self.forward.push(forward);
        output
    }

    /// A convolution or matrix product with so many operations for each byte that it writes.
    fn product(&mut self, input: usize, bytes: u64, per_byte: u64) -> usize {
        self.op(&[input], bytes, Reads::Inputs, bytes * per_byte, per_byte * KIB / 4)
    }

    fn norm(&mut self, input: usize) -> usize {
        self.op(&[input], self.bytes(input), Reads::Inputs, 0, KIB)
    }

    fn relu(&mut self, input: usize) -> usize {
        self.op(&[input], self.bytes(input), Reads::Output, 0, 0)
    }

    fn join(&mut self, inputs: &[usize]) -> usize {
        let bytes = inputs.iter().map(|&t| self.bytes(t)).sum();
        self.op(inputs, bytes, Reads::Nothing, 0, 0)
    }

    fn add(&mut self, a: usize, b: usize) -> usize {
        self.op(&[a, b], self.bytes(a), Reads::Nothing, 0, 0)
    }

    fn multiply(&mut self, a: usize, b: usize) -> usize {
        self.op(&[a, b], self.bytes(a), Reads::Inputs, 0, 0)
    }

    fn block(&mut self, input: usize, bytes: u64, per_byte: u64) -> usize {
        let x = self.product(input, bytes, per_byte);
        let x = self.norm(x);
        self.relu(x)
    }

    /// Four stages of layers that each read the concatenation of all layers before them in the stage.
    fn densenet(&mut self, calls: usize) {
        let layers = calls / 88;
        let mut x = self.block(0, 32 << 20, 300);
        for (stage, share) in [1, 2, 3, 2].into_iter().enumerate() {
            let grown = (4 << 20) >> (2 * stage);
            let mut all = vec![x];
            for _ in 0..(layers * share / 2).max(2) {
                let joined = if all.len() > 1 { self.join(&all) } else { x };
                let y = self.norm(joined);
                let y = self.relu(y);
                let y = self.block(y, 4 * grown, 60);
                all.push(self.product(y, grown, 600));
            }
            let joined = self.join(&all);
            let y = self.block(joined, self.bytes(joined) / 2, 120);
            x = self.op(&[y], self.bytes(y) / 4, Reads::Nothing, 0, 0);
        }
    }

    /// A recurrence over a binary tree: products at the leaves, combined in pairs up to the root.
    fn tree(&mut self, leaves: usize) {
        let state = 256 * KIB;
        let mut level: Vec<usize> = (0..leaves.max(2)).map(|_| self.product(0, state, 200)).collect();
        while level.len() > 1 {
            let pairs: Vec<Vec<usize>> = level.chunks(2).map(<[usize]>::to_vec).collect();
            level =
                pairs.iter().map(|pair| if pair.len() == 2 { self.node(pair) } else { pair[0] }).collect();
        }
    }

    fn node(&mut self, pair: &[usize]) -> usize {
        let joined = self.join(pair);
        let gates = self.product(joined, 4 * 256 * KIB, 400);
        let open = self.op(&[gates], 3 * 256 * KIB, Reads::Output, 0, 0);
        let new = self.op(&[gates], 256 * KIB, Reads::Output, 0, 0);
        let (left, right) = (self.multiply(open, pair[0]), self.multiply(open, new));
        let left = self.op(&[left], 256 * KIB, Reads::Nothing, 0, 0);
        let right = self.op(&[right], 256 * KIB, Reads::Nothing, 0, 0);
        let sum = self.add(left, right);
        self.op(&[sum], 256 * KIB, Reads::Output, 0, 0)
    }

    fn lstm(&mut self, steps: usize) {
        let size = 512 * KIB;
        let mut hidden = self.product(0, size, 100);
        let mut cell = self.product(0, size, 100);
        for _ in 0..steps {
            let gates = self.product(hidden, 4 * size, 500);
            let open = self.op(&[gates], size, Reads::Output, 0, 0);
            let new = self.op(&[gates], size, Reads::Output, 0, 0);
            let kept = self.multiply(open, cell);
            let added = self.multiply(open, new);
            cell = self.add(kept, added);
            let out = self.op(&[cell], size, Reads::Output, 0, 0);
            hidden = self.multiply(open, out);
        }
        self.add(hidden, cell);
    }

    /// Five levels down and up again with skip connections; as many blocks on each level as the calls allow.
    fn unet(&mut self, calls: usize) {
        let blocks = (calls / 100).max(1);
        let mut x = 0;
        let mut skips = Vec::new();
        for level in 0..5 {
            let bytes = (64 << 20) >> level;
            for _ in 0..blocks {
                x = self.block(x, bytes, 300 << level);
            }
            if level < 4 {
                skips.push(x);
                x = self.op(&[x], bytes / 4, Reads::Inputs, 0, 0);
            }
        }
        for skip in skips.into_iter().rev() {
            let up = self.product(x, self.bytes(skip), 200);
            x = self.join(&[skip, up]);
            for _ in 0..blocks {
                x = self.block(x, self.bytes(skip), 400);
            }
        }
    }

    fn mobilenet(&mut self, blocks: usize) {
        let mut x = self.block(0, 16 << 20, 100);
        for at in 0..blocks {
            let bytes = (8 << 20) >> (4 * at / blocks.max(1));
            let wide = self.block(x, 6 * bytes, 16 << (4 * at / blocks.max(1)));
            let wide = self.block(wide, 6 * bytes, 9);
            let y = self.product(wide, bytes, 96 << (4 * at / blocks.max(1)));
            let y = self.norm(y);
            x = if self.bytes(x) == bytes { self.add(x, y) } else { y };
        }
    }

    fn transformer(&mut self, layers: usize) {
        let size = 8 << 20;
        let mut x = self.product(0, size, 10);
        for _ in 0..layers {
            let y = self.norm(x);
            let [q, k, v] = [0; 3].map(|_| self.product(y, size, 500));
            let scores = self.op(&[q, k], 2 * size, Reads::Inputs, size * 250, 0);
            let weights = self.op(&[scores], 2 * size, Reads::Output, 0, 0);
            let y = self.op(&[weights, v], size, Reads::Inputs, size * 250, 0);
            let y = self.product(y, size, 500);
            x = self.add(x, y);
            let y = self.norm(x);
            let y = self.product(y, 4 * size, 500);
            let y = self.op(&[y], 4 * size, Reads::Inputs, 0, 0);
            let y = self.product(y, size, 2_000);
            x = self.add(x, y);
        }
    }

    fn chain(&mut self, length: usize) {
        let mut x = self.product(0, 1 << 20, 100);
        for _ in 0..length {
            let bytes = [1024 * KIB, 1024 * KIB, 512 * KIB, 256 * KIB][self.random.below(4)];
            let per_byte = [0, 0, 0, 500][self.random.below(4)];
            x = self.op(&[x], bytes, Reads::Inputs, bytes * per_byte, 0);
        }
    }

    /// One deep U: every call down has a skip connection to its counterpart up.
    fn u_shape(&mut self, depth: usize) {
        let mut down = vec![self.product(0, 1 << 20, 100)];
        for at in 0..depth {
            down.push(self.product(down[at], (1 << 20) >> (4 * at / depth), 100));
        }
        let bottom = down.pop().unwrap_or(0);
        down.into_iter().rev().fold(bottom, |x, skip| {
            let bytes = self.bytes(skip);
            self.op(&[x, skip], bytes, Reads::Inputs, bytes * 100, 0)
        });
    }

    fn random(&mut self, forward: usize) {
        self.product(0, 1 << 20, 100);
        for _ in 0..forward {
            let count = self.problem.tensors.len();
            let old = 1 + self.random.below(count - 1);
            let recent = count - 1 - self.random.below(4.min(count - 1));
            let bytes = [1024 * KIB, 1024 * KIB, 512 * KIB, 256 * KIB][self.random.below(4)];
            let per_byte = [0, 0, 500][self.random.below(3)];
            let inputs = if old == recent { vec![old] } else { vec![old, recent] };
            self.op(&inputs, bytes, Reads::Inputs, bytes * per_byte, 0);
        }
    }

    /// Adds backward calls, from the last forward call: one for the gradient of each input, and one for that of the
    /// parameters, which is kept. Gradients of a value with several readers are summed, in place where possible.
    fn finish(mut self) -> Problem {
        let mut gradients: Vec<Option<usize>> = vec![None; self.problem.tensors.len()];
        let forward = std::mem::take(&mut self.forward);
        for call in forward.iter().rev() {
            let gradient = match gradients[call.output] {
                Some(gradient) => gradient,
                None => self.call(&[call.output], self.bytes(call.output), 0),
            };
            let mut reads = vec![gradient];
            match call.reads {
                Reads::Inputs => reads.extend(call.inputs.iter().filter(|&&t| t > 0)),
                Reads::Output => reads.push(call.output),
                Reads::Nothing => {}
            }
            if call.parameters > 0 {
                let kept = self.call(&reads, call.parameters, call.operations);
                self.problem.keep.push(kept);
                reads.truncate(1);
            }
            for &input in call.inputs.iter().filter(|&&t| t > 0) {
                let bytes = self.bytes(input);
                // The gradient of a sum is the gradient of each addend.
                let passed = call.reads == Reads::Nothing && bytes == self.bytes(gradient);
                let new = if passed { gradient } else { self.call(&reads, bytes, call.operations) };
                gradients[input] = Some(match gradients[input] {
                    Some(sum) => {
                        let all = self.call(&[sum, new], bytes, 0);
                        self.problem.calls.last_mut().into_iter().for_each(|c| c.in_place.push(sum));
                        all
                    }
                    None => new,
                });
            }
        }
        self.problem
    }
}
