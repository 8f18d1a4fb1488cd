"""Freezes ten steps of every optimizer from PyTorch, in f64.

    python freeze_optimizers.py FILE

writes FILE, an object:

    {"runs": {<optimizer>: {<parameter>: [...], ...}, ...}, "codes": {...}}

A run starts from parameters p of the shapes below with elements (u - 0.5) · 2, u from `formula.py` under the parameter's
name, and takes ten steps with these gradients: in step t, (u - 0.5) · 2 · (1 + i mod 7) / 4 for element i, u under
`<name>.g<t>`. Lion and bf16 moments, which PyTorch does not have, are implemented here.

`codes` is one step of 8-bit Adam from zero moments, as in bitsandbytes' blockwise kernel: the codes and scales of both
moments of the matrix `long`, with the map of `bitsandbytes.functional.create_dynamic_map`.
"""

import json
import sys

import numpy
import torch
from formula import uniform

torch.set_default_dtype(torch.float64)

SHAPES = {"matrix": [6, 5], "vector": [17], "stack": [2, 4, 3], "long": [9, 30]}
STEPS = 10


def start(name):
    return (uniform(name, *SHAPES[name]) - 0.5) * 2


def gradient(name, step):
    u = uniform(f"{name}.g{step}", *SHAPES[name])
    return (u - 0.5) * 2 * (1 + torch.arange(u.numel()).reshape(u.shape) % 7) / 4


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.sub_(lr * (update + decay * p))
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


class AdamBf16(torch.optim.Optimizer):
    """Adam with moments stored in bf16."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr, eps = group["betas"], group["lr"], group["eps"]
            for p in group["params"]:
                state = self.state[p]
                state["t"] = t = state.get("t", 0) + 1
                m = state.get("m", torch.zeros_like(p, dtype=torch.bfloat16)).double()
                v = state.get("v", torch.zeros_like(p, dtype=torch.bfloat16)).double()
                m = beta1 * m + (1 - beta1) * p.grad
                v = beta2 * v + (1 - beta2) * p.grad**2
                state["m"], state["v"] = m.bfloat16(), v.bfloat16()
                p.sub_(lr / (1 - beta1**t) * m / (v.sqrt() / (1 - beta2**t) ** 0.5 + eps))


def matrices_decay(parameters, decay):
    """Weight decay only on parameters with two or more axes."""
    split = lambda wanted: [p for p in parameters if (p.dim() > 1) == wanted]  # noqa: E731
    return [{"params": split(True), "weight_decay": decay}, {"params": split(False), "weight_decay": 0.0}]


def each_norm(parameters, most):
    for p in parameters:
        torch.nn.utils.clip_grad_norm_([p], most)


CLIPS = {
    "value": lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.25),
    "norm": lambda parameters: each_norm(parameters, 1.5),
    "global_norm": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 2.0),
}

optim = torch.optim
RUNS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, weight_decay=0.01),
    "rmsprop_centred": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adam_decay": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw_matrices": lambda p: optim.AdamW(matrices_decay(p, 0.1), lr=0.01),
    "adam_bf16": lambda p: AdamBf16(p, lr=0.01),
    "lion": lambda p: Lion(p, lr=0.01, weight_decay=0.1),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.05, eps=(1e-6, 1e-3), weight_decay=0.01),
    "adafactor_small": lambda p: optim.Adafactor(p, lr=0.5, eps=(1e-6, 1e-3)),
}
CLIPPED = {f"sgd_clip_{name}": clip for name, clip in CLIPS.items()}


def run(make, clip=None, average=None):
    """The parameters after ten steps, or their averages."""
    parameters = {name: torch.nn.Parameter(start(name)) for name in SHAPES}
    model = torch.nn.ParameterDict(parameters)
    optimizer = make(list(parameters.values()))
    if average is not None:
        averaged = torch.optim.swa_utils.get_ema_multi_avg_fn(average)
        averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=averaged)
    for step in range(STEPS):
        for name, p in parameters.items():
            p.grad = gradient(name, step)
        if clip is not None:
            clip(list(parameters.values()))
        optimizer.step()
        if average is not None:
            averaged.update_parameters(model)
    ends = dict(averaged.module.items()) if average is not None else parameters
    return {name: p.detach().reshape(-1).tolist() for name, p in ends.items()}


def create_dynamic_map(signed):
    """As in bitsandbytes.functional, with its defaults: signed or not, 7 exponent bits of 8."""
    data = []
    for i in range(7):
        items = 2**i + 1 if signed else 2 ** (i + 1) + 1
        boundaries = numpy.linspace(0.1, 1, items, dtype=numpy.float32)
        means = (boundaries[:-1] + boundaries[1:]) / numpy.float32(2.0)
        scaled = numpy.float32(10.0 ** (-6 + i)) * means
        data += scaled.tolist()
        if signed:
            data += (-scaled).tolist()
    data += [0.0, 1.0]
    assert len(data) == 256
    return numpy.array(sorted(data), dtype=numpy.float32)


def quantised(x, signed):
    """Codes and scales of blocks of 256, each code the nearest."""
    values = create_dynamic_map(signed)
    flat = x.reshape(-1).astype(numpy.float32)
    codes, scales = [], []
    for block in numpy.split(flat, range(256, len(flat), 256)):
        scale = numpy.abs(block).max()
        share = block / scale
        codes += numpy.abs(share[:, None] - values[None, :]).argmin(axis=1).tolist()
        scales.append(float(scale))
    return {"codes": codes, "scales": scales}


def main():
    runs = {name: run(make) for name, make in RUNS.items()}
    for name, clip in CLIPPED.items():
        runs[name] = run(RUNS["sgd"], clip=clip)
    runs["adamw_clip_global_norm"] = run(RUNS["adamw"], clip=CLIPS["global_norm"])
    runs["momentum_average"] = run(RUNS["momentum"], average=0.8)
    g = gradient("long", 0).numpy()
    codes = {"mean": quantised(0.1 * g, True), "variance": quantised(0.001 * g * g, False)}
    with open(sys.argv[1], "w") as file:
        json.dump({"runs": runs, "codes": codes}, file)
        file.write("\n")
    print(f"{len(runs)} runs")


if __name__ == "__main__":
    main()
