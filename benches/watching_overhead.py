#!/usr/bin/env python3
"""What it costs to watch a run: its events, the live page with somebody looking at it, the terminal, TensorBoard, a trace of every step.

    python3 benches/watching_overhead.py target/release/plimsoll [--model lenet] [--steps 600] [--rounds 9] [--only log,live]

Every round trains once without and once with each of them, in another order each time, and takes the wall time from the first step to
the end. Prints the median over the rounds of with / without, and its middle half; machines are noisy, so look at both. With
--check it exits with 1 where the middle half is above 1 %.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


class Watcher:
    """Follows the live page's events, as a browser does."""

    def __init__(self, address):
        host, port = address.rstrip("/").split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(f"GET /events HTTP/1.1\r\nHost: {address.rstrip('/')}\r\n\r\n".encode())
        self.bytes = 0
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        try:
            while got := self.socket.recv(1 << 16):
                self.bytes += len(got)
        except OSError:
            pass


def ways(folder, steps):
    """Flags by name."""
    return {
        "log": ["--log", folder / "events.jsonl"],
        "live": ["--live", "0"],
        "tensorboard": ["--tensorboard", folder / "board"],
        "trace": ["--trace", folder / "trace", "--trace-steps", str(steps)],
        "tui": ["--tui"],
    }


def train(command, terminal, folder):
    """Seconds from the first step to the end."""
    report = folder / "report.json"
    start = time.monotonic()
    if terminal:
        line = f"stty cols 200 rows 50; exec {shlex.join(command)} > {shlex.quote(str(report))}"
        done = subprocess.run(["script", "-qfec", line, "/dev/null"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    else:
        with report.open("w") as out, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as done:
            watcher = None
            for said in done.stdout:
                if said.startswith("Live page: http://"):
                    watcher = Watcher(said.split("http://")[1].strip())
                out.write(said)
        if watcher is not None and watcher.bytes == 0:
            sys.exit("the live page sent nothing")
    seconds = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}")
    return seconds - json.loads(report.read_text().splitlines()[-1])["time_to_first_step_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batch", default="64")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="comma-separated; all of them otherwise")
    parser.add_argument("--check", action="store_true", help="fail above 1 %%")
    options = parser.parse_args()
    base = [options.plimsoll, "train", "--model", options.model, "--batch", options.batch, "--steps", str(options.steps),
            "--validation-split", "0", "--validate-every", str(options.steps), "--json"]
    with tempfile.TemporaryDirectory() as scratch:
        names = list(ways(Path(scratch), options.steps))
        if options.only:
            names = [name for name in names if name in options.only.split(",")]
        if not shutil.which("script"):
            names = [name for name in names if name != "tui"]
            print("without --tui: there is no program `script`")
        order, times = [None, *names], {name: [] for name in [None, *names]}
        for number in range(options.rounds):
            random.shuffle(order)
            for name in order:
                folder = Path(scratch) / f"{number}-{name}"
                folder.mkdir()
                flags = [] if name is None else ways(folder, options.steps)[name]
                times[name].append(train([str(word) for word in [*base, *flags]], name == "tui", folder))
                shutil.rmtree(folder)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    each = statistics.median(times[None]) / options.steps * 1e3
    print(f"{options.model}, batch {options.batch}: {each:.2f} ms a step; load {os.getloadavg()[0]:.1f}")
    print(f"{'with':<12} {'slower by':>10} {'middle half':>20}")
    high = []
    for name in names:
        ratios = [watched / alone - 1 for watched, alone in zip(times[name], times[None])]
        low, middle, upper = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        print(f"{name:<12} {100 * middle:>9.2f} % {f'{100 * low:.2f} to {100 * upper:.2f} %':>20}")
        if low > 0.01:
            high.append(name)
    if options.check and high:
        sys.exit(f"above 1 %: {', '.join(high)}")


if __name__ == "__main__":
    main()
