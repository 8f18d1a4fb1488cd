#!/usr/bin/env python3
"""Makes the digits that are embedded in the binary: N of MNIST's training and test files, evenly spaced, so that easy
and hard stretches of the files are represented alike.

    python3 make_digits.py FOLDER OUTPUT [--train N] [--test N]

FOLDER holds MNIST's four IDX files under their usual names, with .gz. OUTPUT is one gzip stream of four IDX files, one
after another: training images, training labels, test images, test labels. The same input gives the same content;
the compressed bytes also depend on the version of zlib, so compare the printed digest, which is of the content.
"""

import argparse
import gzip
import hashlib
import pathlib
import struct
import sys
import zlib

LARGEST_OUTPUT = 3_000_000


def spread(count, total):
    """`count` evenly spaced indices below `total`."""
    return [i * total // count for i in range(count)]


def some_images(path, count):
    """`count` images of an IDX file, as an IDX file."""
    content = gzip.decompress(path.read_bytes())
    magic, total, height, width = struct.unpack(">4I", content[:16])
    pixels = content[16:]
    if magic != 0x803 or len(pixels) != total * height * width or total < count:
        sys.exit(f"{path}: not an IDX file with at least {count} images")
    size = height * width
    chosen = b"".join(pixels[i * size : (i + 1) * size] for i in spread(count, total))
    return struct.pack(">4I", magic, count, height, width) + chosen


def some_labels(path, count):
    """`count` labels of an IDX file, as an IDX file."""
    content = gzip.decompress(path.read_bytes())
    magic, total = struct.unpack(">2I", content[:8])
    labels = content[8:]
    if magic != 0x801 or len(labels) != total or total < count:
        sys.exit(f"{path}: not an IDX file with at least {count} labels")
    return struct.pack(">2I", magic, count) + bytes(labels[i] for i in spread(count, total))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--train", type=int, default=16_000)
    parser.add_argument("--test", type=int, default=2_500)
    args = parser.parse_args()

    content = b"".join(
        part(args.folder / f"{stem}-{name}.gz", count)
        for stem, count in [("train", args.train), ("t10k", args.test)]
        for part, name in [(some_images, "images-idx3-ubyte"), (some_labels, "labels-idx1-ubyte")]
    )
    # 31 asks for a gzip frame around the stream; zlib's own frame carries no time and no name.
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31, 9)
    packed = compressor.compress(content) + compressor.flush()
    if len(packed) > LARGEST_OUTPUT:
        sys.exit(f"{len(packed)} bytes, above {LARGEST_OUTPUT}: take fewer digits")
    args.output.write_bytes(packed)
    print(f"{args.train} + {args.test} digits, {len(packed)} bytes, content sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
