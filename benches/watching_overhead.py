#!/usr/bin/env python3
"""What it costs to watch a run: its events, the live page with somebody looking at it, the terminal, TensorBoard, a trace of every step,
all of them together with the five steps that are traced by default (together), and with a trace of every step (everything).

    python3 benches/watching_overhead.py target/release/plimsoll [--model lenet] [--steps 2000] [--rounds 7] [--only log,live]

A round trains without and with each of them in turns of a tenth of a second: one of the two processes is stopped while the other
runs, so that a machine whose speed changes from second to second is as slow for both. A process's time is that of its turns, less that of
another run of a few steps: what is done once, like writing the page and telling those who look at it that the run is over, is no part of a step. What is done so many times a second, like drawing, is done about twice as often in a second of such turns, so its cost
is told too high rather than too low. Prints the median over the rounds of with - without, in microseconds a step and in percent, and its middle half;
and the same of the processor time of all threads (cpu), which says what they do rather than how long others keep the processor from them. With
one thread no thread waits for another by spinning, so that it is steadier there.
With --check it exits with 1 where the middle half is above 1 %.

What watching takes for a step does not depend on the step's length, but for a trace, which takes so much for each kernel. So the shortest
steps tell it best: --model mlp --flags='--width 8' --batch 1 --threads 1 --steps 30000.
"""

import argparse
import os
import pty
import random
import select
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TURN_S = 0.1
# Steps of the runs that are subtracted.
FEW = 64
TRACED_BY_DEFAULT = 5


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


def everything(folder, steps):
    """Flags by name, and all of them together: with the steps that are traced by default, and with all of them."""
    each, usual = ways(folder, steps), ways(folder, TRACED_BY_DEFAULT)
    together = {name: [word for flags in all_flags.values() for word in flags] for name, all_flags in (("together", usual), ("everything", each))}
    return {**each, **together}


class Run:
    """A process that is stopped but for its turns. Standard error is a terminal, so that nothing differs but the flags."""

    def __init__(self, command):
        self.command, self.seconds, self.cpu_seconds, self.watcher = command, 0.0, 0.0, None
        self.terminal, other = pty.openpty()
        subprocess.run(["stty", "cols", "200", "rows", "50"], stdin=other, check=True)
        self.process = subprocess.Popen(command, stdin=other, stdout=subprocess.PIPE, stderr=other, text=True)
        os.close(other)
        self.pidfd, self.ended = os.pidfd_open(self.process.pid), select.poll()
        self.ended.register(self.pidfd, select.POLLIN)
        self.process.send_signal(signal.SIGSTOP)
        threading.Thread(target=self.show, daemon=True).start()
        threading.Thread(target=self.read, daemon=True).start()

    def show(self):
        try:
            while os.read(self.terminal, 1 << 16):
                pass
        except OSError:
            os.close(self.terminal)

    def read(self):
        for said in self.process.stdout:
            if said.startswith("Live page: http://"):
                self.watcher = Watcher(said.split("http://")[1].strip())

    def turn(self):
        """Goes on for a turn; returns whether it has ended."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGCONT)
        ended = bool(self.ended.poll(1e3 * TURN_S))
        if not ended:
            self.process.send_signal(signal.SIGSTOP)
        self.seconds += time.monotonic() - started
        if ended:
            _, status, used = os.wait4(self.process.pid, 0)
            os.close(self.pidfd)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_seconds = used.ru_utime + used.ru_stime
            if status:
                sys.exit(f"{shlex.join(self.command)} ended with {self.process.returncode}")
        return ended


def pair(alone, watched):
    """Two commands that run in turns, when they are over."""
    runs = [Run(alone), Run(watched)]
    going = list(runs)
    while going:
        random.shuffle(going)
        going = [run for run in going if not run.turn()]
    if runs[1].watcher is not None and runs[1].watcher.bytes == 0:
        sys.exit("the live page sent nothing")
    return runs


def of_steps(command, flags, steps):
    """Seconds and processor seconds of a run's steps without and with flags."""
    found = []
    for count in (steps, FEW):
        with tempfile.TemporaryDirectory() as folder:
            alone = command(count)
            found.append(pair(alone, [*alone, *map(str, flags(Path(folder)))]))
    return [(run.seconds - few.seconds, run.cpu_seconds - few.cpu_seconds) for run, few in zip(*found)]


def quartiles(found):
    return statistics.quantiles(found, n=4) if len(found) > 1 else found * 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batch", default="64")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--flags", default="", help="more flags of the runs")
    parser.add_argument("--only", help="comma-separated; all of them otherwise")
    parser.add_argument("--check", action="store_true", help="fail above 1 %%")
    options = parser.parse_args()
    if options.steps <= 2 * FEW:
        parser.error(f"--steps is to be more than {2 * FEW}")
    steps = options.steps - FEW

    def command(count):
        return [options.plimsoll, "train", "--model", options.model, "--batch", options.batch, "--steps", str(count),
                "--threads", str(options.threads), "--validation-split", "0", "--validate-every", str(count), "--json",
                *shlex.split(options.flags)]

    names = list(everything(Path(), options.steps))
    if options.only:
        names = [name for name in names if name in options.only.split(",")]
    pairs = {name: [] for name in names}
    for number in range(options.rounds):
        for name in random.sample(names, len(names)):
            pairs[name].append(of_steps(command, lambda folder, name=name: everything(folder, options.steps)[name], options.steps))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    each = statistics.median(alone[0] for found in pairs.values() for alone, _ in found) / steps * 1e3
    print(f"{options.model}, batch {options.batch}, {options.threads} threads: {each:.3f} ms a step; load {os.getloadavg()[0]:.1f}")
    print(f"{'with':<12} {'slower by':>10} {'middle half':>20} {'us a step':>10} {'cpu us a step':>14} {'middle half':>18}")
    high = []
    for name, found in pairs.items():
        low, middle, upper = quartiles([watched[0] / alone[0] - 1 for alone, watched in found])
        cpu = quartiles([(watched[1] - alone[1]) / steps * 1e6 for alone, watched in found])
        span, cpu_span = f"{100 * low:.2f} to {100 * upper:.2f} %", f"{cpu[0]:.1f} to {cpu[2]:.1f}"
        print(f"{name:<12} {100 * middle:>8.2f} % {span:>20} {1e3 * middle * each:>10.1f} {cpu[1]:>14.1f} {cpu_span:>18}")
        if low > 0.01:
            high.append(name)
    if options.check and high:
        sys.exit(f"above 1 %: {', '.join(high)}")


if __name__ == "__main__":
    main()
