"""Freezes every layer and loss from PyTorch, forward and gradient, in f64.

    python freeze_layers.py FILE

writes a list of cases:

    {"name": "conv1d/causal", "inputs": [{"name": "x", "type": "f64[2,5,3]", "scale": 1}, ...], "output": TENSOR,
     "gradients": {name: TENSOR}, "statistics": {name: TENSOR}}
    TENSOR = {"type": "f64[2,5,3]", "data": [...]}

`gradients` are those of `sum(output * upstream)`: of every float input that is not data, and of every parameter.
`statistics` are running statistics after the step. Parameters have Plimsoll's names and layouts: dense kernels [in, out],
convolutions [kh, kw, in / groups, out], images [n, h, w, c].

Inputs are not stored: u(i) of formula.py, for the tensor named "case/name", gives

  - floats of scale s: (u - 0.5) * 2 * s; the upstream gradient, named "upstream", has scale 1
  - integers of scale s: floor(u * s); booleans of scale s: u < s
  - parameters: u - 0.5; gains: 0.5 + u; running means: u - 0.5; running variances: 0.5 + u

Cases under loss/ have inputs `output` and `target`; the row weights are the input `weights` of scale 1, or, where a case
has none, each label's weight over the sum of all, as in a training step.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from freeze_runs import uniform
from torch.func import functional_call

CASES = []
TYPES = {torch.float64: "f64", torch.int32: "i32", torch.int64: "i32", torch.bool: "bool"}


def kind(tensor):
    return f"{TYPES[tensor.dtype]}[{','.join(str(extent) for extent in tensor.shape)}]"


def described(tensor):
    """A tensor as JSON, to thirteen digits."""
    return {"type": kind(tensor), "data": [float(f"{x:.13g}") for x in tensor.detach().reshape(-1).tolist()]}


class Case:
    """A case under construction: its tensors by name."""

    def __init__(self, name):
        self.name, self.inputs, self.wanted, self.statistics = name, [], {}, {}

    def uniform(self, name, *shape):
        return uniform(f"{self.name}/{name}", *shape)

    def input(self, name, tensor, scale):
        self.inputs.append({"name": name, "type": kind(tensor), "scale": scale})
        return tensor

    def data(self, name, *shape, scale=1):
        return self.input(name, (self.uniform(name, *shape) - 0.5) * 2 * scale, scale)

    def x(self, *shape, name="x", scale=1):
        self.wanted[name] = self.data(name, *shape, scale=scale).requires_grad_()
        return self.wanted[name]

    def integers(self, name, bound, *shape):
        return self.input(name, (self.uniform(name, *shape) * bound).floor().long(), bound)

    def mask(self, name, share, *shape):
        return self.input(name, self.uniform(name, *shape) < share, share)

    def p(self, name, *shape):
        shift = 0.5 if name.endswith("gain") else -0.5
        self.wanted[name] = (self.uniform(name, *shape) + shift).requires_grad_()
        return self.wanted[name]

    def done(self, y):
        upstream = (self.uniform("upstream", *y.shape) - 0.5) * 2
        gradients = torch.autograd.grad((y * upstream).sum(), list(self.wanted.values()))
        assert y.abs().max() > 1e-3 and all(torch.isfinite(g).all() for g in gradients), self.name
        self.freeze(y, gradients)

    def freeze(self, y, gradients):
        case = {
            "name": self.name, "inputs": self.inputs, "output": described(y),
            "gradients": {name: described(g) for name, g in zip(self.wanted, gradients)},
        }  # fmt: skip
        if self.statistics:
            case["statistics"] = {name: described(tensor) for name, tensor in self.statistics.items()}
        CASES.append(case)


def nchw(x):
    return x.permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


def hard_sigmoid(x):
    """PyTorch's own has 1/6 rounded to f32 in its gradient."""
    y = F.relu6(x + 3) / 6
    assert torch.allclose(y, F.hardsigmoid(x))
    return y


def activations():
    functions = {
        "relu": F.relu, "relu6": F.relu6, "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
        "elu": lambda x: F.elu(x, 0.7), "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu, "mish": F.mish, "hard_swish": F.hardswish, "hard_sigmoid": hard_sigmoid, "tanh": torch.tanh,
        "sigmoid": torch.sigmoid, "softplus": F.softplus, "softmax": lambda x: F.softmax(x, -1),
        "log_softmax": lambda x: F.log_softmax(x, -1),
    }  # fmt: skip
    for name, function in functions.items():
        case = Case(f"activation/{name}")
        case.done(function(case.x(3, 2, 5, scale=8)))


