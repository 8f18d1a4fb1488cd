#!/usr/bin/env python3
"""Measures training on an NVIDIA GPU, GPT-2 (124M, 32 x 1024) and ResNet-50 (256 x 224 x 224), in bf16 or `--precision`.

    benches/gpu.py speed  --binary target/release/plimsoll    # beside PyTorch in interleaved rounds
    benches/gpu.py memory --binary target/release/plimsoll    # planned and measured peaks and step times under lines

`speed` needs PyTorch. A cell is the median of the rounds, in ms. Memory is the driver's account for Plimsoll, and for PyTorch what its
allocator handed out and what it reserved. GPT-2's tokens are random; ResNet-50 reads picture files of noise, which the script writes to a
folder of the system's temporary files for the time of the run."""
import argparse, json, os, random, statistics, struct, subprocess, sys, tempfile, zlib

MODELS = {
    "gpt2": ["--model", "gpt2", "--batch", "32", "--optimizer", "adamw", "--data", "synthetic"],
    "resnet50": ["--model", "resnet50", "--image-size", "224", "--batch", "256", "--optimizer", "adamw", "--workers", "12"],
}
CLASSES, SIDE = 1000, 224
# Names of each picture in the training part: enough examples for the steps of a run.
NAMES = 6
# Shares of the room between the smallest line and the peak without a line.
SHARES = [1.0, 0.75, 0.5, 0.25, 0.1]


def write_pictures(folder):
    """A PNG file of noise for each class, not compressed, so that decoding takes little; under several names, as one file."""
    noise = random.Random(1)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0))
    for label in range(CLASSES):
        rows = b"".join(b"\0" + noise.randbytes(3 * SIDE) for _ in range(SIDE))
        picture = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
        first = None
        for part, names in (("train", NAMES), ("test", 1)):
            inside = os.path.join(folder, part, f"{label:03}")
            os.makedirs(inside)
            for name in range(names):
                path = os.path.join(inside, f"{name}.png")
                if first:
                    os.link(first, path)
                    continue
                first = path
                with open(path, "wb") as file:
                    file.write(picture)


def ours(options, model, *flags, steps=None):
    command = [options.binary, "train", "--json", "--device", "cuda", "--precision", options.precision,
               "--steps", str(steps or options.steps), *MODELS[model], *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        return run.returncode, run.stderr.strip().splitlines()[-1:]
    return 0, json.loads(run.stdout.splitlines()[-1])


def torch_step(model, compiled, precision):
    """Times PyTorch in this process, and prints a line of JSON."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, width = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        """With the loss, so that it is compiled, too, and a vocabulary of 50257 padded to a multiple of 64, as people do for speed."""

        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(50304, 768), nn.Embedding(1024, 768)
            self.blocks, self.norm = nn.Sequential(*(Block(768, 12) for _ in range(12))), nn.LayerNorm(768)

        def forward(self, tokens, labels):
            x = self.blocks(self.tokens(tokens) + self.positions.weight)
            return F.cross_entropy(F.linear(self.norm(x), self.tokens.weight).flatten(0, 1), labels)

    if model == "gpt2":
        network = Gpt2().cuda()
        x = torch.randint(50257, (32, 1024), device="cuda")
        y = torch.randint(50257, (32 * 1024,), device="cuda")
    else:
        from torchvision.models import resnet50

        network = resnet50().cuda().to(memory_format=torch.channels_last)
        x = torch.randn(256, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        y = torch.randint(1000, (256,), device="cuda")
        torch.backends.cudnn.benchmark = True
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    called = torch.compile(network) if compiled else network
    loss_of = called if model == "gpt2" else lambda x, y: F.cross_entropy(called(x), y)
    times = []
    for step in range(25):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    peaks = [torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30]
    print(json.dumps({"ms": statistics.median(times[8:]), "allocated": peaks[0], "reserved": peaks[1]}))


def peer(options, model, how):
    command = [sys.executable, __file__, "torch", "--model", model, "--precision", options.precision,
               *(["--compiled"] if how == "compiled" else [])]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return None
    lines = run.stdout.splitlines()
    return json.loads(lines[-1]) if lines and not run.returncode else None


def speed(options):
    print(f"{'model':10} {'':20} {'ms a step':>10} {'memory GiB':>24}")
    for model in options.models:
        rounds = {"plimsoll": [], "torch": [], "torch compiled": []}
        for _ in range(options.rounds):
            status, report = ours(options, model)
            if status:
                print(model, "failed:", report)
                break
            rounds["plimsoll"].append((report["computing_ms_median"], report))
            for name, how in (("torch", "eager"), ("torch compiled", "compiled")):
                result = peer(options, model, how)
                if result:
                    rounds[name].append((result["ms"], result))
        for name, found in rounds.items():
            if not found:
                continue
            last = found[-1][1]
            if name == "plimsoll":
                planned, measured = last["planned_peak_bytes"] / 2**30, last["measured_peak_bytes"] / 2**30
                memory = f"{planned:.2f} planned, {measured:.2f} used"
            else:
                memory = f"{last['allocated']:.2f} used, {last['reserved']:.2f} held"
            print(f"{model:10} {name:20} {statistics.median(ms for ms, _ in found):10.1f} {memory:>24}", flush=True)


def memory(options):
    print(f"{'model':10} {'line MiB':>10} {'planned':>10} {'measured':>10} {'share %':>8} {'ms':>8} {'told ms':>8}")
    for model in options.models:
        status, report = ours(options, model)
        if status:
            print(model, "failed:", report)
            continue
        top, floor = report["planned_peak_bytes"], smallest(options, model)
        for share in SHARES:
            line = int(floor + (top - floor) * share)
            status, report = ours(options, model, "--device-memory", str(line))
            if status:
                print(f"{model:10} {line >> 20:10} exit status {status}: {report}", flush=True)
                continue
            planned, measured = report["planned_peak_bytes"], report["measured_peak_bytes"]
            held = "" if measured <= line else "  ABOVE THE LINE"
            print(f"{model:10} {line >> 20:10} {planned >> 20:10} {measured >> 20:10} {100 * measured / planned:8.2f} "
                  f"{report['computing_ms_median']:8.1f} {report['predicted_ms']:8.1f}{held}", flush=True)
        status, _ = ours(options, model, "--device-memory", str(floor - (8 << 20)))
        print(f"{model:10} 8 MiB below the smallest line: exit status {status}", flush=True)
        if options.long:
            for steps in (10, 1000):
                status, report = ours(options, model, steps=steps)
                print(f"{model:10} after {steps} steps: {report['measured_peak_bytes']} bytes", flush=True)


def smallest(options, model):
    """The smallest line, as the planner finds it."""
    command = [options.binary, "plan", "--json", "--device", "cuda", "--precision", options.precision, *MODELS[model],
               "--device-memory", "1MB"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[-1])
    return answer["floor_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory", "torch"])
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--precision", choices=["bf16", "tf32", "f32"], default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--timeout", type=int, default=150, help="seconds for a run of PyTorch")
    parser.add_argument("--long", action="store_true", help="memory after 10 and after 1000 steps, too")
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "torch":
        return torch_step(options.model, options.compiled, options.precision)
    with tempfile.TemporaryDirectory() as folder:
        if "resnet50" in options.models:
            write_pictures(folder)
        MODELS["resnet50"] += ["--data", f"images:{folder}"]
        {"speed": speed, "memory": memory}[options.what](options)


if __name__ == "__main__":
    main()
