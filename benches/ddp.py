#!/usr/bin/env python3
"""Data-parallel steps in PyTorch, which benches/ranks.py compares with: DistributedDataParallel on gloo, one thread for each process.

    python ddp.py MODEL BATCH PROCESSES STEPS

Prints `RESULT` and the median time of a step in milliseconds. BATCH is that of all processes together.
"""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WARM_UP = 3


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


def lenet():
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def work(rank, name, batch, processes, steps, meeting):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(3)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    model = nn.parallel.DistributedDataParallel({"mlp": mlp, "lenet": lenet}[name]())
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    own = batch // processes
    images, labels = torch.randn(own, 1, 28, 28), torch.randint(10, (own,))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(f"RESULT {1e3 * statistics.median(times[WARM_UP:]):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    name, batch, processes, steps = sys.argv[1], *map(int, sys.argv[2:5])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (name, batch, processes, steps, f"{folder}/meeting"), nprocs=processes)
