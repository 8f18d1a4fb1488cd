"""Nanoseconds per op of PyTorch, for the table of crates/eager/examples/op_overhead.rs.

    python3 benches/eager_ops.py
"""

import time

import torch


def least(op):
    """The least time of an op over several rounds."""
    start = time.perf_counter_ns()
    op()
    count = max(5, min(20_000, 20_000_000 // max(time.perf_counter_ns() - start, 200)))
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter_ns()
        for _ in range(count):
            op()
        best = min(best, (time.perf_counter_ns() - start) / count)
    return best


with torch.inference_mode():
    for count in [1, 64, 4096, 1 << 20]:
        a, b = torch.ones(count), torch.full((count,), 2.0)
        print(f"add {count}: {least(lambda: a + b):.0f} ns")
    for n in [8, 64, 512]:
        m = torch.ones(n, n)
        print(f"matmul {n}: {least(lambda: m @ m):.0f} ns")
