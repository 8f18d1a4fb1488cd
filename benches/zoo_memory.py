#!/usr/bin/env python3
"""The measured resident set beside the plan, for every model of the zoo, in one picture.

    python3 benches/zoo_memory.py target/release/plimsoll [--models mlp,gpt] [--steps 6] [--small] [--picture zoo.svg]

Trains each model for a few steps with validations between them, reads its events, and compares what the process held after each step
with the planned peak. Prints a table, draws a panel for each model, and exits with 1 where the two are more than 2 % (4 MiB below
200 MiB) apart at any step boundary. Models have their usual widths and small batches; --small takes small models, too.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

MIB = 1 << 20
# Flags that make a run short; every other model has batches of 4.
SIZES = {
    "mlp": ["--batch", "64"],
    "lenet": ["--batch", "64"],
    "autoencoder": ["--batch", "64"],
    "resnet20": ["--batch", "32"],
    "vgg16": ["--batch", "2"],
    "gpt2": ["--batch", "1", "--context", "128"],
    "bert_tiny": ["--batch", "16"],
    "lstm": ["--batch", "16"],
    "seq2seq": ["--batch", "16"],
}
PHOTO = ["--image-size", "32", "--width", "8", "--classes", "10"]
TEXT = ["--context", "16", "--layers", "2", "--width", "32", "--heads", "2", "--classes", "50"]
SMALL = {
    "mlp": ["--image-size", "8", "--width", "40"],
    "lenet": ["--image-size", "12"],
    "autoencoder": ["--image-size", "12", "--width", "8"],
    "resnet20": ["--image-size", "8"],
    "unet": ["--image-size", "16", "--width", "4"],
    "unet_plain": ["--image-size", "16", "--width", "4"],
    "vit_tiny": ["--image-size", "16", "--layers", "2", "--width", "24", "--heads", "3", "--classes", "10"],
    "gpt": TEXT,
    "gpt2": TEXT,
    "bert_tiny": ["--context", "16", "--width", "32", "--classes", "50"],
    "lstm": ["--context", "8", "--width", "16", "--classes", "50"],
    "seq2seq": ["--context", "6", "--width", "16", "--classes", "50"],
}


def allowed(planned):
    """How far measured memory may be from a planned peak."""
    return max(0.02 * planned, 4 * MIB)


def train(plimsoll, model, flags, steps, out):
    """The planned peak, what was held after each step, and the measured peak of a run."""
    command = [plimsoll, "train", "--model", model, *flags, "--steps", str(steps), "--validate-every", str(max(1, steps // 2)), "--out", out, "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    events = [json.loads(line) for line in (Path(out) / "events.jsonl").read_text().splitlines()]
    planned = next(event["begin"]["planned_bytes"] for event in events if "begin" in event)
    held = [(event["step"], event["resident_bytes"] + event["swapped_bytes"]) for event in events if "loss" in event]
    if len(held) != steps:
        sys.exit(f"{model}: {len(held)} of {steps} steps have a resident set")
    return planned, held, json.loads(done.stdout.splitlines()[-1])["measured_peak_bytes"]


def picture(rows, path):
    """A panel for each model: what was held after each step, the plan, and how far they may be apart."""
    columns, wide, high, left, top = 3, 330, 130, 70, 34
    height = top + (len(rows) + columns - 1) // columns * high + 10
    shapes = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * wide + 20}" height="{height}" font-family="sans-serif" font-size="11">',
              '<rect width="100%" height="100%" fill="white"/>',
              '<text x="10" y="20" font-size="14">Resident set after each step (dots) and the planned peak (line); shaded: 2 % of it, 4 MiB below 200 MiB</text>']
    for at, (model, planned, held, _, _) in enumerate(rows):
        x0, y0 = at % columns * wide + left, top + at // columns * high + 22
        w, h, bound = wide - left - 16, high - 46, allowed(planned)
        most = max([bound * 1.25] + [abs(bytes_ - planned) * 1.1 for _, bytes_ in held])
        y = lambda value: y0 + h * (0.5 - (value - planned) / most / 2)
        shapes.append(f'<text x="{x0}" y="{y0 - 6}" font-weight="bold">{escape(model)}</text>')
        shapes.append(f'<rect x="{x0}" y="{y(planned + bound):.1f}" width="{w}" height="{y(planned - bound) - y(planned + bound):.1f}" fill="#e3edf7"/>')
        shapes.append(f'<rect x="{x0}" y="{y0}" width="{w}" height="{h}" fill="none" stroke="#999"/>')
        shapes.append(f'<line x1="{x0}" x2="{x0 + w}" y1="{y(planned):.1f}" y2="{y(planned):.1f}" stroke="#0072b2" stroke-width="1.5"/>')
        for value in (planned - bound, planned, planned + bound):
            shapes.append(f'<text x="{x0 - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{value / MIB:.1f} MiB</text>')
        for i, (step, value) in enumerate(held):
            x = x0 + w * (i + 0.5) / len(held)
            colour = "#d55e00" if abs(value - planned) > bound else "#222"
            shapes.append(f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>')
            shapes.append(f'<text x="{x:.1f}" y="{y0 + h + 13}" text-anchor="middle">{step}</text>')
    Path(path).write_text("\n".join(shapes + ["</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("--models", help="comma-separated; all of them otherwise")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="small models as well as small batches")
    parser.add_argument("--picture", help="the picture, an SVG file")
    options = parser.parse_args()
    if options.models:
        models = options.models.split(",")
    else:
        zoo = subprocess.run([options.plimsoll, "zoo", "--json", "--batch", "1"], capture_output=True, text=True, check=True)
        models = [model["name"] for model in json.loads(zoo.stdout.splitlines()[-1])["models"]]
    rows, start = [], time.monotonic()
    print(f"{'model':<16} {'planned':>12} {'after steps: least':>20} {'most':>12} {'apart':>10} {'allowed':>10}  {'peak':>12}")
    for model in models:
        flags = SIZES.get(model, ["--batch", "4"])
        if options.small:
            flags = ["--batch", "8", "--data", "synthetic", *SMALL.get(model, PHOTO)]
        with tempfile.TemporaryDirectory() as scratch:
            planned, held, peak = train(options.plimsoll, model, flags, options.steps, Path(scratch) / "run")
        sizes = [value for _, value in held]
        apart = max(sizes, key=lambda value: abs(value - planned)) - planned
        rows.append((model, planned, held, peak, abs(apart) > allowed(planned)))
        mark = "  TOO FAR" if rows[-1][-1] else ""
        figures = [planned, min(sizes), max(sizes), apart, allowed(planned), peak]
        planned, least, most, apart, bound, peak = (f"{value / MIB:.2f}" for value in figures)
        print(f"{model:<16} {planned:>12} {least:>20} {most:>12} {apart:>10} {bound:>10}  {peak:>12}{mark}", flush=True)
    if options.picture:
        picture(rows, options.picture)
        print(f"wrote {options.picture}")
    far = [row[0] for row in rows if row[-1]]
    print(f"MiB; {len(rows)} models in {time.monotonic() - start:.0f} s; " + (f"too far apart: {', '.join(far)}" if far else "all within 2 % or 4 MiB"))
    sys.exit(1 if far else 0)


if __name__ == "__main__":
    main()