def dense():
    for name, bias in (("bias", True), ("plain", False)):
        case = Case(f"dense/{name}")
        x = case.x(3, 2, 4)
        y = x @ case.p("kernel", 4, 5)
        case.done(y + case.p("bias", 5) if bias else y)
    case = Case("embedding")
    tokens = case.integers("x", 5, 3, 4)
    case.done(F.embedding(tokens, case.p("table", 5, 3)))


def conv(case, x, window, channels, prefix="", bias=True, groups=1, padding=((0, 0), (0, 0)), **options):
    """Convolution of an NHWC image with padding ((top, bottom), (left, right))."""
    kernel = case.p(f"{prefix}kernel", *window, x.shape[3] // groups, channels)
    bias = case.p(f"{prefix}bias", channels) if bias else None
    (top, bottom), (left, right) = padding
    image = F.pad(nchw(x), (left, right, top, bottom))
    return nhwc(F.conv2d(image, kernel.permute(3, 2, 0, 1), bias, groups=groups, **options))


def convolutions():
    sequences = {
        "valid": ((0, 0), {}), "same": ((1, 2), {}), "causal": ((3, 0), {}), "dilation": ((3, 3), {"dilation": (1, 2)}),
        "causal_dilation": ((6, 0), {"dilation": (1, 2)}), "stride": ((1, 1), {"stride": (1, 2)}),
        "groups": ((1, 2), {"groups": 2}),
    }  # fmt: skip
    for name, (padding, options) in sequences.items():
        case = Case(f"conv1d/{name}")
        x = case.x(3, 6, 4)
        y = conv(case, x[:, None], (1, 4), 2, padding=((0, 0), padding), **options)
        # The same layer by conv1d.
        kernel, bias = case.wanted["kernel"][0].permute(2, 1, 0), case.wanted["bias"]
        options = {key: value[1] if isinstance(value, tuple) else value for key, value in options.items()}
        line = F.conv1d(F.pad(x.transpose(1, 2), padding), kernel, bias, **options).transpose(1, 2)
        assert torch.allclose(line, y[:, 0])
        case.done(line)
    images = {
        # Same padding: ceil(extent / stride) outputs, an odd element after.
        "same": ((3, 3), {"padding": ((1, 1), (1, 1))}),
        "valid": ((3, 2), {}),
        "stride": ((3, 3), {"padding": ((1, 1), (0, 1)), "stride": 2}),
        "dilation": ((2, 2), {"padding": ((1, 1), (1, 1)), "dilation": 2}),
        "groups": ((3, 3), {"padding": ((1, 1), (1, 1)), "groups": 2}),
        "explicit": ((3, 3), {"padding": ((0, 2), (1, 0))}),
        "plain": ((1, 1), {"bias": False}),
    }
    for name, (window, options) in images.items():
        case = Case(f"conv2d/{name}")
        case.done(conv(case, case.x(3, 5, 4, 2), window, 4, **options))
    case = Case("depthwise_conv2d")
    case.done(conv(case, case.x(3, 4, 3, 2), (3, 3), 4, groups=2, padding=((1, 1), (1, 1))))
    case = Case("separable_conv2d")
    x = conv(case, case.x(3, 5, 4, 2), (3, 3), 2, "depthwise/", False, 2, ((1, 1), (0, 1)), stride=2)
    case.done(conv(case, x, (1, 1), 3, "pointwise/"))
    # Same padding crops window - stride elements, an odd one after. An even crop of 2 p is PyTorch's padding p; with an odd
    # one its output_padding 1 would crop the odd element before, so the uncropped result is cropped here.
    transposed = {
        "valid": (3, {}), "valid_stride": (3, {"stride": 2}), "same": (3, {"padding": 1}),
        "same_even": (4, {"stride": 2, "padding": 1}), "same_odd": (3, {"stride": 2}),
        "same_window_below_stride": (2, {"stride": 3, "output_padding": 1}),
        "around": (3, {"stride": 2, "padding": 1}), "explicit": (3, {"stride": 2}),
    }  # fmt: skip
    crops = {"same_odd": ((0, 1), (0, 1)), "explicit": ((1, 0), (2, 1))}
    for name, (window, options) in transposed.items():
        case = Case(f"conv_transpose2d/{name}")
        x = case.x(2, 3, 2, 3)
        kernel, bias = case.p("kernel", window, window, 2, 3), case.p("bias", 2)
        y = F.conv_transpose2d(nchw(x), kernel.permute(3, 2, 0, 1), **options)
        (top, bottom), (left, right) = crops.get(name, ((0, 0), (0, 0)))
        y = y[:, :, top : y.shape[2] - bottom, left : y.shape[3] - right]
        case.done(nhwc(y + bias[:, None, None]))


def pools():
    functions = {
        "max_pool2d/valid": lambda x: F.max_pool2d(x, 2),
        "max_pool2d/padded": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
        "average_pool2d/valid": lambda x: F.avg_pool2d(x, 2),
        "average_pool2d/inside": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
        "average_pool2d/all": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
        "adaptive_average_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        "upsample/nearest": lambda x: F.interpolate(x, scale_factor=2),
        "upsample/bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "upsample/aligned": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    }
    for name, function in functions.items():
        case = Case(name)
        x = case.x(2, 3, 2, 2) if name.startswith("upsample") else case.x(2, 5, 5, 2)
        case.done(nhwc(function(nchw(x))))
    case = Case("global_average_pool")
    case.done(case.x(2, 3, 2, 3).mean((1, 2)))
    case = Case("global_max_pool")
    case.done(case.x(2, 3, 2, 3).amax((1, 2)))


def norms():
    for name, training in (("train", True), ("infer", False)):
        case = Case(f"batch_norm/{name}")
        x, gain, bias = case.x(3, 2, 2, 4), case.p("gain", 4), case.p("bias", 4)
        mean, variance = case.uniform("running_mean", 4) - 0.5, case.uniform("running_variance", 4) + 0.5
        y = F.batch_norm(nchw(x), mean, variance, gain, bias, training, 0.1, 1e-5)
        case.statistics = {"running_mean": mean, "running_variance": variance}
        case.done(nhwc(y))
    case = Case("layer_norm")
    case.done(F.layer_norm(case.x(3, 2, 5), [5], case.p("gain", 5), case.p("bias", 5)))
    case = Case("rms_norm")
    norm = torch.nn.RMSNorm(5, eps=1e-6)
    x = case.x(3, 2, 5)
    case.done(functional_call(norm, {"weight": case.p("gain", 5)}, (x,)))
    for groups in (1, 2, 4):
        case = Case(f"group_norm/{groups}")
        x, gain, bias = case.x(3, 2, 3, 4), case.p("gain", 4), case.p("bias", 4)
        case.done(nhwc(F.group_norm(nchw(x), groups, gain, bias)))


def projections(case, names, width, widths, prefix=""):
    """Weights [out, in] and biases of PyTorch's linear layers."""
    kernels = [case.p(f"{prefix}{name}/kernel", width, out).T for name, out in zip(names, widths)]
    return kernels, [case.p(f"{prefix}{name}/bias", out) for name, out in zip(names, widths)]


def attention_weights(case, width, prefix=""):
    kernels, biases = projections(case, ["query", "key", "value", "output"], width, [width] * 4, prefix)
    return {
        "in_proj_weight": torch.cat(kernels[:3]), "in_proj_bias": torch.cat(biases[:3]),
        "out_proj.weight": kernels[3], "out_proj.bias": biases[3],
    }  # fmt: skip


def rotary(x, base=10000.0):
    """Rotary position embedding of [n, heads, positions, width], rotating halves."""
    positions, width = x.shape[2:]
    rates = base ** (-2 * torch.arange(width // 2) / width)
    angles = torch.arange(positions)[:, None] * rates
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def attentions():
    hidden = lambda n: ~torch.ones(n, n, dtype=torch.bool).tril()  # noqa: E731
    for name in ("plain", "causal", "mask", "cross"):
        case = Case(f"attention/{name}")
        x = case.x(2, 3, 4)
        memory = case.x(2, 5, 4, name="memory") if name == "cross" else x
        module = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        options = {"need_weights": False}
        if name == "causal":
            options["attn_mask"] = hidden(3)
        if name == "mask":
            # Every position attends to itself, so that no row is empty.
            mask = case.mask("mask", 0.5, 2, 1, 3, 3) | torch.eye(3, dtype=torch.bool)
            options["attn_mask"] = ~mask.expand(2, 2, 3, 3).reshape(4, 3, 3)
        case.done(functional_call(module, attention_weights(case, 4), (x, memory, memory), options)[0])
    for name, heads, key_heads in (("grouped", 4, 2), ("rotary", 2, 2), ("grouped_rotary_causal", 2, 1)):
        case = Case(f"attention/{name}")
        x, size = case.x(2, 3, 8), 8 // heads
        widths = [8, key_heads * size, key_heads * size]
        kernels, biases = projections(case, ["query", "key", "value"], 8, widths)
        split = lambda t: t.reshape(2, 3, -1, size).transpose(1, 2)  # noqa: E731, B023
        q, k, v = (split(F.linear(x, kernel, bias)) for kernel, bias in zip(kernels, biases))
        q, k = (rotary(q), rotary(k)) if "rotary" in name else (q, k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal="causal" in name, enable_gqa=True)
        y = y.transpose(1, 2).reshape(2, 3, 8)
        case.done(y @ case.p("output/kernel", 8, 8) + case.p("output/bias", 8))
    case = Case("mlp")
    x = case.x(3, 2, 4)
    (up, down), (first, second) = mlp_weights(case, 4, 6)
    case.done(F.linear(torch.tanh(F.linear(x, up, first)), down, second))
    for name, before in (("before", True), ("after", False)):
        case = Case(f"transformer_block/{name}")
        x = case.x(2, 3, 4)
        module = torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, F.gelu, 1e-5, batch_first=True, norm_first=before)
        weights = {f"self_attn.{k}": v for k, v in attention_weights(case, 4, "attention/").items()}
        kernels, biases = mlp_weights(case, 4, 8, "mlp/")
        for i in (1, 2):
            weights |= {f"linear{i}.weight": kernels[i - 1], f"linear{i}.bias": biases[i - 1]}
            weights |= {f"norm{i}.weight": case.p(f"norm{i}/gain", 4), f"norm{i}.bias": case.p(f"norm{i}/bias", 4)}
        case.done(functional_call(module.train(), weights, (x,)))


def mlp_weights(case, width, hidden, prefix=""):
    up, down = case.p(f"{prefix}up/kernel", width, hidden).T, case.p(f"{prefix}down/kernel", hidden, width).T
    return [up, down], [case.p(f"{prefix}up/bias", hidden), case.p(f"{prefix}down/bias", width)]


def recurrences():
    """One bias for simple RNNs and LSTMs (PyTorch's second is zero), both for GRUs. A layer that returns its last output
    returns PyTorch's h_n: of the backward direction, the output at the first position."""
    cells = {
        "simple_rnn": (1, lambda x, h, w, both: torch.rnn_tanh(x, h, w, True, 1, 0.0, True, both, True)),
        "lstm": (4, lambda x, h, w, both: torch.lstm(x, (h, h), w, True, 1, 0.0, True, both, True)[:2]),
        "gru": (3, lambda x, h, w, both: torch.gru(x, h, w, True, 1, 0.0, True, both, True)),
    }
    for cell, (gates, run) in cells.items():
        for place in ("last", "all", "bidirectional_last", "bidirectional_all"):
            case = Case(f"{cell}/{place}")
            positions, width, units = 4, 3, 2
            x = case.x(3, positions, width)
            both, weights = place.startswith("bidirectional"), []
            for prefix in ("forward/", "backward/") if both else ("",):
                weights += [case.p(f"{prefix}kernel", width, gates * units).T]
                weights += [case.p(f"{prefix}recurrent_kernel", units, gates * units).T]
                weights += [case.p(f"{prefix}bias", gates * units)]
                second = case.p(f"{prefix}recurrent_bias", gates * units) if cell == "gru" else None
                weights += [torch.zeros(gates * units) if second is None else second]
            every, last = run(x, torch.zeros(1 + both, 3, units), weights, both)
            case.done(every if place.endswith("all") else last.transpose(0, 1).reshape(3, -1))


def shapes():
    case = Case("flatten")
    case.done(case.x(3, 2, 2).flatten(1))
    case = Case("reshape")
    case.done(case.x(3, 2, 4).reshape(3, 4, 2))
    case = Case("permute")
    case.done(case.x(3, 2, 3, 2).permute(0, 3, 1, 2))
    case = Case("residual")
    x = case.x(3, 4)
    case.done(x + x @ case.p("kernel", 4, 4) + case.p("bias", 4))
    for name, l1, l2 in (("l1", 0.3, 0.0), ("l2", 0.0, 0.2), ("both", 0.3, 0.2)):
        # Added to the loss, not to the output: only the kernel's gradient depends on it.
        case = Case(f"penalty/{name}")
        x, kernel, bias = case.x(3, 4), case.p("kernel", 4, 2), case.p("bias", 2)
        y = x @ kernel + bias
        upstream = (case.uniform("upstream", *y.shape) - 0.5) * 2
        loss = (y * upstream).sum() + l1 * kernel.abs().sum() + l2 * (kernel**2).sum()
        case.freeze(y, torch.autograd.grad(loss, list(case.wanted.values())))


def frozen_loss(case, rows):
    """Freezes `sum(weights * rows)`, or a scalar as it is."""
    loss = rows if rows.dim() == 0 else (rows * case.data("weights", *rows.shape)).sum()
    case.freeze(loss, torch.autograd.grad(loss, [case.wanted["output"]]))


def losses():
    for name, smoothing in (("plain", 0.0), ("smoothing", 0.1)):
        for part, scale in (("", 3), ("_extreme", 100)):
            case = Case(f"loss/cross_entropy/{name}{part}")
            x, target = case.x(4, 3, 5, name="output", scale=scale), case.integers("target", 5, 4, 3)
            rows = F.cross_entropy(nchw(x[:, None])[:, :, 0], target, reduction="none", label_smoothing=smoothing)
            frozen_loss(case, rows)
    weights = torch.tensor([0.5, 2.0, 1.0, 0.25, 1.5])
    means = {"class_weights": {"weight": weights}, "ignore": {}, "ignore_smoothing": {"label_smoothing": 0.1}}
    for name, options in means.items():
        case = Case(f"loss/cross_entropy/{name}")
        x, target = case.x(6, 5, name="output", scale=3), case.integers("target", 5, 6)
        if name != "class_weights":
            # The test makes labels 0 negative.
            target = torch.where(target == 0, -100, target)
            assert (target < 0).any() and (target >= 0).any()
        frozen_loss(case, F.cross_entropy(x, target, ignore_index=-100, **options))
    for part, scale in (("", 3), ("_extreme", 100)):
        case = Case(f"loss/soft_cross_entropy{part}")
        x = case.x(4, 5, name="output", scale=scale)
        target = case.data("target", 4, 5)
        frozen_loss(case, F.cross_entropy(x, target.softmax(1), reduction="none"))
        case = Case(f"loss/kl_divergence{part}")
        x, target = case.x(4, 5, name="output", scale=scale), case.data("target", 4, 5)
        frozen_loss(case, F.kl_div(x.log_softmax(1), target.softmax(1), reduction="none").sum(1))
        case = Case(f"loss/soft_cross_entropy/positions{part}")
        x, target = case.x(4, 2, 5, name="output", scale=scale), case.data("target", 4, 2, 5)
        rows = F.cross_entropy(x.transpose(1, 2), target.softmax(2).transpose(1, 2), reduction="none")
        frozen_loss(case, rows.mean(1))
        for name in ("binary_cross_entropy", "focal", "focal_half", "focal_zero"):
            case = Case(f"loss/{name}{part}")
            x, target = case.x(4, 3, name="output", scale=scale), case.integers("target", 2, 4, 3).double()
            terms = F.binary_cross_entropy_with_logits(x, target, reduction="none")
            if name != "binary_cross_entropy":
                # torchvision.ops.sigmoid_focal_loss, alpha 0.25; 1 - p_t from the logits, so that its gradient is finite.
                gamma = {"focal": 2.0, "focal_half": 0.5, "focal_zero": 0.0}[name]
                sign = 1 - 2 * target
                terms = terms * torch.exp(gamma * F.logsigmoid(sign * x)) * (0.25 * target + 0.75 * (1 - target))
            frozen_loss(case, terms.mean(1))
        case = Case(f"loss/dice{part}")
        x, target = case.x(2, 3, 2, 4, name="output", scale=scale), case.integers("target", 4, 2, 3, 2)
        p, t = x.softmax(-1), F.one_hot(target, 4).double()
        dice = (2 * (p * t).sum((1, 2)) + 1) / (p.sum((1, 2)) + t.sum((1, 2)) + 1)
        frozen_loss(case, 1 - dice.mean(1))
    values = {
        "mean_squared_error": lambda x, t: F.mse_loss(x, t, reduction="none"),
        "mean_absolute_error": lambda x, t: F.l1_loss(x, t, reduction="none"),
        "huber": lambda x, t: F.huber_loss(x, t, reduction="none", delta=0.7),
    }
    for name, function in values.items():
        case = Case(f"loss/{name}")
        x, target = case.x(4, 2, 3, name="output", scale=2), case.data("target", 4, 2, 3)
        frozen_loss(case, function(x, target).mean((1, 2)))
    case = Case("loss/cosine_distance")
    x, target = case.x(4, 5, name="output", scale=2), case.data("target", 4, 5)
    frozen_loss(case, 1 - F.cosine_similarity(x, target))


def main():
    for family in (activations, dense, convolutions, pools, norms, attentions, recurrences, shapes, losses):
        family()
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)
    text = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in CASES)
    pathlib.Path(sys.argv[1]).write_text(f"[\n{text}\n]\n")
    print(f"{len(CASES)} cases, {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()
