#!/usr/bin/env python3
"""How fast models predict on bytes, here, in LiteRT and in onnxruntime.

    python3 -m venv peers-env && peers-env/bin/pip install onnx onnxruntime ai-edge-litert ai-edge-quantizer numpy
    cargo build --release --bin plimsoll --example int8_speed
    peers-env/bin/python benches/int8_peers.py target/release [--models lenet,resnet20] [--batch 64] [--rounds 7] [--threads 2]

Trains each model for a few steps on synthetic data and exports it. LiteRT's own quantizer makes the TFLite file one of full integers, and
onnxruntime's the ONNX file one of QDQ; ranges are measured on random inputs. Then each predicts batches in turn, for a fifth of a second, and so
does `int8_speed` here, on floats and on bytes. Prints medians of samples per second over all rounds. The work is the same: layers, sizes, batch
and threads; weights and inputs are not looked at.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np

ROUND = 0.2


def rate(run, batch):
    """Samples per second of calls of `run` that fill a round."""
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < ROUND:
        run()
        count += 1
    return batch * count / (time.perf_counter() - start)


def lite(path, folder, batch, threads):
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    plain = Interpreter(model_path=str(path))
    shape = plain.get_input_details()[0]["shape"]
    inputs = np.random.default_rng(0).standard_normal(shape, np.float32)
    name = next(iter(plain.get_signature_runner("serving_default").get_input_details()))
    q = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
    found = q.calibrate({"serving_default": [{name: inputs}]})
    quantized = folder / "quantized.tflite"
    q.quantize(found).export_model(str(quantized), overwrite=True)
    interpreter = Interpreter(model_path=str(quantized), num_threads=threads)
    interpreter.allocate_tensors()
    detail = interpreter.get_input_details()[0]
    interpreter.set_tensor(detail["index"], inputs.astype(detail["dtype"]))
    return interpreter.invoke


def onnx(path, folder, batch, threads):
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    def session(path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    plain = session(path)
    detail = plain.get_inputs()[0]
    inputs = np.random.default_rng(0).standard_normal([batch, *detail.shape[1:]], np.float32)

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = iter([{detail.name: inputs}])

        def get_next(self):
            return next(self.left, None)

    prepared, quantized = folder / "prepared.onnx", folder / "quantized.onnx"
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared), str(quantized), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )
    runs = session(quantized)
    return lambda: runs.run(None, {detail.name: inputs})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--models", default="lenet,resnet20,mobilenet_v2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--image", type=int)
    flags = parser.parse_args()
    print(f"samples/s, batches of {flags.batch}, {flags.threads} threads")
    print(f"{'model':<14} {'f32':>10} {'int8':>10} {'LiteRT':>10} {'onnxruntime':>12}")
    for model in flags.models.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            program, size = str(flags.binaries / "plimsoll"), [] if flags.image is None else [f"--image-size={flags.image}"]
            run = folder / "run"
            subprocess.run(
                [program, "train", "--model", model, "--data", "synthetic", "--steps=2", "--batch=8", *size, "--out", str(run)],
                check=True, capture_output=True,
            )
            for to in ["tflite", "onnx"]:
                command = [program, "export", str(run), "--to", to, "--out", str(folder / f"model.{to}")]
                subprocess.run(command + ([f"--batch={flags.batch}"] if to == "tflite" else []), check=True, capture_output=True)
            peers = [make(folder / f"model.{to}", folder, flags.batch, flags.threads) for make, to in [(lite, "tflite"), (onnx, "onnx")]]
            speed = [str(flags.binaries / "examples" / "int8_speed"), "--model", model, f"--batch={flags.batch}", "--rounds=1"]
            speed += [f"--threads={flags.threads}"] + ([] if flags.image is None else [f"--image={flags.image}"])
            rates = [[], [], [], []]
            for peer in peers:
                peer()
            for _ in range(flags.rounds):
                lines = subprocess.run(speed, check=True, capture_output=True, text=True).stdout.splitlines()
                floats, on_bytes = re.findall(r"[\d.]+", lines[-1].removeprefix(model))[:2]
                found = [float(floats), float(on_bytes)] + [rate(peer, flags.batch) for peer in peers]
                for list_, one in zip(rates, found):
                    list_.append(one)
            medians = [statistics.median(one) for one in rates]
            print(f"{model:<14} {medians[0]:>10.0f} {medians[1]:>10.0f} {medians[2]:>10.0f} {medians[3]:>12.0f}", flush=True)


main()
