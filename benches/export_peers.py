#!/usr/bin/env python3
"""Exported models in the programs that read them, and models of PyTorch here.

    python3 -m venv peers-env && peers-env/bin/pip install onnx onnxruntime ai-edge-litert numpy
    peers-env/bin/pip install torch torchvision onnxscript              # for the models of PyTorch
    cargo build --release -p plimsoll-train --example exported
    peers-env/bin/python benches/export_peers.py target/release/examples/exported [--models lenet,gpt] [--int8] [--torch]

Writes every model of the zoo at its small sizes as ONNX, checks the file with `onnx.checker`, and runs it in onnxruntime on the inputs
that it was run on here, at two batch sizes; and as TFLite, with weights of f32, f16 and bytes, in LiteRT, by its signature. The ONNX file is
read again, half of its channels are removed, and what is left is a file that is checked and run alike. With `--torch`, models that PyTorch
exports are read here, run on the same inputs, trained for a few steps, and have channels removed, too. With `--int8`, layers of bytes one by one, models of the zoo on bytes, and the models of `--trained`, which are trained
before: in LiteRT by integer inputs and outputs, and as QDQ in onnxruntime (op by op on x86 without VNNI, where its layers of integers saturate). A difference is in quanta then, the steps between two codes of the
output; layers must be within one, models within one on average, and trained models must name the same class for 99 % of the examples
and take at most 0.27 of the bytes of their f32 file. Prints a table of the largest difference of an output, relative to the largest output. Exits 1 if one of f32 is above 1e-4, a
check fails, or a loss does not fall. A model that TFLite has no ops for is marked `no`, and so is one without channels to remove.
"""

import argparse
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

BOUND = 1e-4
LITE_KINDS = ["f32", "f16", "range"]
TYPES = {"f32": np.float32, "i32": np.int32}


def array(path):
    about = json.loads(pathlib.Path(f"{path}.json").read_text())
    return np.fromfile(f"{path}.bin", TYPES[about["dtype"]]).reshape(about["shape"])


def difference(ours, theirs):
    ours, theirs = ours.reshape(-1), theirs.reshape(-1)
    if ours.shape != theirs.shape:
        return float("inf")
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())


def saturates():
    """Whether onnxruntime's layers of integers add pairs of products of bytes in 16 bits here, which are too few: on x86 without VNNI."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split() if platform.machine() == "x86_64" else []
    return bool(flags) and not {"avx512_vnni", "avx_vnni"} & set(flags)


def run_onnx(path, inputs, joined=True):
    """What onnxruntime computes; with joined=False op by op, as the file says it."""
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if not joined:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    named = {i.name: value for i, value in zip(session.get_inputs(), inputs)}
    return session.run(None, named)[0]


def run_lite(path, inputs):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path), num_threads=2).get_signature_runner("serving_default")
    named = dict(zip(sorted(runner.get_input_details()), inputs))
    return next(iter(runner(**named).values()))


def lite(folder, name, inputs, ours):
    """The difference for each kind of weights, as words, and whether that of f32 is within the bound."""
    words, good = [], True
    for kind in LITE_KINDS:
        path = folder / f"{name}-{kind}.tflite"
        if not path.exists():
            words.append("no")
            continue
        off = difference(ours, run_lite(path, inputs))
        words.append(f"{off:.2e}")
        good &= off <= BOUND or kind != "f32"
    return words, good


def narrowed(binary, folder, path, rows):
    """The difference of a file with half of the channels, as words, and whether it is within the bound."""
    half, said = folder / "half" / path.name, folder / "half" / f"{path.stem}.bin"
    half.parent.mkdir(exist_ok=True)
    half.unlink(missing_ok=True)
    given = folder / "half" / "rows.bin"
    rows.tofile(given)
    subprocess.run([binary, "narrow", path, given, said, half], check=True)
    if not half.exists():
        return "no", True
    found = run_onnx(half, [rows])
    off = difference(np.fromfile(said, np.float32), found)
    smaller = half.stat().st_size < path.stat().st_size
    return f"{off:.2e}", off <= BOUND and smaller


def zoo(binary, folder, only):
    subprocess.run([binary, "zoo", folder, *sorted(only)], check=True)
    failed = False
    columns = " ".join(f"{'LiteRT ' + kind:>12}" for kind in LITE_KINDS)
    print(f"{'model':<18} {'ops':>6} {'KiB':>8} {'onnxruntime':>12} {'one row':>10} {'narrowed':>10} {columns}")
    for path in sorted(folder.glob("*.onnx")):
        name = path.stem
        if only and name not in only:
            continue
        inputs = [array(folder / f"{name}.input{i}") for i in range(len(list(folder.glob(f"{name}.input*.bin"))))]
        ours = array(folder / f"{name}.output")
        try:
            off = difference(ours, run_onnx(path, inputs))
            # Another batch than the file was built with: rows do not depend on each other.
            rows = len(ours) // len(inputs[0])
            one = difference(ours[:rows], run_onnx(path, [value[:1] for value in inputs]))
            ops = len(onnx.load(str(path)).graph.node)
            narrow, narrow_good = narrowed(binary, folder, path, inputs[0]) if len(inputs) == 1 else ("no", True)
            words, good = lite(folder, name, inputs, ours)
            words = " ".join(f"{word:>12}" for word in words)
            print(f"{name:<18} {ops:>6} {path.stat().st_size >> 10:>8} {off:>12.2e} {one:>10.2e} {narrow:>10} {words}", flush=True)
            failed |= not (off <= BOUND and one <= BOUND and narrow_good and good)
        except Exception as error:  # A peer's refusal is a row of the table.
            print(f"{name:<18} {str(error)[:200]}")
            failed = True
    return failed


def int8_lite(path, inputs):
    """LiteRT's output and its quantum; inputs and outputs are codes where the file has them as such."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path), num_threads=2).get_signature_runner("serving_default")
    details = runner.get_input_details()
    named = {}
    for key, value in zip(sorted(details), inputs):
        scale, zero = details[key]["quantization"]
        if details[key]["dtype"] == np.int8:
            value = np.clip(np.round(value / np.float32(scale)) + zero, -128, 127).astype(np.int8)
        named[key] = value
    (output,) = runner.get_output_details().values()
    found = next(iter(runner(**named).values()))
    if output["dtype"] != np.int8:
        return found, None
    scale, zero = output["quantization"]
    return (found.astype(np.float32) - zero) * np.float32(scale), scale


