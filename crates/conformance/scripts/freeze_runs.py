"""Freezes ten training steps of small models from PyTorch, in f64.

    python freeze_runs.py FOLDER [MODEL ...]

writes FOLDER/{MODEL}.json for the models named, or for all:

    {"model": "mlp", "formula_check": [[name, i, u(i)], ...],
     "runs": {"sgd": RUN, "adamw": RUN}}
    RUN = {"losses": [one per step],
           "parameters": {name: SUMMARY}, "all_parameters": TOTAL,
           "statistics": {name: SUMMARY}, "all_statistics": TOTAL}
    SUMMARY = {"shape": [...], "sum": ..., "squares": ..., "first": [four elements], "last": [four elements]}
    TOTAL = {"tensors": how many, "elements": ..., "sum": ..., "squares": ...}

A step's loss is that of its forward pass, before its update; parameters and statistics are those after step ten (elements
in row-major order of the layout below; a tensor of fewer than four elements gives all of them). Of more than 80
parameters, 40 at even distances have summaries; of more than 10 statistics, 10. Totals are over all.

Tensor S is made from u(i), see formula.py:

  - parameters of rank 2 and more: (u - 0.5) * 2 * bound with bound = sqrt(1 / fan_in), fan_in the product of all
    extents but the last; tables (names that end in `/table`) and `class_token`: bound 0.1
  - gains (names that end in `/gain`): 1 + 0.1 * (u - 0.5)
  - biases: b + 0.1 * (u - 0.5), where b is 1 for unet, 2 for mobilenet_v2 and densenet121, and 0 else. With 0, a chain of
    norms amplifies rounding errors so much that PyTorch's own f32 and f64 runs diverge within a few steps; with most relus
    active they stay together.
  - images and vectors of step s = 0..9: S is "x{s}", (u - 0.5) * 2; tokens: floor(u * vocabulary). A second input is
    named "x{s}.1".
  - labels of step s: S is "labels{s}", floor(u * classes); values as images. bert_tiny: floor(u * 2 * vocabulary) -
    vocabulary, and rows with a negative label are ignored.

Layout: dense kernels [in, out], convolutions [kh, kw, in, out], their transposes [kh, kw, out, in], images
[n, h, w, c]. Losses are means over the rows that are not ignored.

Optimizers: `sgd`: v = 0.9 v + g, p -= 0.01 v (mobilenet_v2 and densenet121: 0.001 v, so that f32 rounding seldom flips a
relu).
`adamw`: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, decoupled weight decay 0.01 on every parameter, biases and norms
included.

Batch norms take the batch's statistics, eps 1e-5; running statistics have momentum 0.1 and the unbiased variance, from
0 and 1. Layer norms have eps 1e-5 unless stated otherwise. "Same" padding puts an odd element after.

Models (parameters by name):
  - mlp: 12-16-16-10, relu between, batch 6. dense{1..3}/{kernel,bias}.
  - lenet: images 12x12x1, batch 4. conv1 5x5 padding 2, 6 channels, bias, relu, max pool 2x2; conv2 5x5 no padding, 16
    channels, bias, relu, max pool 2x2; flattened 16-120-84-10, relu between. conv{1,2}/..., dense{1..3}/...
  - resnet20: images 8x8x3, batch 8. conv 3x3, norm, relu; stages of 16, 32, 64 channels, three blocks each,
    relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)), where stages 2 and 3 begin with stride 2 and a 1x1
    convolution with a norm as shortcut; mean over the image, head 64-10. 3x3 convolutions have padding 1 and no bias.
  - mobilenet_v2: images 64x64x3, batch 4, 10 classes, a quarter of the published channels, rounded to multiples of
    eight; the last convolution has 1280. Named as torchvision names it.
  - densenet121: images 64x64x3, batch 4, 10 classes, growth 4. Named as torchvision names it.
  - unet, unet_plain: images 32x32x3, batch 2, 3 classes for each pixel, 4 channels at first, with and without norms;
    convolutions have biases where there is no norm.
  - autoencoder: images 12x12x2, batch 3, code 6; convolutions 3x3 with stride 2 and same padding, 16 and 32 channels;
    mean squared error; the targets are not the inputs.
  - gpt: 2 blocks, width 16, 2 heads, context 8, vocabulary 11, batch 3. Token and position embeddings are added;
    blocks x += output(attention(norm1(x))), x += down(gelu(up(norm2(x)))), causal, scale 1/sqrt(8), exact gelu;
    norm, head without bias.
  - gpt2: as gpt, with the tanh approximation of gelu and the head tied to the token embedding.
  - vit_tiny: images 16x16x3, batch 3, 10 classes, patches of 4, 2 blocks as gpt's without the causal mask, width 24, 3
    heads, eps 1e-6; a class token before the patches, positions added to both.
  - bert_tiny: 2 blocks, width 16, 2 heads, context 6 of 9 positions, vocabulary 19, batch 3, norms after the sums, eps
    1e-12, exact gelu; dense, gelu and norm before the head, which is tied to the token embedding.
  - lstm: 2 LSTMs of 12 units, context 6, vocabulary 13, batch 3. Gates input, forget, cell, output; PyTorch's second bias
    is zero and not trained.
  - seq2seq: GRUs of 12 units, source 5, target 4, vocabulary 13, batch 3. Gates reset, update, new. The decoder starts
    from the encoder's last state, attends to its states (scale 1/sqrt(12)), and combines both by a dense layer and tanh.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from formula import uniform

torch.set_default_dtype(torch.float64)
STEPS = 10
# Initial biases, and sgd's learning rate, by model.
BIASES = {"unet": 1, "mobilenet_v2": 2, "densenet121": 2}
RATES = {"mobilenet_v2": 0.001, "densenet121": 0.001}


def parameter(name, bias, *shape):
    u = uniform(name, *shape)
    if len(shape) >= 2:
        bound = 0.1 if name.endswith(("/table", "class_token")) else math.sqrt(1 / math.prod(shape[:-1]))
        return (u - 0.5) * 2 * bound
    return (1 if name.endswith("/gain") else bias) + 0.1 * (u - 0.5)


def signal(name, *shape):
    return (uniform(name, *shape) - 0.5) * 2


def classes(name, count, *shape):
    return (uniform(name, *shape) * count).floor().long()


def nchw(x):
    return x.permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


def cross_entropy(scores, step, count):
    """The mean over rows; the scores' last axis runs over classes."""
    labels = classes(f"labels{step}", count, *scores.shape[:-1])
    return F.cross_entropy(scores.reshape(-1, count), labels.reshape(-1))


