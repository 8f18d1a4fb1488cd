"""Freezes ten training steps of four small models from PyTorch, in f64.

    python freeze_runs.py FOLDER

writes FOLDER/{mlp,lenet,resnet20,gpt}.json:

    {"model": "mlp", "formula_check": [[name, i, u(i)], ...],
     "runs": {"sgd": RUN, "adamw": RUN}}
    RUN = {"losses": [one per step], "parameters": {name: SUMMARY}, "statistics": {name: SUMMARY}}
    SUMMARY = {"shape": [...], "sum": ..., "squares": ..., "first": [four elements], "last": [four elements]}

Losses are those of the steps' forward passes, before their updates; parameters and statistics are those after step ten
(elements in row-major order of the layout below; a tensor of fewer than four elements gives all it has).

Nothing random. Element i of the tensor named S is made from

    h    = FNV-1a of S's bytes, 64 bits (offset basis 0xcbf29ce484222325, prime 0x100000001b3)
    z    = h + (i + 1) * 0x9e3779b97f4a7c15, then SplitMix64's mixing of z, all modulo 2^64
    u(i) = (z >> 11) * 2^-53

  - parameters of rank 2 and more: (u - 0.5) * 2 * bound with bound = sqrt(1 / fan_in), fan_in the product of all
    extents but the last; tables (names that end in `/table`): bound 0.1
  - gains (names that end in `/gain`): 1 + 0.1 * (u - 0.5)
  - biases: 0.1 * (u - 0.5)
  - images and vectors of step s = 0..9: S is "x{s}", (u - 0.5) * 2; tokens: floor(u * vocabulary)
  - labels of step s: S is "labels{s}", floor(u * classes)

Layout: dense kernels [in, out], convolutions [kh, kw, in, out], images [n, h, w, c]. Losses are means over rows.

Optimizers: `sgd`: v = 0.9 v + g, p -= 0.01 v (gentle, so that f32 rounding
seldom flips a relu). `adamw`: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, decoupled weight decay
0.01 on every parameter, biases and norms included.

Models (parameters by name):
  - mlp: 12-16-16-10, relu between, batch 6. dense{1..3}/{kernel,bias}.
  - lenet: images 12x12x1, batch 4. conv1 5x5 padding 2, 6 channels, bias, relu, max pool 2x2; conv2 5x5 no padding, 16
    channels, bias, relu, max pool 2x2; flattened 16-120-84-10, relu between. conv{1,2}/..., dense{1..3}/...
  - resnet20: images 8x8x3, batch 8. conv 3x3, norm, relu; stages of 16, 32, 64 channels, three blocks each,
    relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)), where stages 2 and 3 begin with stride 2 and a 1x1
    convolution with a norm as shortcut; mean over the image, head 64-10. 3x3 convolutions have padding 1 and no
    bias; norms take the batch's statistics, eps 1e-5. Running statistics of the first norm: momentum 0.1, unbiased
    variance, from 0 and 1.
  - gpt: 2 blocks, width 16, 2 heads, context 8, vocabulary 11, batch 3. Tokens and positions looked up and added;
    blocks x += output(attention(norm1(x))), x += down(gelu(up(norm2(x)))), causal, scale 1/sqrt(8), exact gelu;
    norm, head without bias. Layer norms have eps 1e-5.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
STEPS = 10


def fnv(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def uniform(name, *shape):
    """u(i) for every element."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(name)) + np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy((z >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)


def parameter(name, *shape):
    u = uniform(name, *shape)
    if len(shape) >= 2:
        bound = 0.1 if name.endswith("/table") else math.sqrt(1 / math.prod(shape[:-1]))
        return (u - 0.5) * 2 * bound
    return 1 + 0.1 * (u - 0.5) if name.endswith("/gain") else 0.1 * (u - 0.5)


def signal(step, *shape):
    return (uniform(f"x{step}", *shape) - 0.5) * 2


def classes(name, count, *shape):
    return (uniform(name, *shape) * count).floor().long()


class Model:
    """Parameters by name; they are made where the forward pass first asks for them."""

    def __init__(self):
        self.parameters = {}
        self.statistics = {}

    def get(self, name, *shape):
        if name not in self.parameters:
            self.parameters[name] = parameter(name, *shape).requires_grad_()
        assert self.parameters[name].shape == shape
        return self.parameters[name]

    def dense(self, name, x, outputs, bias=True):
        y = x @ self.get(f"{name}/kernel", x.shape[-1], outputs)
        return y + self.get(f"{name}/bias", outputs) if bias else y

    def conv(self, kernel, x, window, outputs, stride=1, padding=0):
        """Convolution of an NHWC image, without bias."""
        weight = self.get(kernel, window, window, x.shape[3], outputs)
        y = F.conv2d(x.permute(0, 3, 1, 2), weight.permute(3, 2, 0, 1), stride=stride, padding=padding)
        return y.permute(0, 2, 3, 1)

    def batch_norm(self, name, x, running=False):
        channels = x.shape[3]
        kept = [None, None]
        if running:
            mean = self.statistics.setdefault(f"{name}/running_mean", torch.zeros(channels))
            kept = [mean, self.statistics.setdefault(f"{name}/running_variance", torch.ones(channels))]
        gain, bias = self.get(f"{name}/gain", channels), self.get(f"{name}/bias", channels)
        y = F.batch_norm(x.permute(0, 3, 1, 2), *kept, gain, bias, training=True, momentum=0.1, eps=1e-5)
        return y.permute(0, 2, 3, 1)

    def layer_norm(self, name, x):
        width = x.shape[-1]
        return F.layer_norm(x, [width], self.get(f"{name}/gain", width), self.get(f"{name}/bias", width), 1e-5)