def int8_file(folder, name, suffix, inputs, ours, quantum):
    """The largest and the mean difference in quanta, the share of rows with the same class, and the quantum. ONNX has floats as outputs:
    their quantum is that of the TFLite file."""
    path = folder / f"{name}.{suffix}"
    if not path.exists():
        return None
    theirs, own = int8_lite(path, inputs) if suffix == "tflite" else (run_onnx(path, inputs, not saturates()), None)
    # An output that is not codes has no quantum of its own.
    quantum = own or quantum or float(ours.max() - ours.min()) / 255
    off = np.abs(theirs.reshape(-1) - ours.reshape(-1)) / quantum
    same = np.mean(theirs.reshape(len(ours), -1).argmax(1) == ours.reshape(len(ours), -1).argmax(1))
    return off.max(), off.mean(), same, quantum


def int8(binary, folder, trained, only):
    subprocess.run([binary, "int8", folder, *sorted(only)], check=True)
    learned = []
    for words in trained:
        name, data, steps, examples = words.split(",")
        subprocess.run([binary, "trained", folder, name, data, steps, examples], check=True)
        learned.append(name)
    failed = False
    if saturates():
        print("this processor has no VNNI: onnxruntime's layers of integers saturate, so it runs floats between the ops that quantize")
    columns = " ".join(f"{peer + ' ' + what:>16}" for peer in ["LiteRT", "onnxruntime"] for what in ["max", "mean", "same"])
    print(f"\n{'on bytes':<18} {'KiB':>8} {'of f32':>7} {columns}")
    for path in sorted(folder.glob("*.output.bin")):
        name = path.name.removesuffix(".output.bin")
        if only and name not in only:
            continue
        inputs = [array(folder / f"{name}.input{i}") for i in range(len(list(folder.glob(f"{name}.input*.bin"))))]
        ours, lite_path, plain = array(folder / f"{name}.output"), folder / f"{name}.tflite", folder / f"{name}-f32.tflite"
        known = lite_path.exists() and plain.exists()
        share = lite_path.stat().st_size / plain.stat().st_size if known else float("nan")
        words, good, quantum = [], True, None
        for suffix in ["tflite", "onnx"]:
            try:
                found = int8_file(folder, name, suffix, inputs, ours, quantum)
            except Exception as error:
                found, good = None, False
                print(f"{name:<18} {suffix}: {str(error)[:300]}")
            if found is None:
                words += ["no", "", ""]
                continue
            most, mean, same, quantum = found
            # A bound in floats: codes are compared as the numbers that they stand for.
            good &= (most < 1.001 if name.startswith("op-") else mean < 1.001) and (name not in learned or same >= 0.99)
            words += [f"{most:.2f}", f"{mean:.4f}", f"{same:.4f}"]
        good &= name not in learned or share <= 0.27
        size = lite_path.stat().st_size / 1024 if known else float("nan")
        print(f"{name:<18} {size:>8.1f} {share:>7.3f} " + " ".join(f"{word:>16}" for word in words) + ("" if good else "  <-"), flush=True)
        failed |= not good
    return failed


