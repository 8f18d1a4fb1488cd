#!/usr/bin/env python3
"""Trains the models beside other frameworks, interleaved, and prints a table of step time and peak memory."""
import argparse, json, os, statistics, subprocess, sys

BATCH = {"mlp": 512, "lenet": 64, "resnet20": 128, "gpt": 16}
PEERS = {"torch": "torch_cpu.py", "tensorflow": "tf_cpu.py", "jax": "jax_cpu.py"}


def ours(binary, model, threads):
    command = [binary, "train", "--json", "--model", model, "--data", "synthetic", "--batch", str(BATCH[model]),
               "--steps", "25", "--threads", str(threads)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    report = json.loads(lines[-1])
    return report["step_ms_median"], report["measured_peak_bytes"] / 2**20


def peer(python, script, model):
    run = subprocess.run([python, os.path.basename(script), model], capture_output=True, text=True,
                         cwd=os.path.dirname(script))
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return None
    result = json.loads(lines[-1][len("RESULT "):])
    return result["step_ms"], result["peak_rss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--models", default="mlp,lenet,resnet20,gpt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", help="folder of the peers' scripts")
    for name in PEERS:
        parser.add_argument(f"--{name}", help=f"python with {name}")
    options = parser.parse_args()
    others = {name: getattr(options, name) for name in PEERS if getattr(options, name) and options.peers}
    print(f"{'model':<10} {'batch':>5}  " + "  ".join(f"{n:>24}" for n in ["plimsoll", *others]))
    for model in options.models.split(","):
        figures = {name: [] for name in ["plimsoll", *others]}
        for _ in range(options.rounds):
            figures["plimsoll"].append(ours(options.binary, model, options.threads))
            for name, python in others.items():
                script = os.path.join(options.peers, PEERS[name])
                if model == "lenet":
                    # The one model that only the project's own script knows.
                    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}_lenet.py")
                result = peer(python, script, model)
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
        print(f"{model:<10} {BATCH[model]:>5}  " + "  ".join(f"{c:>24}" for c in cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
