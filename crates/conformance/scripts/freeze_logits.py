"""Freezes the logits of torchvision's ResNet-50 and MobileNetV2 in f64, with weights from formula.py.

    python freeze_logits.py FOLDER [--weights]

writes FOLDER/{resnet50,mobilenet_v2}.json:

    {"model": "resnet50", "tensors": [[name, shape], ...], "logits": [1000 numbers for each of two images]}

(tensors in the state dict's order, logits to nine digits) and, with --weights, the weights files
FOLDER/{resnet50,mobilenet_v2}.safetensors, for a check by hand:

    PLIMSOLL_TORCH_WEIGHTS=FOLDER cargo test --release -p plimsoll-conformance --test torch_weights

Every tensor S of the state dict, under its own name there, is made from u(i), see formula.py, rounded to f32:

  - weights of rank 2 and more: (u - 0.5) * 2 * sqrt(6 / fan_in), fan_in the product of all extents but the first
  - weights of norms: 0.9 + 0.2 * u; of the last norm in a ResNet block, `bn3`: a third of that, so that residual sums
    stay small
  - biases and running means: 0.2 * (u - 0.5); running variances: 0.5 + u
  - batch counts: zero

Images are two of 64x64x3: S is "image", elements in NHWC order, (u - 0.5) * 2.
"""

import json
import math
import pathlib
import sys

import torch
import torchvision

from formula import uniform

MODELS = {"resnet50": torchvision.models.resnet50, "mobilenet_v2": torchvision.models.mobilenet_v2}


def value(name, shape):
    u = uniform(name, *shape)
    if name.endswith("running_var"):
        return 0.5 + u
    if name.endswith(("running_mean", "bias")):
        return 0.2 * (u - 0.5)
    if len(shape) == 1:
        return (0.9 + 0.2 * u) / (3 if ".bn3." in name else 1)
    return (u - 0.5) * 2 * math.sqrt(6 / math.prod(shape[1:]))


def fill(model):
    state = model.state_dict()
    for name, tensor in state.items():
        if not name.endswith("num_batches_tracked"):
            tensor.copy_(value(name, tensor.shape).float())
    return state


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    image = ((uniform("image", 2, 64, 64, 3) - 0.5) * 2).float()
    for name, make in MODELS.items():
        model = make(weights=None).eval()
        state = fill(model)
        if "--weights" in sys.argv:
            import safetensors.torch

            safetensors.torch.save_file(state, folder / f"{name}.safetensors")
        with torch.no_grad():
            x = image.permute(0, 3, 1, 2)
            single = model(x)
            logits = model.double()(x.double())
        tensors = [[key, list(tensor.shape)] for key, tensor in state.items()]
        golden = {"model": name, "tensors": tensors, "logits": [float(f"{x:.9g}") for x in logits.flatten().tolist()]}
        (folder / f"{name}.json").write_text(json.dumps(golden, allow_nan=False) + "\n")
        largest, off = logits.abs().max().item(), (single - logits).abs().max().item()
        apart = (logits[0] - logits[1]).abs().max().item()
        print(f"{name}: {len(tensors)} tensors, largest logit {largest:.3f}, images {apart:.3f} apart, f32 {off:.1e} off")


if __name__ == "__main__":
    main()