def torch_models():
    import torch
    import torchvision

    class Transformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(50, 32)
            layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(32, 50)

        def forward(self, tokens):
            return self.head(self.encoder(self.embed(tokens)))

    torch.manual_seed(0)
    images = torch.randn(3, 3, 64, 64)
    yield "resnet18", torchvision.models.resnet18(num_classes=10), images
    yield "mobilenet_v2", torchvision.models.mobilenet_v2(num_classes=10), images
    yield "transformer", Transformer(), torch.randint(0, 50, (3, 16))


def torch(binary, folder):
    import torch

    failed = False
    print(f"\n{'from PyTorch':<18} {'exporter':>10} {'here':>10} {'loss before':>12} {'after':>10} {'narrowed':>10}")
    for name, model, inputs in torch_models():
        # Running statistics of the inputs: with those of a new model, the signal would fade from layer to layer.
        model.train()
        with torch.no_grad():
            for _ in range(30):
                model(inputs)
        model.eval()
        with torch.no_grad():
            said = model(inputs).numpy()
        for exporter in ["dynamo", "script"]:
            path = folder / f"{name}-{exporter}.onnx"
            try:
                if exporter == "dynamo":
                    dynamic = ({0: torch.export.Dim("batch")},)
                    torch.onnx.export(model, (inputs,), str(path), dynamo=True, dynamic_shapes=dynamic, external_data=False, verbose=False)
                else:
                    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
                    torch.onnx.export(model, (inputs,), str(path), dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=axes, opset_version=17)
            except Exception as error:
                print(f"{name:<18} {exporter:>10} PyTorch cannot export it: {str(error)[:120]!r}")
                continue
            # Images are NHWC here; tokens are 32 bits.
            rows = inputs.permute(0, 2, 3, 1).contiguous().numpy() if inputs.is_floating_point() else inputs.int().numpy()
            rows.tofile(folder / "rows.bin")
            read = subprocess.run([binary, "read", path, folder / "rows.bin", folder / "said.bin"], capture_output=True, text=True)
            if read.returncode:
                print(f"{name:<18} {exporter:>10} {read.stderr.strip()[-300:]}")
                failed = True
                continue
            off = difference(said, np.fromfile(folder / "said.bin", np.float32))
            train = subprocess.run([binary, "train", path, "40"], capture_output=True, text=True)
            if train.returncode:
                print(f"{name:<18} {exporter:>10} {off:>10.2e} {train.stderr.strip()[-300:]}")
                failed = True
                continue
            before, after = map(float, train.stdout.split())
            narrow, good = narrowed(binary, folder, path, rows)
            print(f"{name:<18} {exporter:>10} {off:>10.2e} {before:>12.6f} {after:>10.6f} {narrow:>10}")
            failed |= not (off <= BOUND and after < before and good)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the example `exported` of plimsoll-train")
    parser.add_argument("--models", default="", help="models of the zoo, with --int8 also layers (op-NAME), comma-separated [default: all]")
    parser.add_argument("--int8", action="store_true", help="models on bytes instead")
    parser.add_argument("--trained", action="append", default=[], help="with --int8: MODEL,DATA,STEPS,EXAMPLES, like lenet,mnist,600,1000")
    parser.add_argument("--torch", action="store_true", help="also read models that PyTorch exports")
    parser.add_argument("--keep", help="folder for the files [default: a temporary one]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(options.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        only = set(filter(None, options.models.split(",")))
        if options.int8:
            sys.exit(int8(options.binary, folder, options.trained, only))
        failed = zoo(options.binary, folder, only)
        if options.torch:
            failed |= torch(options.binary, folder)
    sys.exit(failed)


if __name__ == "__main__":
    main()
