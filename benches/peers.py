#!/usr/bin/env python3
"""Trains the models beside other frameworks, interleaved, and prints a table of step times and peak memory.

A cell is the median step of all rounds, half the spread of the rounds, the largest peak resident set, and the median of the seconds from the
start of the process to the end of the first step (ours: of a run of its own, which plans anew). PyTorch has channels last where that is faster.
`ratio` is the fastest peer's step over ours: above 1 we are faster. `floor` is the share of our step that its kernels would take at the
rates which `plimsoll doctor` measures here: of each kind of kernel, its operations at the rate of products or its bytes at the
bandwidth of memory, whichever takes longer."""
import argparse, json, os, statistics, subprocess, sys

# Batch, and for some the side of images or the positions of text.
SIZES = {
    "mlp": (512, None), "lenet": (64, None), "resnet20": (128, None), "gpt": (16, None), "lstm": (32, 64),
    "resnet50": (8, 128), "mobilenet_v2": (16, 128), "densenet121": (8, 128), "unet": (4, 128), "vit_tiny": (16, 224),
}  # fmt: skip
# Models that the project's own scripts know, and the peers' do not.
OWN = ("lenet", "resnet50", "mobilenet_v2", "densenet121", "unet", "lstm", "vit_tiny")
# A peer is an interpreter's option, a script, and what it is told besides the model.
PEERS = {
    "torch": ("torch", "torch_cpu.py", []),
    "torch.compile": ("torch", "torch_cpu.py", ["compile"]),
    "tensorflow": ("tensorflow", "tf_cpu.py", []),
    "jax": ("jax", "jax_cpu.py", []),
}


def command(options, model, *more):
    batch, size = SIZES[model]
    arguments = [options.binary, "train", "--json", "--model", model, "--data", "synthetic", "--batch", str(batch),
                 "--threads", str(options.threads), "--precision", options.precision, *more]
    if size:
        arguments += ["--context" if model == "lstm" else "--image-size", str(size)]
    return arguments


def last_line(arguments):
    return json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def ours(options, model):
    # Without the validations behind it, which the peers do not have.
    first = last_line(command(options, model, "--steps", "1", "--plan-cache", "none"))["time_to_first_step_s"]
    report = last_line(command(options, model, "--steps", "10" if SIZES[model][1] else "25"))
    # The peers use one batch again and again.
    return report["computing_ms_median"], report["measured_peak_bytes"] / 2**20, first


def floor_ms(options, model, ceilings):
    """The least that a step's kernels would take, one after another."""
    products, bandwidth = ceilings
    kernels = profile(options, model, 3)["kernels"]
    return sum(max(row["flops"] / products, row["bytes"] / bandwidth) for row in kernels) * 1e3


def profile(options, model, steps):
    """What the kernels of a step do and take."""
    flags = ["--steps", str(steps + 1), "--profile", "--profile-steps", str(steps)]
    return last_line(command(options, model, *flags))["profile"]


def ceilings(options):
    """Operations and bytes a second that this machine reaches."""
    found = last_line([options.binary, "doctor", "--json"])
    return found[f"products_{options.precision}_flops"], found["bandwidth_all_threads"]


def peer(options, name, model):
    interpreter, script, arguments = PEERS[name]
    folder = options.peers or ""
    arguments = [*arguments, *([options.precision] if options.precision != "f32" else [])]
    if model in OWN:
        folder, script = os.path.dirname(os.path.abspath(__file__)), f"{interpreter}_zoo.py"
        arguments = [*(str(n) for n in SIZES[model] if n), *arguments]
    elif interpreter == "torch" and model == "resnet20":
        arguments.append("cl")
    if not os.path.exists(os.path.join(folder, script)):
        return None
    run = subprocess.run([getattr(options, interpreter), script, model, *arguments], capture_output=True, text=True,
                         cwd=folder or None)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{name} {model}: {run.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result = json.loads(lines[-1][len("RESULT "):])
    return result["step_ms"], result["peak_rss"], result["ttfs_s"]


def cell(figures):
    if not figures:
        return "-"
    steps, peaks, firsts = zip(*figures)
    middle = statistics.median(steps)
    spread = 100 * (max(steps) - min(steps)) / middle
    return f"{middle:7.1f} ms ±{spread / 2:3.0f} % {max(peaks):5.0f} MiB {statistics.median(firsts):5.1f} s"


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
    # Ceilings are the best of what is measured before every row: other work on the machine lowers them.
    rates = (0.0, 0.0)
    print(f"{'model':<13} {'batch':>5}  " + "  ".join(f"{name:>34}" for name in ["plimsoll", *others]) + "  ratio  floor")
    for model in options.models.split(","):
        rates = tuple(map(max, rates, ceilings(options)))
        figures = {name: [] for name in ["plimsoll", *others]}
        for _ in range(options.rounds):
            figures["plimsoll"].append(ours(options, model))
            for name in others:
                result = peer(options, name, model)
                if result:
                    figures[name].append(result)
        medians = {name: statistics.median(figure[0] for figure in all) for name, all in figures.items() if all}
        fastest = min((step for name, step in medians.items() if name != "plimsoll"), default=None)
        ratio = f"{fastest / medians['plimsoll']:7.2f}" if fastest else f"{'-':>7}"
        share = 100 * floor_ms(options, model, rates) / medians["plimsoll"]
        print(f"{model:<13} {SIZES[model][0]:>5}  " + "  ".join(f"{cell(all):>34}" for all in figures.values()) + ratio
              + f" {share:4.0f} %", flush=True)
    print(f"ceilings: {rates[0] / 1e9:.0f} GFLOP/s in {options.precision}, {rates[1] / 1e9:.1f} GB/s")


if __name__ == "__main__":
    sys.exit(main())
