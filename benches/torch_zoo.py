"""Models of the zoo in PyTorch, on the work of `plimsoll train --data synthetic`; prints a line for peers.py.

    python torch_zoo.py MODEL BATCH [SIZE] [compile] [bf16]

SIZE is the side of images or the positions of text. resnet50, mobilenet_v2 and densenet121 are torchvision's; the others
are written out here.
"""
import json, os, resource, statistics, sys, time
from contextlib import nullcontext

os.environ.setdefault("OMP_NUM_THREADS", "2")
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(2)
torch.manual_seed(0)


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


class CharLstm(nn.Module):
    def __init__(self, width=256, vocabulary=256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.head(self.lstm(self.tokens(x))[0]).flatten(0, 1)


class Twice(nn.Sequential):
    def __init__(self, i, o):
        conv = lambda i: [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]  # noqa: E731
        super().__init__(*conv(i), *conv(o))


class Unet(nn.Module):
    def __init__(self, width=64, classes=2):
        super().__init__()
        widths = [width << i for i in range(5)]
        self.down = nn.ModuleList(Twice(i, o) for i, o in zip([3, *widths], widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[:4])
        self.up = nn.ModuleList(Twice(2 * w, w) for w in widths[:4])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        seen = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else F.max_pool2d(x, 2))
            seen.append(x)
        for level in range(3, -1, -1):
            x = self.up[level](torch.cat([seen[level], self.grow[level](x)], 1))
        return self.head(x).permute(0, 2, 3, 1).flatten(0, 2)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VitTiny(nn.Module):
    def __init__(self, side, patch=16, width=192, heads=3, layers=12, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn((side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


def since_start():
    """Seconds since this process was started."""
    started = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(open("/proc/uptime").read().split()[0]) - started


def main():
    name, batch = sys.argv[1], int(sys.argv[2])
    options = [option for option in sys.argv[3:] if not option.isdigit()]
    size = next((int(option) for option in sys.argv[3:] if option.isdigit()), None)
    if name == "lenet":
        model, x, y = lenet(), torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    elif name == "lstm":
        model, x = CharLstm(), torch.randint(0, 256, (batch, size))
        y = torch.randint(0, 256, (batch * size,))
    elif name == "unet":
        model, x = Unet(), torch.randn(batch, 3, size, size)
        y = torch.randint(0, 2, (batch * size * size,))
    elif name == "vit_tiny":
        model, x, y = VitTiny(size), torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    else:
        import torchvision

        model = getattr(torchvision.models, name)(weights=None)
        x, y = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    narrow = torch.autocast("cpu", dtype=torch.bfloat16) if "bf16" in options else nullcontext()

    def loss_of(x):
        with narrow:
            scores = model(x)
        return F.cross_entropy(scores.float(), y)

    if "compile" in options:
        loss_of = torch.compile(loss_of)

    def step(x):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        loss.item()
        return (time.perf_counter() - start) * 1e3

    first = None
    if x.dim() == 4:
        # The faster of the two layouts of images.
        layouts = {}
        for layout in (torch.contiguous_format, torch.channels_last):
            model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)
            step(x)
            first = first or since_start()
            layouts[layout] = min(step(x) for _ in range(3))
        layout = min(layouts, key=layouts.get)
        model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)
    times = []
    started = time.perf_counter()
    while len(times) < 200 and (len(times) < 6 or time.perf_counter() - started < 10):
        times.append(step(x))
        first = first or since_start()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    step_ms = round(statistics.median(times[2:]), 2)
    print("RESULT " + json.dumps({"step_ms": step_ms, "peak_rss": round(peak), "ttfs_s": round(first, 2)}))


main()
