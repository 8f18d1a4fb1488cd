"""Deterministic numbers for the scripts in this folder; `formula` in src/run.rs gives the same bits.

Element i of the tensor named S:

    h    = FNV-1a of S's bytes, 64 bits (offset basis 0xcbf29ce484222325, prime 0x100000001b3)
    z    = h + (i + 1) * 0x9e3779b97f4a7c15, then SplitMix64's mixing of z, all modulo 2^64
    u(i) = (z >> 11) * 2^-53
"""

import math

import numpy as np
import torch


def fnv(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def uniform(name, *shape):
    """u(i) for every element, in f64."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(name)) + np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy((z >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)
