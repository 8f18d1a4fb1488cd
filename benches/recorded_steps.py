#!/usr/bin/env python3
"""Processor time of `plan --workload` on steps of thousands of calls: each answer should take less than five seconds of one core.

    python3 benches/recorded_steps.py BINARY [--calls 8000] [--fractions 0.7,0.5,0.3,0.2] [--kinds resnet,lstm] [FILE.json ...]

Writes generated steps to a temporary folder, plans them and the workload files named under each fraction of their recorded peak, and
prints a table: user time, overhead, and its lower bound; where no schedule was found, the smallest line found and a lower bound of
every schedule's peak, in MiB. The last line of each step is 1.5 times what its largest call needs, in bytes. Exits 1 if an answer took
longer than `--seconds`, or if that line has no schedule though the bound allows one.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

MIB = 1 << 20


class Step:
    """A training step as it would be recorded: forward calls, backward calls, and an update for each parameter.

    Times are those of a device with 10 TFLOP/s, 500 GB/s, and 5 microseconds to launch a call.
    """

    def __init__(self):
        self.tensors, self.pinned, self.keep, self.calls, self.forward = [], [], [], [], []
        self.random = random.Random(1)

    def tensor(self, size, pinned=False):
        self.tensors.append(size)
        if pinned:
            self.pinned.append(len(self.tensors) - 1)
        return len(self.tensors) - 1

    def call(self, op, inputs, size, operations=0, in_place=()):
        output = self.tensor(size)
        moved = sum(self.tensors[t] for t in inputs) + size
        jitter = self.random.uniform(0.9, 1.1)
        ns = int((5_000 + operations // 10_000 + moved // 500) * jitter)
        self.calls.append({"op": op, "ns": ns, "in": list(dict.fromkeys(inputs)), "out": [output], "in_place": list(in_place)})
        return output

    def op(self, op, inputs, size, saves, operations=0, parameter=None):
        """A forward call, and what its backward call reads beside the gradient: its `inputs`, its `output`, or nothing."""
        reads = inputs if parameter is None else [*inputs, parameter]
        output = self.call(op, reads, size, operations)
        self.forward.append((op, inputs, output, saves, operations, parameter))
        return output

    def product(self, x, size, operations, parameter):
        return self.op("product", [x], size, "inputs", operations, parameter)

    def norm(self, x):
        return self.op("norm", [x], self.tensors[x], "inputs")

    def relu(self, x):
        return self.op("relu", [x], self.tensors[x], "output")

    def add(self, a, b):
        return self.op("add", [a, b], self.tensors[a], None)

    def backward(self):
        """Backward calls of all forward calls since the last time. Returns the parameters' gradients."""
        gradients = {}

        def accumulate(tensor, gradient):
            if tensor in gradients:
                gradients[tensor] = self.call("add", [gradients[tensor], gradient], self.tensors[tensor], 0, [gradients[tensor]])
            else:
                gradients[tensor] = gradient

        forward, self.forward = self.forward, []
        made = {output for _, _, output, *_ in forward}
        parameters = {parameter for *_, parameter in forward if parameter is not None}
        for op, inputs, output, saves, operations, parameter in reversed(forward):
            gradient = gradients.get(output)
            if gradient is None:
                gradient = self.call("loss", [output], self.tensors[output])
            saved = inputs if saves == "inputs" else [output] if saves == "output" else []
            if parameter is not None:
                accumulate(parameter, self.call(op + "_backward", [gradient, *saved], self.tensors[parameter], operations))
                saved = [parameter]
            for tensor in inputs:
                if tensor in made and saves is None:
                    accumulate(tensor, gradient)
                elif tensor in made:
                    accumulate(tensor, self.call(op + "_backward", [gradient, *saved], self.tensors[tensor], operations))
        return {parameter: gradients[parameter] for parameter in parameters}

    def update(self, parameter, gradient):
        """The new version of a parameter."""
        return self.call("update", [parameter, gradient], self.tensors[parameter], 0, [gradient])

    def finish(self, name):
        workload = {"name": name, "tensors": self.tensors, "pinned": self.pinned, "keep": self.keep, "calls": self.calls}
        workload["baseline_ns"] = sum(call["ns"] for call in self.calls)
        workload["recorded_peak_bytes"] = self.recorded_peak()
        return workload

    def recorded_peak(self):
        """The peak of the calls in order, without in-place outputs."""
        last = {t: len(self.calls) for t in self.keep}
        for at, call in enumerate(self.calls):
            for tensor in call["in"] + call["out"]:
                last[tensor] = max(last.get(tensor, 0), at)
        live = peak = sum(self.tensors[t] for t in self.pinned)
        pinned = set(self.pinned)
        for at, call in enumerate(self.calls):
            live += sum(self.tensors[t] for t in call["out"])
            peak = max(peak, live)
            live -= sum(self.tensors[t] for t in {*call["in"], *call["out"]} if last[t] == at and t not in pinned)
        return peak


def end(step):
    """Backward calls and updates at the end of a step."""
    for parameter, gradient in sorted(step.backward().items()):
        step.keep.append(step.update(parameter, gradient))


