#!/usr/bin/env python3
"""Kinds of kernels beside their floors: which of them are far from what the machine could do, and what they take of a step.

    python3 benches/rooflines.py [--binary target/release/plimsoll] [--models mlp,gpt] [--precision bf16]

Trains every model of peers.py for a few steps with --profile. The floor of a kind of kernel is its operations at the rate of products, or
its bytes at the bandwidth of memory, whichever takes longer; both rates are the best that `plimsoll doctor` measured before any of the
models. Operands that are still in a cache are read faster than that, so a share may be above 100 %. Prints the kinds that take over
3 % of a step, farthest from their floor first: the worst ten, and all below 60 %."""
import argparse

import peers

SHARE_OF_STEP = 0.03
FAR = 0.6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/plimsoll")
    parser.add_argument("--models", default=",".join(peers.SIZES))
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="the shortest time of each kernel counts")
    options = parser.parse_args()
    found, rates = [], (0.0, 0.0)
    for model in options.models.split(","):
        rates = tuple(map(max, rates, peers.ceilings(options)))
        profile = peers.profile(options, model, options.steps)
        found += [(model, profile["whole"]["ns"], row) for row in profile["kernels"]]
    print(f"ceilings: {rates[0] / 1e9:.0f} GFLOP/s in {options.precision}, {rates[1] / 1e9:.1f} GB/s")
    rows = []
    for model, whole, row in found:
        if row["ns"] > SHARE_OF_STEP * whole:
            products, bytes_ = row["flops"] / rates[0] * 1e9, row["bytes"] / rates[1] * 1e9
            bound = "arithmetic" if products > bytes_ else "memory"
            rows.append((max(products, bytes_) / row["ns"], model, row, row["ns"] / whole, bound))
    rows.sort(key=lambda row: row[0])
    print(f"{'model':<13} {'kernel':<28} {'calls':>5} {'ms':>8} {'of step':>8} {'GFLOP/s':>8} {'GB/s':>7}  {'bound':<10} {'of floor':>8}")
    for place, (share, model, row, of_step, bound) in enumerate(rows):
        if place < 10 or share < FAR:
            print(f"{model:<13} {row['name']:<28} {row['calls']:>5} {row['ns'] / 1e6:>8.2f} {100 * of_step:>6.1f} % "
                  f"{row['flops'] / row['ns']:>8.1f} {row['bytes'] / row['ns']:>7.1f}  {bound:<10} {100 * share:>6.0f} %")
    print(f"{len(rows)} kinds take over {100 * SHARE_OF_STEP:.0f} % of a step; {sum(row[0] < FAR for row in rows)} are below {100 * FAR:.0f} % of their floor")


if __name__ == "__main__":
    main()
