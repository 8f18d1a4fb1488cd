#!/usr/bin/env python3
"""Trains the models beside other frameworks, interleaved, and prints a table of step times and peak memory.

A cell is the median step of all rounds, half the spread of the rounds, and the largest peak resident set. PyTorch has
channels last where it has images. `ratio` is the fastest peer's step over ours: above 1 we are faster."""
import argparse, json, os, statistics, subprocess, sys

# Batch, and for some the side of images or the positions of text.
SIZES = {
    "mlp": (512, None), "lenet": (64, None), "resnet20": (128, None), "gpt": (16, None),
    "resnet50": (8, 128), "mobilenet_v2": (16, 128), "densenet121": (8, 128), "unet": (4, 128), "lstm": (32, 64),
}  # fmt: skip
# Models that the project's own scripts know, and the peers' do not.
OWN = ("lenet", "resnet50", "mobilenet_v2", "densenet121", "unet", "lstm")
# A peer is an interpreter's option, a script, and what it is told besides the model.
PEERS = {
    "torch": ("torch", "torch_cpu.py", []),
    "torch.compile": ("torch", "torch_cpu.py", ["compile"]),
    "tensorflow": ("tensorflow", "tf_cpu.py", []),
    "jax": ("jax", "jax_cpu.py", []),
}


def ours(options, model):
    batch, size = SIZES[model]
    steps = "10" if size else "25"
    command = [options.binary, "train", "--json", "--model", model, "--data", "synthetic", "--batch", str(batch),
               "--steps", steps, "--threads", str(options.threads), "--precision", options.precision]
    if size:
        command += ["--context" if model == "lstm" else "--image-size", str(size)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    report = json.loads(lines[-1])
    # The peers use one batch again and again.
    return report["step_ms_median"] - report["data_ms"], report["measured_peak_bytes"] / 2**20


def peer(options, name, model):
    interpreter, script, arguments = PEERS[name]
    folder = options.peers or ""
    if model in OWN:
        # These know f32, and no compiler.
        if arguments or options.precision != "f32":
            return None
        folder, script = os.path.dirname(os.path.abspath(__file__)), f"{interpreter}_zoo.py"
        arguments = [str(n) for n in SIZES[model] if n]
    else:
        layout = ["cl"] if interpreter == "torch" and model == "resnet20" else []
        precision = [options.precision] if options.precision != "f32" else []
        arguments = [*arguments, *layout, *precision]
    if not os.path.exists(os.path.join(folder, script)):
        return None
    run = subprocess.run([getattr(options, interpreter), script, model, *arguments], capture_output=True, text=True,
                         cwd=folder or None)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return None
    result = json.loads(lines[-1][len("RESULT "):])
    return result["step_ms"], result["peak_rss"]


def cell(figures):
    if not figures:
        return "-"
    steps = [step for step, _ in figures]
    middle = statistics.median(steps)
    spread = 100 * (max(steps) - min(steps)) / middle
    return f"{middle:8.1f} ms ±{spread / 2:3.0f} % {max(peak for _, peak in figures):5.0f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="ours; the peers' scripts take two")
    parser.add_argument("--peers", help="folder of the peers' scripts")
    parser.add_argument("--compile", action="store_true", help="with torch.compile beside torch")
    for name in sorted({interpreter for interpreter, _, _ in PEERS.values()}):
        parser.add_argument(f"--{name}", help=f"python with {name}")
    options = parser.parse_args()
    others = [name for name, (interpreter, _, _) in PEERS.items() if getattr(options, interpreter)]
    others = [name for name in others if options.compile or name != "torch.compile"]
    print(f"{'model':<13} {'batch':>5}  " + "  ".join(f"{name:>29}" for name in ["plimsoll", *others]) + "  ratio")
    for model in options.models.split(","):
        figures = {name: [] for name in ["plimsoll", *others]}
        for _ in range(options.rounds):
            figures["plimsoll"].append(ours(options, model))
            for name in others:
                result = peer(options, name, model)
                if result:
                    figures[name].append(result)
        medians = {name: statistics.median(step for step, _ in all) for name, all in figures.items() if all}
        fastest = min((step for name, step in medians.items() if name != "plimsoll"), default=None)
        ratio = f"{fastest / medians['plimsoll']:7.2f}" if fastest else f"{'-':>7}"
        print(f"{model:<13} {SIZES[model][0]:>5}  " + "  ".join(f"{cell(all):>29}" for all in figures.values()) + ratio,
              flush=True)


if __name__ == "__main__":
    sys.exit(main())