class Model:
    """Parameters by name, created when the forward pass first uses them."""

    def __init__(self, bias):
        self.bias = bias
        self.parameters = {}
        self.statistics = {}

    def get(self, name, *shape):
        if name not in self.parameters:
            self.parameters[name] = parameter(name, self.bias, *shape).requires_grad_()
        assert self.parameters[name].shape == shape
        return self.parameters[name]

    def dense(self, name, x, outputs, bias=True):
        y = x @ self.get(f"{name}/kernel", x.shape[-1], outputs)
        return y + self.get(f"{name}/bias", outputs) if bias else y

    def conv(self, name, x, window, outputs, stride=1, padding=0, groups=1, bias=False):
        """Convolution of an NHWC image."""
        weight = self.get(f"{name}/kernel", window, window, x.shape[3] // groups, outputs)
        y = nhwc(F.conv2d(nchw(x), weight.permute(3, 2, 0, 1), stride=stride, padding=padding, groups=groups))
        return y + self.get(f"{name}/bias", outputs) if bias else y

    def conv_transpose(self, name, x, window, outputs, stride):
        """Transposed convolution without padding, cropped to `stride` times the image, plus a bias."""
        weight = self.get(f"{name}/kernel", window, window, outputs, x.shape[3])
        y = nhwc(F.conv_transpose2d(nchw(x), weight.permute(3, 2, 0, 1), stride=stride))
        return y[:, : stride * x.shape[1], : stride * x.shape[2]] + self.get(f"{name}/bias", outputs)

    def batch_norm(self, name, x):
        channels = x.shape[3]
        mean = self.statistics.setdefault(f"{name}/running_mean", torch.zeros(channels))
        variance = self.statistics.setdefault(f"{name}/running_variance", torch.ones(channels))
        gain, bias = self.get(f"{name}/gain", channels), self.get(f"{name}/bias", channels)
        return nhwc(F.batch_norm(nchw(x), mean, variance, gain, bias, training=True, momentum=0.1, eps=1e-5))

    def layer_norm(self, name, x, eps=1e-5):
        width = x.shape[-1]
        return F.layer_norm(x, [width], self.get(f"{name}/gain", width), self.get(f"{name}/bias", width), eps)

    def attention(self, name, x, heads, causal=False):
        batch, context, width = x.shape
        split = lambda t: t.reshape(batch, context, heads, width // heads).transpose(1, 2)  # noqa: E731
        q, k, v = (split(self.dense(f"{name}/{part}", x, width)) for part in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(batch, context, width)
        return self.dense(f"{name}/output", y, width)

    def perceptron(self, name, x, approximate="none"):
        width = x.shape[-1]
        y = F.gelu(self.dense(f"{name}/up", x, 4 * width), approximate=approximate)
        return self.dense(f"{name}/down", y, width)

    def block(self, name, x, heads, causal=False, eps=1e-5, approximate="none"):
        """A pre-norm transformer block."""
        x = x + self.attention(f"{name}/attention", self.layer_norm(f"{name}/norm1", x, eps), heads, causal)
        return x + self.perceptron(f"{name}/mlp", self.layer_norm(f"{name}/norm2", x, eps), approximate)

    def recurrent(self, name, x, gates, units, second_bias):
        """Weights of a recurrence in PyTorch's order and layout."""
        weights = [self.get(f"{name}/kernel", x.shape[-1], gates * units).T]
        weights.append(self.get(f"{name}/recurrent_kernel", units, gates * units).T)
        weights.append(self.get(f"{name}/bias", gates * units))
        zeros = torch.zeros(gates * units)
        weights.append(self.get(f"{name}/recurrent_bias", gates * units) if second_bias else zeros)
        return weights

    def lstm(self, name, x, units):
        start = torch.zeros(1, x.shape[0], units)
        weights = self.recurrent(name, x, 4, units, second_bias=False)
        return torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, True)[0]

    def gru(self, name, x, units, start=None):
        start = torch.zeros(1, x.shape[0], units) if start is None else start
        weights = self.recurrent(name, x, 3, units, second_bias=True)
        return torch.gru(x, start, weights, True, 1, 0.0, True, False, True)


def max_pool(x, *window):
    return nhwc(F.max_pool2d(nchw(x), *(window or [2])))


def mlp(model, step):
    x = signal(f"x{step}", 6, 12)
    x = torch.relu(model.dense("dense1", x, 16))
    x = torch.relu(model.dense("dense2", x, 16))
    return cross_entropy(model.dense("dense3", x, 10), step, 10)


def lenet(model, step):
    x = signal(f"x{step}", 4, 12, 12, 1)
    x = max_pool(torch.relu(model.conv("conv1", x, 5, 6, padding=2, bias=True)))
    x = max_pool(torch.relu(model.conv("conv2", x, 5, 16, bias=True))).reshape(4, 16)
    x = torch.relu(model.dense("dense1", x, 120))
    x = torch.relu(model.dense("dense2", x, 84))
    return cross_entropy(model.dense("dense3", x, 10), step, 10)


def resnet20(model, step):
    x = model.conv("conv", signal(f"x{step}", 8, 8, 8, 3), 3, 16, padding=1)
    x = torch.relu(model.batch_norm("norm", x))
    for stage, width in enumerate([16, 32, 64], start=1):
        for block in range(1, 4):
            name = f"stage{stage}/block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            y = model.conv(f"{name}/conv1", x, 3, width, stride, padding=1)
            y = torch.relu(model.batch_norm(f"{name}/norm1", y))
            y = model.conv(f"{name}/conv2", y, 3, width, padding=1)
            y = model.batch_norm(f"{name}/norm2", y)
            if stride == 2:
                x = model.conv(f"{name}/shortcut", x, 1, width, stride)
                x = model.batch_norm(f"{name}/shortcut_norm", x)
            x = torch.relu(y + x)
    return cross_entropy(model.dense("head", x.mean((1, 2)), 10), step, 10)


def mobilenet_v2(model, step):
    # Expansion, channels, blocks, stride: a quarter of the published channels, rounded to multiples of eight.
    stages = [(1, 8, 1, 1), (6, 8, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1), (6, 40, 3, 2), (6, 80, 1, 1)]

    def conv_norm(names, x, window, outputs, stride=1, groups=1):
        x = model.conv(names[0], x, window, outputs, stride, window // 2, groups)
        return model.batch_norm(names[1], x)

    x = signal(f"x{step}", 4, 64, 64, 3)
    x = F.relu6(conv_norm(["features/0/0", "features/0/1"], x, 3, 8, 2))
    place = 1
    for expansion, channels, blocks, first_stride in stages:
        for block in range(blocks):
            name, stride, y, part = f"features/{place}/conv", first_stride if block == 0 else 1, x, 0
            wide = expansion * x.shape[3]
            if expansion > 1:
                y = F.relu6(conv_norm([f"{name}/0/0", f"{name}/0/1"], y, 1, wide))
                part = 1
            y = F.relu6(conv_norm([f"{name}/{part}/0", f"{name}/{part}/1"], y, 3, wide, stride, groups=wide))
            y = conv_norm([f"{name}/{part + 1}", f"{name}/{part + 2}"], y, 1, channels)
            x = x + y if x.shape == y.shape else y
            place += 1
    x = F.relu6(conv_norm([f"features/{place}/0", f"features/{place}/1"], x, 1, 1280))
    return cross_entropy(model.dense("classifier/1", x.mean((1, 2)), 10), step, 10)


def densenet121(model, step):
    growth = 4
    norm_relu = lambda name, x: torch.relu(model.batch_norm(name, x))  # noqa: E731
    x = model.conv("features/conv0", signal(f"x{step}", 4, 64, 64, 3), 7, 2 * growth, stride=2, padding=3)
    x = max_pool(norm_relu("features/norm0", x), 3, 2, 1)
    for block, layers in enumerate([6, 12, 24, 16], start=1):
        for layer in range(1, layers + 1):
            name = f"features/denseblock{block}/denselayer{layer}"
            y = model.conv(f"{name}/conv1", norm_relu(f"{name}/norm1", x), 1, 4 * growth)
            y = model.conv(f"{name}/conv2", norm_relu(f"{name}/norm2", y), 3, growth, padding=1)
            x = torch.cat([x, y], 3)
        if block < 4:
            name = f"features/transition{block}"
            x = model.conv(f"{name}/conv", norm_relu(f"{name}/norm", x), 1, x.shape[3] // 2)
            x = nhwc(F.avg_pool2d(nchw(x), 2))
    x = norm_relu("features/norm5", x).mean((1, 2))
    return cross_entropy(model.dense("classifier", x, 10), step, 10)


def unet(model, step, norm=True):
    def twice(name, x, channels):
        for i in (1, 2):
            x = model.conv(f"{name}/conv{i}", x, 3, channels, padding=1, bias=not norm)
            x = torch.relu(model.batch_norm(f"{name}/norm{i}", x) if norm else x)
        return x

    width = 4
    x, seen = twice("down0", signal(f"x{step}", 2, 32, 32, 3), width), []
    for level in range(1, 5):
        seen.append(x)
        x = twice(f"down{level}", max_pool(x), width << level)
    for level in reversed(range(4)):
        x = model.conv_transpose(f"up{level}/grow", x, 2, width << level, 2)
        x = twice(f"up{level}", torch.cat([seen[level], x], 3), width << level)
    return cross_entropy(model.conv("head", x, 1, 3, bias=True), step, 3)


def unet_plain(model, step):
    return unet(model, step, norm=False)


def autoencoder(model, step):
    def halved(name, x, channels):
        return torch.relu(model.conv(name, F.pad(x, (0, 0, 0, 1, 0, 1)), 3, channels, stride=2, bias=True))

    x = halved("conv2", halved("conv1", signal(f"x{step}", 3, 12, 12, 2), 16), 32)
    x = model.dense("code", x.reshape(3, 3 * 3 * 32), 6)
    x = torch.relu(model.dense("spread", x, 3 * 3 * 32)).reshape(3, 3, 3, 32)
    x = torch.relu(model.conv_transpose("up1", x, 3, 16, 2))
    x = model.conv_transpose("up2", x, 3, 2, 2)
    return F.mse_loss(x, signal(f"labels{step}", 3, 12, 12, 2))


def gpt(model, step, gpt2=False):
    batch, context, width, vocabulary = 3, 8, 16, 11
    tokens = classes(f"x{step}", vocabulary, batch, context)
    table = model.get("tokens/table", vocabulary, width)
    x = F.embedding(tokens, table) + model.get("positions/table", context, width)
    for block in ("block1", "block2"):
        x = model.block(block, x, 2, causal=True, approximate="tanh" if gpt2 else "none")
    x = model.layer_norm("norm", x)
    return cross_entropy(x @ table.T if gpt2 else model.dense("head", x, vocabulary, bias=False), step, vocabulary)


def gpt2(model, step):
    return gpt(model, step, gpt2=True)


def vit_tiny(model, step):
    batch, width, eps = 3, 24, 1e-6
    x = model.conv("patches", signal(f"x{step}", batch, 16, 16, 3), 4, width, stride=4, bias=True)
    x = torch.cat([model.get("class_token", 1, 1, width).expand(batch, 1, width), x.reshape(batch, 16, width)], 1)
    x = x + model.get("positions/table", 17, width)
    for block in ("block1", "block2"):
        x = model.block(block, x, 3, eps=eps)
    return cross_entropy(model.dense("head", model.layer_norm("norm", x, eps)[:, 0], 10), step, 10)


def bert_tiny(model, step):
    batch, context, width, vocabulary, eps = 3, 6, 16, 19, 1e-12
    tokens = classes(f"x{step}", vocabulary, batch, context)
    table = model.get("embeddings/tokens/table", vocabulary, width)
    x = F.embedding(tokens, table) + model.get("embeddings/positions/table", 9, width)[:context]
    x = x + model.get("embeddings/segments/table", 2, width)[0]
    x = model.layer_norm("embeddings/norm", x, eps)
    for name in ("block1", "block2"):
        x = model.layer_norm(f"{name}/norm1", x + model.attention(f"{name}/attention", x, 2), eps)
        x = model.layer_norm(f"{name}/norm2", x + model.perceptron(f"{name}/mlp", x), eps)
    x = model.layer_norm("head/norm", F.gelu(model.dense("head/dense", x, width)), eps)
    labels = classes(f"labels{step}", 2 * vocabulary, batch, context).reshape(-1) - vocabulary
    return F.cross_entropy((x @ table.T).reshape(-1, vocabulary), labels.clamp(min=-1), ignore_index=-1)


def lstm(model, step):
    units, vocabulary = 12, 13
    x = F.embedding(classes(f"x{step}", vocabulary, 3, 6), model.get("tokens/table", vocabulary, units))
    x = model.lstm("lstm2", model.lstm("lstm1", x, units), units)
    return cross_entropy(model.dense("head", x, vocabulary, bias=False), step, vocabulary)


def seq2seq(model, step):
    units, vocabulary = 12, 13

    def read(part, name, positions, start=None):
        table = model.get(f"{part}/tokens/table", vocabulary, units)
        return model.gru(f"{part}/gru", F.embedding(classes(name, vocabulary, 3, positions), table), units, start)

    memory, last = read("encoder", f"x{step}", 5)
    states, _ = read("decoder", f"x{step}.1", 4, last)
    context = F.scaled_dot_product_attention(states, memory, memory)
    x = torch.tanh(model.dense("decoder/combine", torch.cat([states, context], 2), units))
    return cross_entropy(model.dense("decoder/head", x, vocabulary, bias=False), step, vocabulary)


MODELS = [mlp, lenet, resnet20, mobilenet_v2, densenet121, unet, unet_plain, autoencoder]
MODELS += [gpt, gpt2, vit_tiny, bert_tiny, lstm, seq2seq]

OPTIMIZERS = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
    "adamw": lambda parameters, _: torch.optim.AdamW(
        parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    ),
}


def train(forward, optimizer):
    model = Model(BIASES.get(forward.__name__, 0))
    forward(model, 0)
    # That pass created the parameters; the statistics start over.
    model.statistics.clear()
    optimizer = OPTIMIZERS[optimizer](model.parameters.values(), RATES.get(forward.__name__, 0.01))
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = forward(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters, statistics = model.parameters, model.statistics
    return {
        "losses": losses,
        "parameters": summaries(parameters, 40) if len(parameters) > 80 else summaries(parameters, len(parameters)),
        "all_parameters": total(parameters),
        "statistics": summaries(statistics, 10),
        "all_statistics": total(statistics),
    }


def summaries(tensors, most):
    names = list(tensors)
    if len(names) > most:
        names = [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]
    return {name: summary(tensors[name]) for name in names}


def summary(tensor):
    flat = tensor.detach().reshape(-1)
    sums = {"sum": flat.sum().item(), "squares": (flat * flat).sum().item()}
    return {"shape": list(tensor.shape), **sums, "first": flat[:4].tolist(), "last": flat[-4:].tolist()}


def total(tensors):
    flat = torch.cat([torch.zeros(0), *(tensor.detach().reshape(-1) for tensor in tensors.values())])
    sums = {"sum": flat.sum().item(), "squares": (flat * flat).sum().item()}
    return {"tensors": len(tensors), "elements": len(flat), **sums}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    names = [("x0", 5), ("labels9", 3), ("dense1/kernel", 191), ("stage3/block2/conv1/kernel", 36863), ("norm/gain", 0)]
    check = [[name, i, uniform(name, i + 1)[i].item()] for name, i in names]
    for forward in MODELS:
        if sys.argv[2:] and forward.__name__ not in sys.argv[2:]:
            continue
        runs = {name: train(forward, name) for name in OPTIMIZERS}
        golden = {"model": forward.__name__, "formula_check": check, "runs": runs}
        (folder / f"{forward.__name__}.json").write_text(json.dumps(golden, indent=1, allow_nan=False) + "\n")
        losses = {name: [round(loss, 4) for loss in run["losses"]] for name, run in runs.items()}
        print(forward.__name__, losses)


if __name__ == "__main__":
    main()