def transformer(calls):
    step, size = Step(), 8 * MIB
    x = step.product(step.tensor(size, True), size, 10 * size, step.tensor(MIB, True))
    for _ in range(calls // 44):
        y = step.norm(x)
        q, k, v = (step.product(y, size, 500 * size, step.tensor(MIB, True)) for _ in range(3))
        scores = step.op("matmul", [q, k], 2 * size, "inputs", 250 * size)
        weights = step.op("softmax", [scores], 2 * size, "output")
        y = step.op("matmul", [weights, v], size, "inputs", 250 * size)
        x = step.add(x, step.product(y, size, 500 * size, step.tensor(MIB, True)))
        y = step.product(step.norm(x), 4 * size, 500 * size, step.tensor(4 * MIB, True))
        y = step.op("gelu", [y], 4 * size, "inputs")
        x = step.add(x, step.product(y, size, 2000 * size, step.tensor(4 * MIB, True)))
    end(step)
    return step


def resnet(calls):
    step, blocks = Step(), calls // 18
    x = step.product(step.tensor(8 * MIB, True), 32 * MIB, 3000 * MIB, step.tensor(MIB // 16, True))
    for at in range(blocks):
        stage = 4 * at // blocks
        size = 32 * MIB >> stage
        y = x
        for last in (False, True):
            y = step.norm(step.product(y, size, (300 << stage) * size, step.tensor((MIB // 64) << 2 * stage, True)))
            y = y if last else step.relu(y)
        x = step.relu(step.add(x, y) if step.tensors[x] == size else y)
    end(step)
    return step


def lstm(calls):
    step, size = Step(), MIB // 2
    weights = step.tensor(8 * MIB, True)
    data = step.tensor(size, True)
    hidden, cell = (step.product(data, size, 100 * size, step.tensor(MIB, True)) for _ in range(2))
    for _ in range(calls // 24):
        gates = step.product(hidden, 4 * size, 2000 * size, weights)
        opened, new = (step.op("activation", [gates], size, "output") for _ in range(2))
        kept, added = (step.op("mul", pair, size, "inputs") for pair in ([opened, cell], [opened, new]))
        cell = step.add(kept, added)
        hidden = step.op("mul", [opened, step.op("tanh", [cell], size, "output")], size, "inputs")
    step.add(hidden, cell)
    end(step)
    return step


def updates(calls):
    """Many training steps of a small network in one: each reads the parameters that the one before it wrote."""
    step, size, layers = Step(), 2 * MIB, 8
    parameters = [step.tensor(4 * MIB, True) for _ in range(layers)]
    data = step.tensor(size, True)
    for _ in range(calls // (6 * layers)):
        x = data
        for parameter in parameters:
            x = step.relu(step.product(x, size, 2000 * size, parameter))
        gradients = step.backward()
        parameters = [step.update(parameter, gradients[parameter]) for parameter in parameters]
    step.keep.extend(parameters)
    return step


KINDS = {"transformer": transformer, "resnet": resnet, "lstm": lstm, "updates": updates}


def largest_call(workload):
    """What the largest call needs: pinned tensors, its inputs and outputs, and those of an output in place once."""
    tensors, pinned = workload["tensors"], set(workload["pinned"])
    most = sum(tensors[t] for t in workload["keep"] if t not in pinned)
    for call in workload["calls"]:
        outputs = [tensors[t] for t in call["out"]]
        bytes_ = sum(outputs) + sum(tensors[t] for t in set(call["in"]) - pinned)
        for tensor in call.get("in_place", []):
            if tensor not in pinned and tensors[tensor] in outputs:
                outputs.remove(tensors[tensor])
                bytes_ -= tensors[tensor]
        most = max(most, bytes_)
    return most + sum(tensors[t] for t in pinned)


def measure(binary, path, memory):
    """The answer, and the user time it took."""
    before = os.times().children_user
    done = subprocess.run([binary, "plan", "--workload", path, "--memory", memory, "--json"], capture_output=True, text=True)
    seconds = os.times().children_user - before
    try:
        return seconds, json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        sys.exit(f"{path}: {done.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--calls", type=int, default=8000)
    parser.add_argument("--fractions", default="0.7,0.5,0.4,0.3,0.2")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    slow = missing = 0
    with tempfile.TemporaryDirectory() as folder:
        files = list(arguments.files)
        for kind in filter(None, arguments.kinds.split(",")):
            files.append(os.path.join(folder, f"{kind}.json"))
            with open(files[-1], "w") as file:
                json.dump(KINDS[kind](arguments.calls).finish(kind), file)
        print("step            calls         line  seconds  overhead  at least  recomputed")
        for path in files:
            with open(path) as file:
                workload = json.load(file)
            half_more = largest_call(workload) * 3 // 2
            for memory in [*filter(None, arguments.fractions.split(",")), f"{half_more}B"]:
                seconds, answer = measure(arguments.binary, path, memory)
                slow += seconds >= arguments.seconds
                if answer["feasible"]:
                    figures = f"{answer['overhead']:>8.2%}  {answer['lower_bound_overhead']:>8.2%}  {answer['recomputed']:>10}"
                else:
                    smallest, least = answer["smallest_line_bytes"], answer["least_peak_bytes"]
                    missing += least <= answer["line_bytes"] == half_more
                    figures = f"no schedule: the smallest line found is {smallest / MIB:.1f}, none is below {least / MIB:.1f}"
                print(f"{workload['name']:<14}  {len(workload['calls']):>5}  {memory:>11}  {seconds:>7.2f}  {figures}", flush=True)
    sys.exit(1 if slow or missing else 0)


if __name__ == "__main__":
    main()