def max_pool(x):
    return F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def mlp(model, step):
    x = signal(step, 6, 12)
    x = torch.relu(model.dense("dense1", x, 16))
    x = torch.relu(model.dense("dense2", x, 16))
    return F.cross_entropy(model.dense("dense3", x, 10), classes(f"labels{step}", 10, 6))


def lenet(model, step):
    x = signal(step, 4, 12, 12, 1)
    x = model.conv("conv1/kernel", x, 5, 6, padding=2) + model.get("conv1/bias", 6)
    x = max_pool(torch.relu(x))
    x = model.conv("conv2/kernel", x, 5, 16) + model.get("conv2/bias", 16)
    x = max_pool(torch.relu(x)).reshape(4, 16)
    x = torch.relu(model.dense("dense1", x, 120))
    x = torch.relu(model.dense("dense2", x, 84))
    return F.cross_entropy(model.dense("dense3", x, 10), classes(f"labels{step}", 10, 4))


def resnet20(model, step):
    x = model.conv("conv/kernel", signal(step, 8, 8, 8, 3), 3, 16, padding=1)
    x = torch.relu(model.batch_norm("norm", x, running=True))
    for stage, width in enumerate([16, 32, 64], start=1):
        for block in range(1, 4):
            name = f"stage{stage}/block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            y = model.conv(f"{name}/conv1/kernel", x, 3, width, stride, padding=1)
            y = torch.relu(model.batch_norm(f"{name}/norm1", y))
            y = model.conv(f"{name}/conv2/kernel", y, 3, width, padding=1)
            y = model.batch_norm(f"{name}/norm2", y)
            if stride == 2:
                x = model.conv(f"{name}/shortcut/kernel", x, 1, width, stride)
                x = model.batch_norm(f"{name}/shortcut_norm", x)
            x = torch.relu(y + x)
    return F.cross_entropy(model.dense("head", x.mean((1, 2)), 10), classes(f"labels{step}", 10, 8))


def gpt(model, step):
    batch, context, width, heads, vocabulary = 3, 8, 16, 2, 11
    tokens = classes(f"x{step}", vocabulary, batch, context)
    x = F.embedding(tokens, model.get("tokens/table", vocabulary, width)) + model.get("positions/table", context, width)
    for block in ("block1", "block2"):
        y = model.layer_norm(f"{block}/norm1", x)
        split = lambda t: t.reshape(batch, context, heads, width // heads).transpose(1, 2)  # noqa: E731
        q, k, v = (split(model.dense(f"{block}/attention/{part}", y, width)) for part in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, context, width)
        x = x + model.dense(f"{block}/attention/output", y, width)
        y = F.gelu(model.dense(f"{block}/mlp/up", model.layer_norm(f"{block}/norm2", x), 4 * width))
        x = x + model.dense(f"{block}/mlp/down", y, width)
    logits = model.dense("head", model.layer_norm("norm", x), vocabulary, bias=False)
    labels = classes(f"labels{step}", vocabulary, batch, context)
    return F.cross_entropy(logits.reshape(-1, vocabulary), labels.reshape(-1))


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(
        parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    ),
}


def train(forward, optimizer):
    model = Model()
    forward(model, 0)
    # That pass made the parameters; the statistics start over.
    model.statistics.clear()
    optimizer = OPTIMIZERS[optimizer](model.parameters.values())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = forward(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    summaries = lambda tensors: {name: summary(tensor) for name, tensor in tensors.items()}  # noqa: E731
    return {"losses": losses, "parameters": summaries(model.parameters), "statistics": summaries(model.statistics)}


def summary(tensor):
    flat = tensor.detach().reshape(-1)
    sums = {"sum": flat.sum().item(), "squares": (flat * flat).sum().item()}
    return {"shape": list(tensor.shape), **sums, "first": flat[:4].tolist(), "last": flat[-4:].tolist()}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    names = [("x0", 5), ("labels9", 3), ("dense1/kernel", 191), ("stage3/block2/conv1/kernel", 36863), ("norm/gain", 0)]
    check = [[name, i, uniform(name, i + 1)[i].item()] for name, i in names]
    for forward in (mlp, lenet, resnet20, gpt):
        runs = {name: train(forward, name) for name in OPTIMIZERS}
        golden = {"model": forward.__name__, "formula_check": check, "runs": runs}
        (folder / f"{forward.__name__}.json").write_text(json.dumps(golden, indent=1, allow_nan=False) + "\n")
        losses = {name: [round(loss, 4) for loss in run["losses"]] for name, run in runs.items()}
        print(forward.__name__, losses)


if __name__ == "__main__":
    main()
