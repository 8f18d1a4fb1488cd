"""Freezes what TensorFlow's model optimization toolkit answers: schedules of sparsity, masks, and a short training run.

    python3 -m venv tf-env && tf-env/bin/pip install tensorflow-cpu tf-keras tensorflow-model-optimization
    TF_USE_LEGACY_KERAS=1 tf-env/bin/python crates/compress/scripts/freeze_pruning.py crates/compress/golden/pruning.json

Schedules are asked step by step. Masks are those of the toolkit's own class for weights of several shapes. The run prunes one
weight matrix under gradients that are written down, with plain gradient descent: the toolkit masks before the forward pass of a
step, so `weights` are those that the next step would see, masked.
"""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow_model_optimization.python.core.sparsity.keras import pruning_impl, pruning_schedule


def schedules():
    cases = []
    for start, final, begin, end, power, every in [
        (0.5, 0.8, 0, 2000, 3, 100),
        (0.0, 0.9, 200, 1000, 3, 50),
        (0.25, 0.75, 3, 10, 1, 2),
        (0.8, 0.2, 10, 110, 2, 7),
    ]:
        schedule = pruning_schedule.PolynomialDecay(start, final, begin, end, power, every)
        cases.append({"kind": "polynomial", "from": start, "to": final, "begin": begin, "end": end, "power": power,
                      "every": every, "steps": answers(schedule, begin, end, every)})  # fmt: skip
    for sparsity, begin, end, every in [(0.5, 0, -1, 100), (0.8, 20, 60, 10)]:
        schedule = pruning_schedule.ConstantSparsity(sparsity, begin, end, every)
        cases.append({"kind": "constant", "to": sparsity, "begin": begin, "end": None if end < 0 else end,
                      "every": every, "steps": answers(schedule, begin, 500 if end < 0 else end, every)})  # fmt: skip
    return cases


def answers(schedule, begin, end, every):
    steps = {0, begin, max(begin - 1, 0), begin + 1, end, end - 1, end + 1, end + every}
    steps |= set(range(begin, end + 2 * every, max((end - begin) // 24, 1)))
    steps |= set(range(begin, end + every, every))
    rows = []
    for step in sorted(steps):
        updates, sparsity = schedule(tf.constant(step, tf.int64))
        rows.append([step, bool(updates), float(sparsity)])
    return rows


def mask(weights, sparsity):
    schedule = lambda _: (tf.constant(True), tf.constant(sparsity, tf.float32))  # noqa: E731
    pruning = pruning_impl.Pruning(lambda: 0, [], schedule, (1, 1), "AVG")
    threshold, found = pruning._update_mask(tf.constant(weights))
    return float(threshold), found.numpy()


def masks():
    random = np.random.default_rng(5)
    cases = []
    for shape, sparsity in [((7, 11), 0.5), ((3, 3, 2, 4), 0.8), ((100,), 0.333), ((33,), 0.0), ((9,), 0.95)]:
        weights = random.standard_normal(shape).astype(np.float32)
        weights.flat[:: 5] = np.float32(0.25)
        threshold, found = mask(weights, sparsity)
        cases.append({"sparsity": sparsity, "weights": weights.ravel().tolist(), "threshold": threshold,
                      "mask": [int(x) for x in found.ravel()]})  # fmt: skip
    return cases


def run():
    random = np.random.default_rng(6)
    schedule = pruning_schedule.PolynomialDecay(0.2, 0.75, 2, 8, 3, 2)
    weights = random.standard_normal((5, 6)).astype(np.float32)
    gradients = random.standard_normal((12, 5, 6)).astype(np.float32)
    case = {"from": 0.2, "to": 0.75, "begin": 2, "end": 8, "every": 2, "rate": 0.25, "weights": weights.ravel().tolist(),
            "gradients": [g.ravel().tolist() for g in gradients], "after": []}  # fmt: skip
    found = np.ones_like(weights)
    for step, gradient in enumerate(gradients):
        # The update of the step, then the masking that the toolkit does before the next forward pass.
        weights = weights - np.float32(0.25) * gradient
        updates, sparsity = schedule(tf.constant(step, tf.int64))
        if bool(updates):
            _, found = mask(weights, float(sparsity))
        weights = weights * found
        case["after"].append(weights.ravel().tolist())
    return case


with open(sys.argv[1], "w") as out:
    json.dump({"schedules": schedules(), "masks": masks(), "run": run()}, out)
    out.write("\n")
