"""Writes the fixtures of the tests with the libraries that usually write such files.

    pip install numpy pyarrow tensorflow-cpu tokenizers tifffile pillow
    python make_fixtures.py ../tests/fixtures

Every number is a function of its row, so that the tests know what to expect.
"""

import csv
import io
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import tensorflow as tf
import tifffile
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROWS = 23
COLOURS = ["red", "green", "blue"]
KINDS = ["cat", "dog"]


def features():
    """Row i has i / 4, 10 - i and i * i."""
    i = np.arange(ROWS)
    return np.stack([i / 4, 10.0 - i, i * i], axis=1)


def labels():
    return np.arange(ROWS) % 5


def numpy_files(folder):
    x, y = features(), labels()
    np.savez(f"{folder}/points.npz", x=x.astype("<f4"), y=y.astype("<i8"))
    np.savez(f"{folder}/values.npz", x=x.astype(">f8"), y=(x[:, 0] * 2).astype("<f4"))
    np.savez(
        f"{folder}/kinds.npz",
        a=x.astype("<f8"),
        b=(np.arange(ROWS) * 1000 - 9000).astype(">i2"),
        c=np.arange(ROWS * 4).reshape(ROWS, 2, 2).astype("u1"),
        d=labels() > 2,
        e=(np.arange(ROWS) + 2**40).astype("<u8"),
        y=y.astype("i1"),
    )
    np.savez_compressed(f"{folder}/compressed.npz", x=x, y=y)
    np.savez(f"{folder}/fortran.npz", x=np.asfortranarray(x), y=y)
    parts = {}
    for part, rows in [("train", slice(0, 15)), ("test", slice(15, ROWS))]:
        parts[f"x_{part}"], parts[f"y_{part}"] = x[rows].astype("f4"), y[rows].astype("u1")
    np.savez(f"{folder}/parts.npz", **parts)
    np.save(f"{folder}/x.npy", x.astype("<f4"))
    np.save(f"{folder}/y.npy", y.astype("<i4"))


def table():
    """Columns of a table: numbers, whole numbers, words, and one that the tests leave out."""
    x = features()
    return {
        "size": x[:, 0],
        "count": (10 - np.arange(ROWS)).astype("int64"),
        "colour": [COLOURS[i % 3] for i in range(ROWS)],
        "note": [f"{i}, \"said\"\nand went on" for i in range(ROWS)],
        "kind": [KINDS[i % 2] for i in range(ROWS)],
    }


def csv_files(folder):
    columns = table()
    with open(f"{folder}/table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))


def arrow_files(folder):
    frame = pa.table(table())
    # Several row groups and pages, with a dictionary for the words.
    pa.parquet.write_table(frame, f"{folder}/table.parquet", row_group_size=8, data_page_size=64)
    pa.parquet.write_table(frame, f"{folder}/table-zstd.parquet", compression="zstd")
    pa.parquet.write_table(frame, f"{folder}/table-plain.parquet", compression="none", use_dictionary=False)
    with pa.ipc.new_file(f"{folder}/table.arrow", frame.schema) as file:
        for batch in frame.to_batches(max_chunksize=9):
            file.write_batch(batch)


def example(**values):
    def feature(value):
        value = np.atleast_1d(value)
        if value.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        if value.dtype.kind in "iu":
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=list(value)))

    named = {name.replace("__", "/"): feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString(deterministic=True)


def picture(i, form):
    """A picture of one colour, so that every codec reproduces it."""
    file = io.BytesIO()
    Image.new("RGB", (12, 10), (i * 10, 255 - i * 10, 128)).save(file, form)
    return file.getvalue()


def tfrecord_files(folder):
    def write(name, records, options=None):
        with tf.io.TFRecordWriter(f"{folder}/{name}", options) as writer:
            for record in records:
                writer.write(record)

    x, y = features(), labels()
    numbers = [example(x=x[i].astype("f4"), n=i - 3, label=y[i], name=b"row") for i in range(ROWS)]
    for part in range(3):
        write(f"numbers-{part}.tfrecord", numbers[part::3])
        write(f"numbers-{part}.tfrecord.gz", numbers[part::3], tf.io.TFRecordOptions("GZIP"))
    forms = ["PNG", "JPEG"]
    pictures = [
        example(image__encoded=picture(i, forms[i % 2]), image__class__label=i % 3, image__format=forms[i % 2].encode())
        for i in range(ROWS)
    ]
    write("pictures.tfrecord", pictures)


TEXT = "".join(
    f"The {COLOURS[i % 3]} {KINDS[i % 2]} jumped over {i} fences.\nWhere did it land? Naïvely: nowhere.\n" for i in range(60)
)


def tokenizer_files(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"]
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/text.txt", "w", encoding="utf-8", newline="") as file:
        file.write(TEXT)
    ids = tokenizer.encode(TEXT).ids
    with open(f"{folder}/tokens.txt", "w") as file:
        file.write(" ".join(map(str, ids)) + "\n")


def tiff_files(folder):
    """Pixel (y, x) of a raster is (y, x, y + x)."""
    y, x = np.mgrid[0:40, 0:56]
    raster = np.stack([y, x, y + x], axis=2).astype("u1")
    tifffile.imwrite(f"{folder}/tiled.tif", raster, tile=(16, 32), photometric="rgb", compression="zlib")
    tifffile.imwrite(f"{folder}/strips.tif", raster, rowsperstrip=8, photometric="rgb")
    tifffile.imwrite(f"{folder}/classes.tif", (y // 16).astype("u1"), rowsperstrip=16, compression="zlib")


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for write in [numpy_files, csv_files, arrow_files, tfrecord_files, tokenizer_files, tiff_files]:
        write(folder)


if __name__ == "__main__":
    main()
