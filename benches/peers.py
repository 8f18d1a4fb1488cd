#!/usr/bin/env python3
"""Trains the models beside other frameworks, interleaved, and prints a table of step time and peak memory."""
import argparse, json, os, statistics, subprocess, sys

# Batch, and for some the side of images or the positions of text.
SIZES = {
    "mlp": (512, None), "lenet": (64, None), "resnet20": (128, None), "gpt": (16, None),
    "resnet50": (8, 128), "mobilenet_v2": (16, 128), "densenet121": (8, 128), "unet": (4, 128), "lstm": (32, 64),
}  # fmt: skip
# Models that the project's own scripts know, and the peers' do not.
OWN = ("lenet", "resnet50", "mobilenet_v2", "densenet121", "unet", "lstm")
PEERS = {"torch": "torch_cpu.py", "tensorflow": "tf_cpu.py", "jax": "jax_cpu.py"}


def ours(binary, model, threads):
    batch, size = SIZES[model]
    steps = "10" if size else "25"
    command = [binary, "train", "--json", "--model", model, "--data", "synthetic", "--batch", str(batch),
               "--steps", steps, "--threads", str(threads)]
    if size:
        command += ["--context" if model == "lstm" else "--image-size", str(size)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    report = json.loads(lines[-1])
    # The peers use one batch again and again.
    return report["step_ms_median"] - report["data_ms"], report["measured_peak_bytes"] / 2**20


def peer(python, script, arguments):
    run = subprocess.run([python, os.path.basename(script), *arguments], capture_output=True, text=True,
                         cwd=os.path.dirname(script))
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return None
    result = json.loads(lines[-1][len("RESULT "):])
    return result["step_ms"], result["peak_rss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", help="folder of the peers' scripts")
    for name in PEERS:
        parser.add_argument(f"--{name}", help=f"python with {name}")
    options = parser.parse_args()
    others = {name: getattr(options, name) for name in PEERS if getattr(options, name)}
    print(f"{'model':<13} {'batch':>5}  " + "  ".join(f"{n:>24}" for n in ["plimsoll", *others]))
    for model in options.models.split(","):
        figures = {name: [] for name in ["plimsoll", *others]}
        for _ in range(options.rounds):
            figures["plimsoll"].append(ours(options.binary, model, options.threads))
            for name, python in others.items():
                if model in OWN:
                    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}_zoo.py")
                    arguments = [model] + [str(n) for n in SIZES[model] if n]
                else:
                    script, arguments = os.path.join(options.peers or "", PEERS[name]), [model]
                result = peer(python, script, arguments) if os.path.exists(script) else None
                if result:
                    figures[name].append(result)
        cells = []
        for name in figures:
            if figures[name]:
                step = statistics.median(f[0] for f in figures[name])
                peak = max(f[1] for f in figures[name])
                cells.append(f"{step:9.1f} ms {peak:7.0f} MiB")
            else:
                cells.append("-")
        print(f"{model:<13} {SIZES[model][0]:>5}  " + "  ".join(f"{c:>24}" for c in cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
