"""Trains a few steps with --tensorboard and reads the files with TensorBoard's own reader.

    python3 -m venv board-env && board-env/bin/pip install tensorboard
    board-env/bin/python benches/check_tensorboard.py target/release/plimsoll [FLAGS OF train ...]

Numbers must agree with the run's log; a resumed run must show every step once.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def train(program, flags):
    subprocess.run([str(program), "train", *map(str, flags)], check=True, capture_output=True)


def read(folder):
    everything = {"scalars": 0, "histograms": 0, "tensors": 0}
    board = EventAccumulator(str(folder), size_guidance=everything)
    board.Reload()
    return board


def single(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def main():
    program, flags = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        out, board, log = scratch / "run", scratch / "board", scratch / "log.jsonl"
        common = ["--tensorboard", board, "--histograms", 5, "--log", log]
        train(program, ["--steps", 40, "--validate-every", 10, "--out", out, "--save-every", 10, *common, *flags])
        # As if the run had been killed after its checkpoint of step 30, and resumed to another end.
        for newest in sorted(out.glob("*-000040*")) + sorted(out.glob("*40.safetensors")):
            newest.unlink(missing_ok=True)
        train(program, ["--resume", out, "--steps", 45, *common])
        events = [json.loads(line) for line in log.read_text().splitlines()]
        found = read(board)
        tags = found.Tags()
        print("scalars", tags["scalars"])
        losses = {e.step: e.value for e in found.Scalars("loss/train")}
        expected = {e["step"]: single(e["loss"]) for e in events if "loss" in e}
        assert losses == expected, (losses, expected)
        steps = [e.step for e in found.Scalars("loss/train")]
        assert len(steps) == len(set(steps)) and steps == sorted(steps), "a step is shown twice"
        validations = {e["step"]: e["validation"]["test_loss"] for e in events if "validation" in e}
        part = next(tag for tag in tags["scalars"] if tag in ("loss/validation", "loss/test"))
        assert {e.step: e.value for e in found.Scalars(part)} == {s: single(v) for s, v in validations.items()}
        for tag in ("learning_rate", "samples_per_second", "memory/resident_bytes", "memory/planned_bytes"):
            assert all(e.value > 0 for e in found.Scalars(tag)), tag
        histograms = found.Tags()["histograms"]
        assert histograms, "there are no histograms"
        for tag in histograms:
            for event in found.Histograms(tag):
                value = event.histogram_value
                assert event.step % 5 == 0 and abs(sum(value.bucket) - value.num) < 1e-6 and value.min <= value.max
        text = found.Tensors("configuration/text_summary")[-1].tensor_proto.string_val[0].decode()
        assert "| batch |" in text and "| memory |" in text, text
        print(f"{len(losses)} losses, {len(validations)} validations, histograms of {len(histograms)} parameters agree")


main()
