"""Freezes golden numbers for every op from PyTorch.

    python freeze_ops.py FOLDER

writes FOLDER/<family>.json, each a list of cases:

    {"name": ..., "op": <the op as serde prints it>, "dtype": "f64",
     "inputs": [{"type": "f64[2,3]", "data": [...]}, ...], "outputs": [...],
     "upstream": <gradient of the first output>, "gradients": [<gradient of each input>, or null, ...]}

`upstream` and `gradients` are present where an op is differentiable and has no ties; they are what a graph's backward
pass must give. Ops that are gradients (input_grad, max_grad, sums, ...) have their expected outputs from
`torch.autograd.grad` with a random upstream gradient. Everything is f64 except casts, integers and cases of rounding.

Random inputs are multiples of 1/64 below 2 in magnitude: exact in f64, f32, f16 and bf16, so that a case can run in any
float type. Within a tensor they are distinct and not zero: no ties, no kinks. Images are NHWC
and kernels HWIO here; PyTorch's are NCHW and OIHW, hence the permutes.
"""

import json
import math
import pathlib
import random
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)

NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16",
    torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def described(tensor):
    """A tensor as JSON."""
    shape = ",".join(str(extent) for extent in tensor.shape)
    flat = tensor.detach().reshape(-1)
    data = flat.to(torch.uint8).tolist() if tensor.dtype == torch.bool else flat.tolist()
    return {"type": f"{NAMES[tensor.dtype]}[{shape}]", "data": data}


class Cases:
    """The cases of one family, and their random numbers."""

    def __init__(self, family):
        self.family = family
        self.random = random.Random(family)
        self.cases = []

    def values(self, *shape):
        """Distinct multiples of 1/64 in (-2, 2), none of them zero."""
        multiples = [k for k in range(-127, 128) if k != 0]
        drawn = self.random.sample(multiples, math.prod(shape))
        return torch.tensor(drawn).to(torch.float64).reshape(shape) / 64

    def positive(self, *shape):
        """Distinct multiples of 1/64 in (0, 4)."""
        drawn = self.random.sample(range(1, 255), math.prod(shape))
        return torch.tensor(drawn).to(torch.float64).reshape(shape) / 64

    def indices(self, below, *shape):
        """Random i32 indices, repeats included."""
        drawn = [self.random.randrange(below) for _ in range(math.prod(shape))]
        return torch.tensor(drawn, dtype=torch.int32).reshape(shape)

    def add(self, name, op, inputs, outputs, dtype="f64", **more):
        """Adds a case without gradients."""
        tensors = {"inputs": [described(t) for t in inputs], "outputs": [described(t) for t in outputs]}
        assert all(len(t["data"]) <= 300 for t in sum(tensors.values(), [])), name
        self.cases.append({"name": f"{self.family}/{name}", "op": op, "dtype": dtype, **tensors, **more})

    def forward(self, name, op, function, *inputs):
        """Adds a case with its gradients; returns the outputs, the upstream gradient and the inputs' gradients."""
        inputs = [t.clone().requires_grad_(t.dtype.is_floating_point) for t in inputs]
        outputs = function(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        upstream = self.values(*outputs[0].shape)
        floats = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad(outputs[0], floats, upstream))
        gradients = [next(found) if t.requires_grad else None for t in inputs]
        frozen = [None if g is None else described(g) for g in gradients]
        self.add(name, op, inputs, outputs, upstream=described(upstream), gradients=frozen)
        return outputs, upstream, gradients

    def linear(self, name, op, adjoint, function, x):
        """Adds a linear op and its adjoint, each with its gradients."""
        _, dy, _ = self.forward(name, op, function, x)
        x = x.clone().requires_grad_()
        gradient = lambda dy: torch.autograd.grad(function(x), x, dy, create_graph=True)[0]  # noqa: E731
        self.forward(f"{name}/grad", adjoint, gradient, dy)

    def write(self, folder):
        """Writes one case per line."""
        lines = ",\n".join(json.dumps(case, allow_nan=False) for case in self.cases)
        (folder / f"{self.family}.json").write_text(f"[\n{lines}\n]\n")
        print(f"{self.family}: {len(self.cases)} cases")


def elementwise():
    cases = Cases("elementwise")
    unaries = {
        "neg": torch.neg, "abs": torch.abs, "square": torch.square, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
        "exp": torch.exp, "log": torch.log, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf,
        "relu": torch.relu, "sin": torch.sin, "cos": torch.cos, "log1p": torch.log1p, "expm1": torch.expm1,
        "softplus": F.softplus,
    }  # fmt: skip
    for name, function in unaries.items():
        x = cases.positive(2, 5) if name in ("sqrt", "rsqrt", "log", "log1p") else cases.values(2, 5)
        cases.forward(name, {"elementwise": {"unary": name}}, function, x)
    # Step functions have no gradient: halves, both zeros, both sides of an integer.
    steps = {"floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "sign": torch.sign}
    x = torch.tensor([-2.5, -1.5, -1.0, -0.5, -0.25, 0.0, 0.5, 0.75, 1.5, 2.5, 3.0])
    for name, function in steps.items():
        cases.add(name, {"elementwise": {"unary": name}}, [x], [function(x)])
    # Far from zero, where naive formulas overflow or cancel.
    far = torch.tensor([-40.0, -6.0, -0.0625, 0.0625, 6.0, 40.0])
    for name in ("exp", "tanh", "sigmoid", "erf", "softplus", "expm1", "sin", "cos"):
        cases.forward(f"{name}/far", {"elementwise": {"unary": name}}, unaries[name], far)

    binaries = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
        "max": torch.maximum, "min": torch.minimum, "greater": torch.gt, "greater_equal": torch.ge,
        "equal": torch.eq,
    }  # fmt: skip
    shapes = [([2, 3], [2, 3]), ([2, 3], [3]), ([4, 1], [1, 3]), ([], [2, 2]), ([2, 1, 3], [4, 1])]
    for name, function in binaries.items():
        op = {"elementwise": {"binary": name}}
        for a, b in shapes:
            label = f"{name}/{a}{b}".replace(" ", "")
            if name in ("greater", "greater_equal", "equal"):
                a, b = cases.indices(3, *a).to(torch.float64), cases.indices(3, *b).to(torch.float64)
                cases.add(label, op, [a, b], [function(a, b)])
            else:
                # Half a step apart: no ties.
                cases.forward(label, op, function, cases.values(*a), cases.values(*b) + 1 / 128)
    a, b = cases.indices(9, 2, 3) - 4, cases.indices(4, 3) + 1
    for name, function in binaries.items():
        result = torch.div(a, b, rounding_mode="trunc") if name == "div" else function(a, b)
        cases.add(f"{name}/i32", {"elementwise": {"binary": name}}, [a, b], [result], "i32")

    for a, b in shapes:
        label = f"pow/{a}{b}".replace(" ", "")
        op = {"elementwise": {"binary": "pow"}}
        cases.forward(label, op, torch.pow, cases.positive(*a), cases.values(*b) + 1 / 128)
    truth = torch.tensor([[True, False], [True, True]]), torch.tensor([True, False])
    for name, function in {"min": torch.logical_and, "max": torch.logical_or, "equal": torch.eq}.items():
        cases.add(f"{name}/bool", {"elementwise": {"binary": name}}, truth, [function(*truth)], "bool")

    for c, a, b in [([2, 3], [2, 3], [2, 3]), ([2, 1], [3], []), ([3], [2, 1], [2, 3])]:
        label = f"select/{c}{a}{b}".replace(" ", "")
        condition = cases.indices(2, *c).to(torch.bool)
        cases.forward(label, {"elementwise": "select"}, torch.where, condition, cases.values(*a), cases.values(*b))
    constant = {"value": 0.1, "dtype": "f64"}
    cases.add("constant", {"elementwise": {"constant": constant}}, [], [torch.tensor(0.1)])
    rounded = torch.tensor(0.1, dtype=torch.bfloat16)
    constant = {"value": 0.1, "dtype": "bf16"}
    cases.add("constant/bf16", {"elementwise": {"constant": constant}}, [], [rounded], "bf16")
    casts(cases)
    return cases


def casts(cases):
    """Conversions: ties of every 16-bit float, both sides of them, subnormals, the ends of the range."""
    floats = [0.0, 0.1, -0.1, 1.0, 2.9, -2.9, 1e-8, 3.1e-5, 65504.0, -65519.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8]
    floats += [1 + 2**-8 + 2**-23, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-23, 6e-8, 123456.0 / 16]
    singles = torch.tensor(floats, dtype=torch.float32)
    integers = torch.tensor([0, 1, -1, 127, 255, 16777217, -16777219, 2147483647], dtype=torch.int32)
    sources = [
        (singles, ["bf16", "f16", "f64", "i32", "i64", "bool"]),
        # bf16 rounds the ends of f16's range past it.
        (singles[singles.abs() < 60000].to(torch.bfloat16), ["f32", "f16", "i32"]),
        (singles.to(torch.float16), ["f32", "bf16", "i32"]),
        # The last three lie on, above and below a tie of f32.
        (torch.tensor([0.1, 1e10, -7.5, 1 + 2**-24, 1 + 2**-24 + 2**-52, 1 + 3 * 2**-24]), ["f32", "i64"]),
        (integers, ["f32", "f64", "i64", "bool"]),
        (integers.to(torch.int64) * 3, ["f32", "f64"]),
        (torch.tensor([0, 1, 200, 255], dtype=torch.uint8), ["f32", "bf16", "i32"]),
        (torch.tensor([0.0, 1.9, 254.5, 255.0], dtype=torch.float32), ["u8"]),
        (torch.tensor([True, False]), ["f32", "i32"]),
    ]
    for source, targets in sources:
        for target in targets:
            start = NAMES[source.dtype]
            op = {"elementwise": {"cast": target}}
            cases.add(f"cast/{start}-{target}", op, [source], [source.to(DTYPES[target])], start)


def instruction(op, *operands, dtype="f64"):
    """One instruction of a region; an operand is `x0` (input 0) or `r0` (result 0)."""
    kinds = {"x": "input", "r": "result"}
    return {"op": op, "operands": [{kinds[o[0]]: int(o[1:])} for o in operands], "dtype": dtype}


def fused():
    cases = Cases("fused")
    gelu = [
        instruction({"constant": {"value": math.sqrt(0.5), "dtype": "f64"}}),
        instruction({"binary": "mul"}, "x0", "r0"),
        instruction({"unary": "erf"}, "r1"),
        instruction({"constant": {"value": 1.0, "dtype": "f64"}}),
        instruction({"binary": "add"}, "r2", "r3"),
        instruction({"constant": {"value": 0.5, "dtype": "f64"}}),
        instruction({"binary": "mul"}, "r4", "r5"),
        instruction({"binary": "mul"}, "x0", "r6"),
    ]
    cases.forward("gelu", {"fused": {"instructions": gelu, "outputs": [7]}}, F.gelu, cases.values(3, 4))

    affine = [
        instruction({"binary": "sub"}, "x0", "x1"),
        instruction({"binary": "mul"}, "r0", "x2"),
        instruction({"unary": "relu"}, "r1"),
    ]
    x, shift, gain = cases.values(2, 3, 4), cases.values(2, 3, 1), cases.values(4)
    op = {"fused": {"instructions": affine, "outputs": [2, 1]}}
    cases.forward("broadcast", op, lambda x, s, g: (torch.relu((x - s) * g), (x - s) * g), x, shift, gain)

    gate = [
        instruction({"binary": "greater"}, "x0", "x1", dtype="bool"),
        instruction("select", "r0", "x0", "x1"),
    ]
    a, b = cases.values(2, 5), cases.values(5) + 1 / 128
    op = {"fused": {"instructions": gate, "outputs": [0, 1]}}
    cases.add("select", op, [a, b], [a > b, torch.maximum(a, b)])

    # Every instruction rounds: first in bf16, then in f32.
    rounding = [
        instruction({"cast": "bf16"}, "x0", dtype="bf16"),
        instruction({"unary": "square"}, "r0", dtype="bf16"),
        instruction({"binary": "add"}, "r1", "r0", dtype="bf16"),
        instruction({"cast": "f32"}, "r2", dtype="f32"),
    ]
    x = torch.tensor([1.01, -0.7, 3.3, 1 + 2**-8, 0.333], dtype=torch.float32)
    y = x.to(torch.bfloat16)
    y = (y * y) + y
    op = {"fused": {"instructions": rounding, "outputs": [3, 2]}}
    cases.add("rounding", op, [x], [y.to(torch.float32), y], "bf16")
    return cases


def movement():
    cases = Cases("movement")
    for shape, target in [([2, 6], [3, 4]), ([2, 3, 2], [12]), ([1], [])]:
        reshape = lambda x: x.reshape(target)  # noqa: E731
        label = f"reshape/{shape}{target}".replace(" ", "")
        cases.forward(label, {"movement": {"reshape": target}}, reshape, cases.values(*shape))
    for shape, axes in [([2, 3], [1, 0]), ([2, 3, 4], [2, 0, 1]), ([2, 3, 2, 2], [0, 2, 1, 3])]:
        label = f"transpose/{axes}".replace(" ", "")
        cases.forward(label, {"movement": {"transpose": axes}}, lambda x: x.permute(axes), cases.values(*shape))
    for shape, target in [([3], [2, 3]), ([2, 1, 2], [2, 3, 2]), ([], [2, 2]), ([1, 4], [2, 3, 4])]:
        broadcast = lambda x: x.broadcast_to(target)  # noqa: E731
        label = f"broadcast/{shape}{target}".replace(" ", "")
        cases.forward(label, {"movement": {"broadcast": target}}, broadcast, cases.values(*shape))

    def span(start, extent, step=1):
        return {"start": start, "extent": extent, "step": step}

    # Spans as Python slices; a backward one is a flipped forward one.
    def cut(x, spans):
        for axis, s in enumerate(spans):
            places = [s["start"] + i * s["step"] for i in range(s["extent"])]
            x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
        return x

    cuts = {
        "rows": ([4, 3], [span(1, 2), span(0, 3)]),
        "columns": ([2, 5], [span(0, 2), span(1, 3)]),
        "steps": ([7, 4], [span(1, 3, 2), span(0, 2, 3)]),
        "flip": ([3, 4], [span(0, 3), span(3, 4, -1)]),
        "backwards": ([2, 7, 2], [span(0, 2), span(5, 3, -2), span(1, 1)]),
        "nothing": ([2, 3], [span(0, 2), span(1, 0)]),
    }
    for label, (shape, spans) in cuts.items():
        cases.forward(f"slice/{label}", {"movement": {"slice": spans}}, lambda x: cut(x, spans), cases.values(*shape))

        def laid(x, value=0.5):
            whole = torch.full(shape, value, dtype=x.dtype)
            index = [torch.tensor([s["start"] + i * s["step"] for i in range(s["extent"])]) for s in spans]
            if x.numel() == 0:
                return whole + 0 * x.sum()
            return whole.index_put(torch.meshgrid(*index, indexing="ij"), x)

        pad = {"movement": {"pad": {"shape": shape, "spans": spans, "value": 0.5}}}
        cases.forward(f"pad/{label}", pad, laid, cases.values(*[s["extent"] for s in spans]))
    for axis, shapes in [(0, [[2, 3], [1, 3]]), (1, [[2, 3], [2, 1], [2, 2]]), (2, [[2, 2, 3], [2, 2, 1]]), (0, [[4]])]:
        label = f"concat/{axis}/{len(shapes)}"
        op = {"movement": {"concat": {"axis": axis}}}
        cases.forward(label, op, lambda *x: torch.cat(x, axis), *[cases.values(*s) for s in shapes])
    for axis, shape, extents in [(0, [5, 2], [2, 3]), (1, [2, 6], [1, 2, 3]), (2, [2, 2, 4], [3, 1]), (1, [3, 2], [2])]:
        op = {"movement": {"split": {"axis": axis, "extents": extents}}}
        label = f"split/{axis}/{extents}".replace(" ", "")
        cases.forward(label, op, lambda x: tuple(x.split(extents, axis)), cases.values(*shape))
    x = cases.values(2, 3)
    cases.add("detach", {"movement": "detach"}, [x], [x])
    tokens = cases.indices(50, 2, 3)
    flags = tokens > 25
    cases.add("slice/bool", {"movement": {"slice": [span(0, 2), span(2, 2, -1)]}}, [flags], [flags[:, [2, 1]]], "bool")
    cases.add("concat/i32", {"movement": {"concat": {"axis": 1}}}, [tokens, tokens], [torch.cat([tokens] * 2, 1)], "i32")
    cases.add("transpose/i32", {"movement": {"transpose": [1, 0]}}, [tokens], [tokens.T], "i32")
    return cases


def reduce():
    cases = Cases("reduce")
    for start, end in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (0, 3)]:
        op = {"reduce": {"sum": {"start": start, "end": end}}}
        summed = lambda x: x.sum(tuple(range(start, end)), keepdim=True)  # noqa: E731
        cases.forward(f"sum/{start}-{end}", op, summed, cases.values(3, 4, 5))
    op = {"reduce": {"sum": {"start": 0, "end": 1}}}
    cases.forward("sum/vector", op, lambda x: x.sum(0, True), cases.values(150))
    for shape in [[7], [4, 5], [2, 3, 4]]:
        x = cases.values(*shape)
        label = f"argmax/{shape}".replace(" ", "")
        cases.add(label, {"reduce": "argmax"}, [x], [x.argmax(-1).to(torch.int32)])
    ties = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-1.0, -2.0, -1.0]])
    cases.add("argmax/ties", {"reduce": "argmax"}, [ties], [torch.tensor([1, 0, 0], dtype=torch.int32)])
    for shape in [[7], [4, 5], [2, 3, 4]]:
        x = cases.values(*shape)
        label = f"argmin/{shape}".replace(" ", "")
        cases.add(label, {"reduce": "argmin"}, [x], [x.argmin(-1).to(torch.int32)])
    cases.add("argmin/ties", {"reduce": "argmin"}, [ties], [torch.tensor([0, 0, 1], dtype=torch.int32)])
    extremes(cases)
    products(cases)
    for axis, shape in [(0, [7]), (0, [3, 4]), (1, [3, 4]), (1, [2, 5, 3]), (2, [2, 3, 4]), (0, [1, 2]), (1, [2, 0])]:
        for reverse in (False, True):
            op = {"reduce": {"cumulative_sum": {"axis": axis, "reverse": reverse}}}
            summed = lambda x: (x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis))  # noqa: E731
            label = f"cumulative_sum/{axis}/{shape}{'/reverse' if reverse else ''}".replace(" ", "")
            cases.forward(label, op, summed, cases.values(*shape))
    for k, shape in [(1, [5]), (3, [2, 7]), (4, [2, 3, 4]), (0, [2, 3]), (1, [3, 1])]:
        def largest(x):
            values, indices = x.topk(k)
            return values, indices.to(torch.int32)

        label = f"top_k/{k}/{shape}".replace(" ", "")
        cases.forward(label, {"reduce": {"top_k": {"k": k}}}, largest, cases.values(*shape))
    # `topk` does not say which of equal elements comes first, a stable sort does.
    ties = cases.indices(4, 3, 9).to(torch.float64)
    values, indices = ties.sort(dim=-1, descending=True, stable=True)
    outputs = [values[:, :6], indices[:, :6].to(torch.int32)]
    cases.add("top_k/ties", {"reduce": {"top_k": {"k": 6}}}, [ties], outputs)
    for start, end in [(0, 1), (1, 2), (1, 3), (2, 3), (0, 3)]:
        op = {"reduce": {"square_sum": {"start": start, "end": end}}}
        summed = lambda x: x.square().sum(tuple(range(start, end)), keepdim=True)  # noqa: E731
        cases.forward(f"square_sum/{start}-{end}", op, summed, cases.values(3, 4, 5))
    return cases


RANGES = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (0, 3)]


def extremes(cases):
    for name, function in {"max": torch.amax, "min": torch.amin}.items():
        op = lambda start, end: {"reduce": {name: {"start": start, "end": end}}}  # noqa: E731
        over = lambda x, start, end: function(x, tuple(range(start, end)), keepdim=True)  # noqa: E731
        for start, end in RANGES:
            cases.forward(f"{name}/{start}-{end}", op(start, end), lambda x: over(x, start, end), cases.values(3, 4, 5))
        cases.forward(f"{name}/one", op(0, 1), lambda x: over(x, 0, 1), cases.values(1))
        # Two share the gradient.
        ties = torch.tensor([[1.0, 3.0, 3.0, -1.0, -1.0], [2.0, 2.0, 0.5, 0.5, 1.0]])
        cases.forward(f"{name}/ties", op(1, 2), lambda x: over(x, 1, 2), ties)
        whole = cases.indices(50, 3, 4) - 25
        cases.add(f"{name}/i32", op(1, 2), [whole], [over(whole, 1, 2)], "i32")
        truth = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
        cases.add(f"{name}/bool", op(1, 2), [truth], [over(truth, 1, 2)], "bool")
        cases.add(f"{name}/bool/columns", op(0, 1), [truth], [over(truth, 0, 1)], "bool")


def products(cases):
    def over(x, start, end):
        shape = [1 if start <= axis < end else extent for axis, extent in enumerate(x.shape)]
        return x.flatten(start, end - 1).prod(start).reshape(shape)

    def add(label, x, start, end):
        op = {"reduce": {"product": {"start": start, "end": end}}}
        _, dy, gradients = cases.forward(f"product/{label}", op, lambda x: over(x, start, end), x)
        op = {"reduce": {"product_grad": {"start": start, "end": end}}}
        cases.add(f"product_grad/{label}", op, [x, dy], gradients)

    for start, end in RANGES:
        add(f"{start}-{end}", cases.values(3, 4, 5), start, end)
    add("one", cases.values(1), 0, 1)
    zeros = cases.values(4, 5)
    # None, one, two, all zero.
    zeros[1, 2] = 0
    zeros[2, 0] = zeros[2, 4] = 0
    zeros[3] = 0
    add("zeros", zeros, 1, 2)
    add("zeros/columns", zeros.T.contiguous(), 0, 1)
    op = {"reduce": {"product": {"start": 1, "end": 2}}}
    cases.add("product/nothing", op, [torch.zeros(2, 0)], [torch.ones(2, 1)])


def matmul():
    cases = Cases("matmul")

    def product(a, b, *bias, transposes, relu):
        y = (a.T if transposes[0] else a) @ (b.T if transposes[1] else b)
        y = y + bias[0] if bias else y
        return torch.relu(y) if relu else y

    def add(label, m, n, k, transposes, bias=False, relu=False):
        epilogue = {"bias": bias, "relu": relu}
        op = {"mat_mul": {"transpose_a": transposes[0], "transpose_b": transposes[1], "epilogue": epilogue}}
        a = cases.values(*((k, m) if transposes[0] else (m, k)))
        b = cases.values(*((n, k) if transposes[1] else (k, n)))
        function = lambda *inputs: product(*inputs, transposes=transposes, relu=relu)  # noqa: E731
        cases.forward(label, op, function, a, b, *([cases.values(n)] if bias else []))

    for transposes in [(False, False), (False, True), (True, False), (True, True)]:
        label = "".join("t" if t else "n" for t in transposes)
        for m, n, k in [(3, 4, 5), (1, 7, 2), (6, 1, 9), (2, 2, 60)]:
            add(f"{label}/{m}x{n}x{k}", m, n, k, transposes)
        add(f"{label}/bias_relu", 3, 5, 4, transposes, bias=True, relu=True)
    add("nn/bias", 3, 5, 4, (False, False), bias=True)
    add("nn/relu", 3, 5, 4, (False, False), relu=True)

    def batched(a, b, transposes):
        return (a.mT if transposes[0] else a) @ (b.mT if transposes[1] else b)

    for transposes in [(False, False), (False, True), (True, False), (True, True)]:
        label = "".join("t" if t else "n" for t in transposes)
        for lead, m, n, k in [([2], 3, 4, 5), ([3, 2], 2, 3, 4), ([1], 4, 1, 3), ([2, 1, 2], 1, 3, 2)]:
            op = {"transpose_a": transposes[0], "transpose_b": transposes[1]}
            op = {"mat_mul": {**op, "epilogue": {"bias": False, "relu": False}}}
            a = cases.values(*lead, *((k, m) if transposes[0] else (m, k)))
            b = cases.values(*lead, *((n, k) if transposes[1] else (k, n)))
            name = f"{label}/{lead}{m}x{n}x{k}".replace(" ", "")
            cases.forward(name, op, lambda a, b: batched(a, b, transposes), a, b)
    return cases


def philox(counter, key):
    """Ten rounds of Philox4x32 (Salmon et al. 2011), written from the paper."""
    low = 0xFFFFFFFF
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(second >> 32) ^ c[1] ^ k[0], second & low, (first >> 32) ^ c[3] ^ k[1], first & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def draws():
    """Random numbers: an independent implementation of the generator, from the op's documentation."""
    cases = Cases("random")

    def words(seed, step, stream, example, elements):
        name = 0xCBF29CE484222325
        for byte in stream.encode():
            name = ((name ^ byte) * 0x100000001B3) & (2**64 - 1)
        key = (seed & (2**64 - 1)) ^ (name & ~0xFFFFFFFF)
        counter = lambda block: [block, example, step & 0xFFFFFFFF, name & 0xFFFFFFFF]  # noqa: E731
        blocks = [philox(counter(b), [key & 0xFFFFFFFF, key >> 32]) for b in range((elements + 3) // 4)]
        return sum(blocks, [])

    def numbers(kind, words, p=0.3):
        uniform = [(w >> 8) / 2**24 for w in words]
        if kind == "uniform":
            return uniform
        if kind == "bernoulli":
            return [u < p for u in uniform]
        pairs = []
        for a, b in zip(words[::2], words[1::2]):
            radius, angle = math.sqrt(-2 * math.log((a + 0.5) / 2**32)), 2 * math.pi * (b + 0.5) / 2**32
            pairs += [radius * math.cos(angle), radius * math.sin(angle)]
        return pairs

    for kind, attribute, dtype in [("uniform", "f32", torch.float32), ("normal", "f32", torch.float32), ("bernoulli", 0.3, torch.bool)]:
        for shape, examples, seed, step in [([6], [0, 1, 5], 7, 0), ([2, 3], [4], -1, 12345), ([], [3, 2], 2**40 + 5, 1)]:
            elements = math.prod(shape)
            rows = [numbers(kind, words(seed, step, "block1/dropout", e, elements))[:elements] for e in examples]
            y = torch.tensor(rows, dtype=dtype).reshape(len(examples), *shape)
            op = {"random": {"distribution": {kind: attribute}, "stream": "block1/dropout", "shape": shape}}
            inputs = [torch.tensor([seed, step], dtype=torch.int64), torch.tensor(examples, dtype=torch.int32)]
            cases.add(f"{kind}/{len(examples)}x{elements}", op, inputs, [y], "f32")
    return cases


def channels_first(x):
    return x.permute(0, 3, 1, 2)


def channels_last(x):
    return x.permute(0, 2, 3, 1)


def padded(x, padding, value=0.0):
    """A channels-first image with a border."""
    (top, bottom), (left, right) = padding
    return F.pad(x, (left, right, top, bottom), value=value)


def conv():
    cases = Cases("conv")
    # image [n,h,w,in], kernel [kh,kw,in,out], stride, padding
    geometries = {
        "3x3": ([1, 4, 4, 2], [3, 3, 2, 3], [1, 1], [[1, 1], [1, 1]]),
        "3x3/stride2_same": ([1, 5, 7, 2], [3, 3, 2, 2], [2, 2], [[1, 1], [1, 1]]),
        "3x3/stride2_asymmetric": ([2, 4, 6, 2], [3, 3, 2, 2], [2, 2], [[0, 1], [0, 1]]),
        "3x3/stride2_leaves_a_column": ([1, 6, 6, 1], [3, 3, 1, 2], [2, 2], [[0, 0], [0, 0]]),
        "1x1": ([2, 3, 3, 4], [1, 1, 4, 3], [1, 1], [[0, 0], [0, 0]]),
        "1x1/stride2": ([2, 4, 5, 3], [1, 1, 3, 2], [2, 2], [[0, 0], [0, 0]]),
        "5x5/same": ([1, 6, 5, 1], [5, 5, 1, 2], [1, 1], [[2, 2], [2, 2]]),
        "5x5/valid": ([2, 7, 6, 1], [5, 5, 1, 3], [1, 1], [[0, 0], [0, 0]]),
        "2x3/uneven": ([2, 5, 4, 2], [2, 3, 2, 2], [2, 1], [[1, 0], [0, 2]]),
        "3x3/larger_than_the_image": ([1, 2, 1, 2], [3, 3, 2, 2], [1, 1], [[1, 1], [1, 1]]),
    }

    def convolve(x, kernel, *bias, stride, padding, dilation, groups, relu=False):
        x, kernel = padded(channels_first(x), padding), kernel.permute(3, 2, 0, 1)
        y = F.conv2d(x, kernel, *bias, stride=stride, dilation=dilation, groups=groups)
        return channels_last(torch.relu(y) if relu else y)

    def slide(kernel, stride, padding, dilation, groups):
        """A geometry and the groups as serde prints them; ones are left out."""
        geometry = {"window": kernel[:2], "stride": stride, "padding": padding}
        geometry |= {} if dilation == [1, 1] else {"dilation": dilation}
        return {"geometry": geometry} | ({} if groups == 1 else {"groups": groups})

    def add(label, image, kernel, stride, padding, dilation=(1, 1), groups=1, bias=False, relu=False):
        how = {"stride": stride, "padding": padding, "dilation": list(dilation), "groups": groups}
        common = slide(kernel, **how)
        x, k = cases.values(*image), cases.values(*kernel)
        op = {"conv": {"forward": {**common, "epilogue": {"bias": bias, "relu": relu}}}}
        function = lambda *t: convolve(*t, **how, relu=relu)  # noqa: E731
        bias = [cases.values(kernel[3])] if bias else []
        (y,), dy, gradients = cases.forward(label, op, function, x, k, *bias)
        if not (bias or relu):
            input_grad = {"conv": {"input_grad": {**common, "image": image[1:3]}}}
            cases.add(f"{label}/input_grad", input_grad, [dy, k], gradients[:1])
            weight_grad = {"conv": {"weight_grad": common}}
            cases.add(f"{label}/weight_grad", weight_grad, [x, dy], gradients[1:])
            return (op, [x, k], y), (input_grad, [dy, k], gradients[0]), (weight_grad, [x, dy], gradients[1])

    for label, geometry in geometries.items():
        add(label, *geometry)
    add("3x3/bias", *geometries["3x3"], bias=True)
    add("3x3/relu", *geometries["3x3"], relu=True)
    add("2x3/bias_relu", *geometries["2x3/uneven"], bias=True, relu=True)

    # As above, then dilation and groups.
    none, around = [[0, 0], [0, 0]], [[1, 1], [1, 1]]
    spread = {
        "3x3/dilated": ([1, 6, 5, 2], [3, 3, 2, 2], [1, 1], [[2, 2], [1, 2]], [2, 1], 1),
        "3x2/dilated_stride2": ([1, 8, 7, 2], [3, 2, 2, 2], [2, 2], [[2, 1], [0, 3]], [2, 3], 1),
        "2x3/dilated_stride4": ([1, 9, 8, 1], [2, 3, 1, 2], [2, 4], [[3, 3], [1, 3]], [3, 2], 1),
        "3x3/groups2": ([1, 5, 4, 4], [3, 3, 2, 6], [1, 1], around, [1, 1], 2),
        "1x1/groups3": ([2, 2, 3, 6], [1, 1, 2, 3], [1, 1], none, [1, 1], 3),
        "2x2/groups2_dilated_stride2": ([1, 6, 7, 4], [2, 2, 2, 4], [2, 2], around, [2, 3], 2),
        "3x3/depthwise": ([2, 4, 5, 4], [3, 3, 1, 4], [1, 1], around, [1, 1], 4),
        "3x3/depthwise_stride2": ([1, 6, 5, 5], [3, 3, 1, 5], [2, 2], [[0, 1], [1, 1]], [1, 1], 5),
        "3x3/depthwise_dilated": ([1, 6, 7, 3], [3, 3, 1, 3], [1, 1], [[2, 2], [2, 2]], [2, 2], 3),
        "3x3/depthwise_of_two": ([1, 4, 4, 3], [3, 3, 1, 6], [1, 1], around, [1, 1], 3),
    }
    for label, geometry in spread.items():
        found = add(label, *geometry)
        if label in ("2x2/groups2_dilated_stride2", "3x3/depthwise"):
            # Inputs are exact in every float type; the result is rounded once.
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for op, inputs, output in found:
                    kind = next(iter(op["conv"]))
                    # A sum over the batch is f32.
                    stored = torch.float32 if kind == "weight_grad" else dtype
                    name = f"{label}/{kind}/{NAMES[dtype]}"
                    cases.add(name, op, [t.to(dtype) for t in inputs], [output.to(stored)], NAMES[dtype])
    add("3x3/depthwise_bias_relu", *spread["3x3/depthwise"], bias=True, relu=True)
    add("3x3/groups2_bias", *spread["3x3/groups2"], bias=True)

    # Transposed convolution: the input gradient as an op of its own. Image [n,h,w,in], kernel
    # [kh,kw,out / groups,in], stride, padding, padding of the result, dilation, groups.
    def transposed(label, image, kernel, stride, padding, more, dilation, groups):
        result = [
            (image[1 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + more[d] + 1
            for d in range(2)
        ]
        common = slide(kernel, stride, [[p, p] for p in padding], dilation, groups)
        op = {"conv": {"input_grad": {**common, "image": result}}}

        def function(x, k):
            x, k = channels_first(x), k.permute(3, 2, 0, 1)
            return channels_last(F.conv_transpose2d(x, k, None, stride, padding, more, groups, dilation))

        cases.forward(f"transposed/{label}", op, function, cases.values(*image), cases.values(*kernel))

    transposed("3x3", [1, 4, 3, 3], [3, 3, 2, 3], [1, 1], [1, 1], [0, 0], [1, 1], 1)
    transposed("4x4_stride2", [1, 3, 3, 2], [4, 4, 2, 2], [2, 2], [1, 1], [0, 0], [1, 1], 1)
    transposed("3x2_stride2", [2, 3, 2, 2], [3, 2, 3, 2], [2, 2], [1, 0], [1, 0], [1, 1], 1)
    transposed("2x3_dilated", [1, 3, 4, 2], [2, 3, 2, 2], [1, 2], [1, 2], [0, 1], [3, 2], 1)
    transposed("3x3_groups2", [1, 3, 2, 4], [3, 3, 3, 4], [2, 2], [1, 1], [1, 1], [1, 1], 2)
    transposed("2x2_depthwise", [1, 3, 3, 5], [2, 2, 1, 5], [2, 2], [0, 0], [0, 0], [1, 1], 5)
    return cases


def pool():
    cases = Cases("pool")

    def largest(x, window, stride, padding, dilation):
        """Maxima and their indices in the window, from PyTorch's indices in the padded image."""
        image = padded(channels_first(x), padding, value=-math.inf)
        y, place = F.max_pool2d(image, window, stride, dilation=dilation, return_indices=True)
        row, column = place // image.shape[3], place % image.shape[3]
        row = (row - torch.arange(y.shape[2])[:, None] * stride[0]) // dilation[0]
        column = (column - torch.arange(y.shape[3]) * stride[1]) // dilation[1]
        return channels_last(y), channels_last(row * window[1] + column).to(torch.uint8)

    def largest_adaptive(x, output):
        """The same for adaptive windows, with indices in the largest window."""
        image = list(x.shape[1:3])
        y, place = F.adaptive_max_pool2d(channels_first(x), output, return_indices=True)
        starts = [torch.arange(o) * n // o for n, o in zip(image, output)]
        ends = [-(-(torch.arange(o) + 1) * n // o) for n, o in zip(image, output)]
        row, column = place // image[1] - starts[0][:, None], place % image[1] - starts[1]
        widest = int((ends[1] - starts[1]).max())
        return channels_last(y), channels_last(row * widest + column).to(torch.uint8)

    def add_max(label, x, windows, function):
        image = list(x.shape[1:3])
        (_, index), dy, (dx,) = cases.forward(label, {"pool": {"max": {"windows": windows}}}, function, x)
        op = {"pool": {"max_grad": {"windows": windows, "image": image}}}
        cases.add(f"{label}/grad", op, [dy, index], [dx])

    def add(label, x, window, stride, padding, dilation=(1, 1)):
        geometry = {"window": window, "stride": stride, "padding": padding}
        if dilation != (1, 1):
            geometry["dilation"] = dilation
        add_max(label, x, {"sliding": geometry}, lambda x: largest(x, window, stride, padding, dilation))

    none = [[0, 0], [0, 0]]
    add("2x2", cases.values(2, 4, 4, 3), [2, 2], [2, 2], none)
    add("2x2/odd", cases.values(1, 5, 7, 2), [2, 2], [2, 2], none)
    add("3x3/stride2_padded", cases.values(2, 5, 6, 2), [3, 3], [2, 2], [[1, 1], [1, 1]])
    add("3x3/stride1", cases.values(1, 5, 5, 2), [3, 3], [1, 1], none)
    add("3x2/uneven", cases.values(1, 6, 5, 2), [3, 2], [1, 2], [[2, 0], [0, 1]])
    add("1x1/stride2", cases.values(1, 4, 3, 2), [1, 1], [2, 2], none)
    add("3x3/negative_padded", -cases.positive(1, 4, 4, 2), [3, 3], [2, 2], [[1, 1], [1, 1]])
    # The first of several maxima gets the gradient, as in PyTorch.
    add("3x3/ties", cases.indices(3, 2, 5, 5, 2).to(torch.float64), [3, 3], [2, 2], [[1, 1], [1, 1]])

    add("3x2/dilated", cases.values(1, 7, 6, 3), [3, 2], [1, 2], [[1, 2], [2, 0]], (2, 3))

    # Adaptive windows: overlapping, adjacent, more windows than elements, one window.
    adaptive = [([1, 7, 10, 2], [3, 4]), ([2, 6, 4, 3], [3, 2]), ([1, 3, 5, 2], [5, 3]), ([2, 4, 3, 5], [1, 1])]
    for shape, output in adaptive:
        label = f"{shape[1]}x{shape[2]}_to_{output[0]}x{output[1]}"
        windows = {"adaptive": {"output": output}}
        add_max(f"adaptive_max/{label}", cases.values(*shape), windows, lambda x: largest_adaptive(x, output))
        average = lambda x: channels_last(F.adaptive_avg_pool2d(channels_first(x), output))  # noqa: E731
        op = lambda name, **more: {"pool": {name: {"windows": windows, "count_padding": False, **more}}}  # noqa: E731
        adjoint = op("average_grad", image=shape[1:3])
        cases.linear(f"adaptive_average/{label}", op("average"), adjoint, average, cases.values(*shape))

    # Averages: PyTorch pads both sides equally.
    for label, shape, window, stride, padding in [
        ("2x2", [2, 4, 4, 3], [2, 2], [2, 2], [0, 0]),
        ("3x3/stride2_padded", [2, 5, 6, 2], [3, 3], [2, 2], [1, 1]),
        ("3x2/stride1", [1, 5, 5, 3], [3, 2], [1, 1], [1, 0]),
        ("2x3/leaves_a_row", [1, 5, 8, 2], [2, 3], [2, 3], [0, 1]),
        ("1x1/stride2", [1, 4, 3, 2], [1, 1], [2, 2], [0, 0]),
    ]:
        geometry = {"window": window, "stride": stride, "padding": [[p, p] for p in padding]}
        for count in (False, True):
            function = lambda x: channels_last(  # noqa: E731
                F.avg_pool2d(channels_first(x), window, stride, padding, count_include_pad=count)
            )
            op = lambda name, **more: {  # noqa: E731
                "pool": {name: {"windows": {"sliding": geometry}, "count_padding": count, **more}}
            }
            name = f"average/{label}/{'window' if count else 'image'}"
            adjoint = op("average_grad", image=shape[1:3])
            cases.linear(name, op("average"), adjoint, function, cases.values(*shape))
    return cases


def resize():
    cases = Cases("resize")
    sizes = [([2, 3, 4], [6, 8]), ([1, 5, 7], [7, 10]), ([2, 6, 8], [3, 4]), ([1, 7, 9], [4, 5]),
             ([1, 3, 8], [5, 3]), ([2, 1, 1], [3, 2]), ([1, 4, 5], [1, 1]), ([1, 3, 2], [3, 2])]  # fmt: skip
    modes = {
        "nearest": ("nearest", {"mode": "nearest"}),
        "bilinear": ({"bilinear": {"align_corners": False}}, {"mode": "bilinear", "align_corners": False}),
        "bilinear/corners": ({"bilinear": {"align_corners": True}}, {"mode": "bilinear", "align_corners": True}),
    }
    for label, (mode, options) in modes.items():
        for (n, h, w), output in sizes:
            resized = lambda x: channels_last(F.interpolate(channels_first(x), output, **options))  # noqa: E731
            op = {"resize": {"forward": {"mode": mode, "output": output}}}
            adjoint = {"resize": {"grad": {"mode": mode, "image": [h, w]}}}
            name = f"{label}/{h}x{w}_to_{output[0]}x{output[1]}"
            cases.linear(name, op, adjoint, resized, cases.values(n, h, w, 2))
    return cases


def norm():
    cases = Cases("norm")
    eps = 1e-5

    def layer(x, gain, bias):
        mean, variance = x.mean(-1, True), x.var(-1, correction=0, keepdim=True)
        return F.layer_norm(x, x.shape[-1:], gain, bias, eps), mean, (variance + eps).rsqrt()

    def batch(x, gain, bias):
        rows = x.reshape(-1, x.shape[-1])
        y = F.batch_norm(rows, None, None, gain, bias, training=True, eps=eps).reshape(x.shape)
        variance = rows.var(0, correction=0)
        return y, rows.mean(0), variance, (variance + eps).rsqrt()

    for shape in [[4, 6], [2, 3, 5], [7], [3, 1]]:
        label = f"logsumexp/{shape}".replace(" ", "")
        cases.forward(label, {"norm": "log_sum_exp"}, lambda x: x.logsumexp(-1, True), cases.values(*shape))
    far = torch.tensor([[1000.0, 1001.0, -1000.0], [-1e4, -1e4, -1e4], [0.0, 88.0, 89.0]])
    cases.forward("logsumexp/far", {"norm": "log_sum_exp"}, lambda x: x.logsumexp(-1, True), far)

    shapes = [[4, 6], [2, 3, 5], [2, 3, 3, 4]]
    for shape in shapes:
        label = str(shape).replace(" ", "")
        channels = shape[-1]
        parameters = lambda: (cases.values(channels), cases.values(channels))  # noqa: E731
        x = cases.values(*shape)
        (_, mean, rstd), dy, (_, dgain, dbias) = cases.forward(
            f"layer/{label}", {"norm": {"layer": {"eps": eps}}}, layer, x, *parameters()
        )
        # A layer norm's gain and bias gradients: sums over channels, statistics of rows.
        inputs = [dy, x, mean, rstd]
        cases.add(f"sums/channel_of_rows/{label}", {"norm": {"sums": {"axis": "channel"}}}, inputs, [dbias, dgain])
        add_row_sums(cases, f"sums/row/{label}", inputs)

        x = cases.values(*shape)
        (_, mean, _, rstd), dy, (_, dgain, dbias) = cases.forward(
            f"batch/{label}", {"norm": {"batch": {"eps": eps}}}, batch, x, *parameters()
        )
        inputs = [dy, x, mean, rstd]
        cases.add(f"sums/channel/{label}", {"norm": {"sums": {"axis": "channel"}}}, inputs, [dbias, dgain])
        add_row_sums(cases, f"sums/row_of_channels/{label}", inputs)

        stats = [x.mean(-1, True), x.var(-1, correction=0, keepdim=True)]
        cases.add(f"stats/row/{label}", {"norm": {"stats": {"axis": "row"}}}, [x], stats)
        rows = x.reshape(-1, channels)
        stats = [rows.mean(0), rows.var(0, correction=0)]
        cases.add(f"stats/channel/{label}", {"norm": {"stats": {"axis": "channel"}}}, [x], stats)
    # Far from zero, where the mean of squares minus the square of the mean cancels. The expected variance is that of the same
    # elements near zero: PyTorch's own is wrong in the eleventh digit far from zero.
    near = cases.values(4, 6)
    stats = [near.mean(-1, True) + 1024, near.var(-1, correction=0, keepdim=True)]
    cases.add("stats/far", {"norm": {"stats": {"axis": "row"}}}, [near + 1024], stats)
    # What statistics of channels are computed from, and the way back.
    for shape in shapes:
        label = str(shape).replace(" ", "")
        x = cases.values(*shape)
        rows = x.reshape(-1, shape[-1])
        mean, variance = rows.mean(0), rows.var(0, correction=0)
        moments = torch.stack([torch.full_like(mean, len(rows)), mean, variance * len(rows)])
        cases.add(f"moments/{label}", {"norm": "moments"}, [x], [moments])
        back = {"norm": {"stats_of_moments": {"dtype": "f64"}}}
        cases.add(f"stats_of_moments/{label}", back, [moments], [mean, variance])
    return cases


def add_row_sums(cases, name, inputs):
    """Sums over rows: the gradients of a gain and a bias per row."""
    dy, x, mean, rstd = (t.detach() for t in inputs)
    gain = torch.ones(*x.shape[:-1], 1).requires_grad_()
    bias = torch.zeros(*x.shape[:-1], 1).requires_grad_()
    dgain, dbias = torch.autograd.grad((x - mean) * rstd * gain + bias, [gain, bias], dy)
    cases.add(name, {"norm": {"sums": {"axis": "row"}}}, inputs, [dbias, dgain])


def attention():
    cases = Cases("attention")

    def attend(q, k, v, mask, causal):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        if mask is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        else:
            seen = seen & mask
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = q @ keys.transpose(2, 3) / math.sqrt(q.shape[3])
        scores = scores.masked_fill(~seen, -math.inf)
        return y.transpose(1, 2), scores.logsumexp(3).transpose(1, 2)

    def add(label, causal, q, k, mask=None):
        q, k, v = (cases.values(*shape) for shape in (q, k, k))
        masks = [] if mask is None else [mask]
        attributes = {"causal": causal, "masked": mask is not None}
        op = {"attention": {"forward": attributes}}
        function = lambda q, k, v, *mask: attend(q, k, v, mask[0] if mask else None, causal)  # noqa: E731
        label = f"{label}/{'causal' if causal else 'full'}".replace(" ", "")
        (y, lse), dy, gradients = cases.forward(label, op, function, q, k, v, *masks)
        op = {"attention": {"grad": attributes}}
        cases.add(f"{label}/grad", op, [q, k, v, y, lse, dy, *masks], gradients[:3])

    for shape in [[1, 4, 1, 3], [2, 5, 2, 4], [2, 1, 3, 2], [1, 9, 1, 8]]:
        for causal in (False, True):
            add(f"{shape}", causal, shape, shape)
    # Keys of another length, then grouped-query attention.
    pairs = [
        ([2, 3, 2, 4], [2, 5, 2, 4]),
        ([1, 7, 1, 3], [1, 4, 1, 3]),
        ([2, 1, 2, 3], [2, 6, 2, 3]),
        ([2, 4, 4, 2], [2, 4, 2, 2]),
        ([1, 3, 6, 2], [1, 5, 1, 2]),
        ([1, 5, 6, 3], [1, 2, 3, 3]),
    ]
    for q, k in pairs:
        for causal in (False, True):
            add(f"{q}{k}", causal, q, k)
    masks = [[2, 4, 3, 5], [1, 4, 3, 5], [2, 1, 3, 5], [2, 4, 1, 5], [1, 1, 3, 5], [2, 1, 1, 5], [1, 1, 1, 5]]
    for shape in masks:
        for causal in (False, True):
            mask = cases.indices(2, *shape).to(torch.bool)
            # A fully masked query is NaN in PyTorch, and zero here.
            mask[..., 0] = True
            add(f"mask{shape}", causal, [2, 3, 4, 3], [2, 5, 2, 3], mask)
    rotary(cases)
    return cases


def rotary(cases):
    """Rotary position embeddings that rotate halves, as in Llama."""

    def turned(x, base, inverse, start):
        positions, width = x.shape[1], x.shape[3]
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(start, start + positions, dtype=torch.float64), frequencies)
        angles = torch.cat([angles, angles], 1)[:, None, :]
        a, b = x.chunk(2, -1)
        turn = torch.cat([-b, a], -1) * angles.sin()
        return x * angles.cos() + (-turn if inverse else turn)

    for shape, base, start in [([2, 5, 3, 4], 10000.0, 0), ([1, 4, 2, 10], 100.0, 3), ([2, 1, 1, 2], 10.0, 1)]:
        for inverse in (False, True):
            label = f"rotary/{shape}/{'back' if inverse else 'forth'}".replace(" ", "")
            op = {"attention": {"rotary": {"base": base, "inverse": inverse, "start": start}}}
            cases.forward(label, op, lambda x: turned(x, base, inverse, start), cases.values(*shape))


def recurrent():
    cases = Cases("recurrent")

    def lstm(x, kernel, h, c, reverse):
        order = range(x.shape[1])
        y, cells, gates = ([None] * len(order) for _ in range(3))
        for p in reversed(order) if reverse else order:
            i, f, n, o = (x[:, p] + h @ kernel).chunk(4, 1)
            i, f, n, o = i.sigmoid(), f.sigmoid(), n.tanh(), o.sigmoid()
            c = f * c + i * n
            h = o * c.tanh()
            y[p], cells[p], gates[p] = h, c, torch.cat([i, f, n, o], 1)
        return tuple(torch.stack(values, 1) for values in (y, cells, gates))

    for n, t, units in [(1, 1, 1), (2, 3, 2), (3, 4, 3), (1, 5, 4)]:
        for reverse in (False, True):
            x, kernel = cases.values(n, t, 4 * units), cases.values(units, 4 * units)
            h, c = cases.values(n, units), cases.values(n, units)
            name = f"{n}x{t}x{units}/{'backward' if reverse else 'forward'}"
            function = lambda *inputs: lstm(*inputs, reverse)  # noqa: B023, E731
            op = {"recurrent": {"lstm": {"reverse": reverse}}}
            (_, cells, gates), dy, (dx, _, dh, dc) = cases.forward(name, op, function, x, kernel, h, c)
            inputs = [kernel, c, cells, gates, dy]
            op = {"recurrent": {"lstm_grad": {"reverse": reverse, "cells": False}}}
            cases.add(f"{name}/grad", op, inputs, [dx, dh, dc])
            dcells = cases.values(n, t, units)
            floats = [tensor.clone().requires_grad_() for tensor in (x, kernel, h, c)]
            outputs = function(*floats)[:2]
            dx, _, dh, dc = torch.autograd.grad(outputs, floats, (dy, dcells))
            op = {"recurrent": {"lstm_grad": {"reverse": reverse, "cells": True}}}
            cases.add(f"{name}/grad_of_cells", op, [*inputs, dcells], [dx, dh, dc])
    return cases


def index():
    cases = Cases("index")
    for rows, width, shape in [(5, 3, [4]), (7, 4, [2, 5]), (3, 1, [2, 2, 3]), (2, 6, [])]:
        label = f"{rows}x{width}{shape}".replace(" ", "")
        table, indices = cases.values(rows, width), cases.indices(rows, *shape)
        gather = lambda table, indices: F.embedding(indices, table)  # noqa: E731
        _, dy, (dtable, _) = cases.forward(f"gather/{label}", {"index": "gather"}, gather, table, indices)
        cases.add(f"scatter_add/{label}", {"index": {"scatter_add": {"rows": rows}}}, [indices, dy], [dtable])
    for lead, extent, count in [([], 5, 3), ([2], 4, 6), ([2, 3], 5, 2), ([3], 1, 1), ([2], 3, 0)]:
        label = f"{lead}{extent}x{count}".replace(" ", "")
        x, indices = cases.values(*lead, extent), cases.indices(extent, *lead, count)
        take = lambda x, indices: x.gather(-1, indices.long())  # noqa: E731
        cases.forward(f"take/{label}", {"index": "take"}, take, x, indices)

        def put(indices, dy):
            return torch.zeros(*lead, extent).scatter_add(-1, indices.long(), dy)

        cases.forward(f"put/{label}", {"index": {"put": {"extent": extent}}}, put, indices, cases.values(*lead, count))
    tokens, indices = cases.indices(50, 3, 4), cases.indices(4, 3, 2)
    cases.add("take/i32", {"index": "take"}, [tokens, indices], [tokens.gather(-1, indices.long())], "i32")
    for classes, shape, dtype in [(4, [3], "f64"), (5, [2, 3], "i32"), (3, [4], "bool"), (1, [2], "u8"), (6, [], "f64")]:
        indices = cases.indices(classes, *shape)
        op = {"index": {"one_hot": {"classes": classes, "dtype": dtype}}}
        label = f"one_hot/{classes}/{shape}".replace(" ", "")
        cases.add(label, op, [indices], [F.one_hot(indices.long(), classes).to(DTYPES[dtype])], "i32")
    for extent in (0, 1, 9):
        numbers = torch.arange(extent, dtype=torch.int32)
        cases.add(f"range/{extent}", {"index": {"range": {"extent": extent}}}, [], [numbers], "i32")
    return cases


def loss():
    cases = Cases("loss")

    def entropy(logits, labels, weights):
        each = F.cross_entropy(logits, labels.long(), reduction="none")
        return (each * weights).sum(), logits.logsumexp(1)

    def linear(x, kernel, labels, weights, transposed):
        return entropy(x @ (kernel.T if transposed else kernel), labels, weights)

    def add(label, rows, classes, weights, scale=1.0):
        labels = cases.indices(classes, rows)
        logits = cases.values(rows, classes) * scale
        (_, lse), dloss, gradients = cases.forward(
            f"cross_entropy/{label}", {"loss": "cross_entropy"}, entropy, logits, labels, weights
        )
        inputs = [logits, labels, weights, lse, dloss]
        cases.add(f"cross_entropy/{label}/grad", {"loss": "cross_entropy_grad"}, inputs, gradients[:1])

        for transposed in (False, True):
            x = cases.values(rows, 3) * scale
            kernel = cases.values(classes, 3) if transposed else cases.values(3, classes)
            name = f"linear/{label}/transposed" if transposed else f"linear/{label}"
            op = {"loss": {"linear_cross_entropy": {"transposed": transposed}}}
            function = lambda *inputs: linear(*inputs, transposed)  # noqa: E731
            (loss, lse), dloss, gradients = cases.forward(name, op, function, x, kernel, labels, weights)
            inputs = [x, kernel, labels, weights, lse, dloss]
            op = {"loss": {"linear_cross_entropy_grad": {"transposed": transposed}}}
            cases.add(f"{name}/grad", op, inputs, gradients[:2])
            op = {"loss": {"linear_cross_entropy_with_grad": {"transposed": transposed}}}
            cases.add(f"{name}/with_grad", op, [x, kernel, labels, weights, dloss], [loss, *gradients[:2]])

    add("mean", 4, 5, torch.full([4], 0.25))
    add("weighted", 6, 3, cases.positive(6))
    add("a_row_without_weight", 3, 7, torch.tensor([1.0, 0.0, 0.5]))
    add("one_class", 2, 1, torch.full([2], 0.5))
    # Logits beyond the range of exp.
    add("far", 4, 5, torch.full([4], 0.25), scale=1024.0)
    return cases


def quantise():
    """Blockwise 8-bit codes relative to the block's largest magnitude: the dynamic map of bitsandbytes, in f64 and rounded to
    f32 once."""
    cases = Cases("quantise")

    def listed(signed):
        values = [0.0, 1.0]
        for decade in range(7):
            cells = 2 ** (decade + (not signed))
            for cell in range(cells):
                middle = 10.0 ** (decade - 6) * (0.1 + 0.9 * (cell + 0.5) / cells)
                values += [middle, -middle] if signed else [middle]
        return torch.tensor(sorted(values)).to(torch.float32)

    def add(label, x, signed):
        values = listed(signed)
        assert len(values) == 256
        blocks = x.reshape(-1).split(256)
        scales = torch.stack([block.abs().max() for block in blocks])
        bounds = (values[1:] + values[:-1]) * 0.5
        shares = [block / (scale if scale > 0 else 1.0) for block, scale in zip(blocks, scales)]
        codes = torch.searchsorted(bounds, torch.cat(shares).to(torch.float32))
        if not signed:
            # Positive numbers stay positive.
            codes = codes.maximum((x.reshape(-1) > 0).to(torch.int64))
        codes = codes.to(torch.uint8).reshape(x.shape)
        cases.add(f"{label}/encode", {"quantise": {"encode": {"signed": signed}}}, [x], [codes, scales])
        back = values.to(torch.float64)[codes.reshape(-1).to(torch.int64)]
        back = back * scales.repeat_interleave(256)[: back.numel()]
        op = {"quantise": {"decode": {"signed": signed}}}
        cases.add(f"{label}/decode", op, [codes, scales], [back.reshape(x.shape)])

    repeated = lambda x, n: torch.cat([x, x / 16])[:n]  # noqa: E731
    add("signed", cases.values(7, 9), True)
    add("signed/two_blocks", repeated(cases.values(250), 300).reshape(3, 100), True)
    add("signed/zeros", torch.zeros(5), True)
    add("unsigned", cases.positive(63), False)
    add("unsigned/two_blocks", repeated(cases.positive(250), 290), False)
    add("unsigned/far", cases.positive(40) * torch.tensor([1.0, 1e-3, 1e-6, 1e-12, 0.0]).repeat(8), False)
    return cases


def prune():
    """Masks of one bit per weight, as TensorFlow's model optimization toolkit finds them: weights at or above the magnitude of
    the k-th largest, where k is what the sparsity leaves, rounded half to even in f32."""
    cases = Cases("prune")

    def packed(kept):
        bits = torch.cat([kept.reshape(-1), torch.zeros(-kept.numel() % 8, dtype=torch.bool)]).reshape(-1, 8)
        return (bits.to(torch.int64) << torch.arange(8)).sum(1).to(torch.uint8)

    def add(label, weights, sparsity):
        magnitudes = weights.abs().reshape(-1)
        left = torch.tensor(float(weights.numel()), dtype=torch.float32) * (1 - max(sparsity, 0.0))
        k = max(int(torch.round(left)), 1)
        kept = weights.abs() >= magnitudes.sort(descending=True).values[k - 1]
        old = torch.full((len(packed(kept)),), 0xA5, dtype=torch.uint8)
        mask = old if sparsity < 0 else packed(kept)
        cases.add(f"{label}/mask", {"prune": "mask"}, [weights, old, torch.tensor(sparsity)], [mask])
        if sparsity < 0:
            return
        cases.add(f"{label}/apply", {"prune": "apply"}, [weights, mask], [torch.where(kept, weights, 0.0)])
        op = {"prune": {"expand": {"shape": list(weights.shape)}}}
        cases.add(f"{label}/expand", op, [weights[kept], mask], [torch.where(kept, weights, 0.0)])

    add("half", cases.values(3, 3, 2, 5), 0.5)
    add("most", cases.values(7, 19), 0.96875)
    add("none", cases.values(17), 0.0)
    add("all", cases.values(12), 1.0)
    add("old", cases.values(5, 5), -1.0)
    ties = torch.tensor([0.5, -0.5, 0.25, 0.0, 1.0, 0.25, -0.25, 0.5, 0.75, -0.5])
    add("ties", ties, 0.5)
    add("ties/few", ties, 0.75)
    return cases


def int8():
    """Layers of bytes: integer arithmetic written out, with TFLite's fixed-point factors, rounded once."""
    cases = Cases("int8")

    def codes(*shape):
        return torch.tensor([cases.random.randrange(256) for _ in range(math.prod(shape))], dtype=torch.uint8).reshape(shape)

    def weights(*shape):
        drawn = [cases.random.randrange(-127, 128) for _ in range(math.prod(shape))]
        return torch.tensor(drawn, dtype=torch.int64).reshape(shape)

    def words(count, low, high):
        return torch.tensor([cases.random.randrange(low, high) for _ in range(count)], dtype=torch.int32)

    def scaled(sums, multipliers, shifts):
        bits = 31 - torch.as_tensor(shifts, dtype=torch.int64)
        return (sums * torch.as_tensor(multipliers, dtype=torch.int64) + (1 << (bits - 1))) >> bits

    def finished(sums, output, multipliers, shifts):
        found = scaled(sums, multipliers, shifts) + output["zero"]
        return found.clamp(output["low"], output["high"]).to(torch.uint8)

    def bytes_of(integers):
        return (integers & 255).to(torch.uint8)

    def layer(outputs):
        return words(outputs, -3000, 3000), words(outputs, 1 << 30, (1 << 31) - 1), words(outputs, -9, -6)

    def conv(label, image, kernel, stride, padding, groups, output, zero=7):
        (n, h, w, c), (kh, kw, o) = image, kernel
        x, k = codes(n, h, w, c), weights(kh, kw, c // groups, o)
        bias, multipliers, shifts = layer(o)
        moved = (x.to(torch.float64) - zero).permute(0, 3, 1, 2)
        moved = F.pad(moved, (padding[1][0], padding[1][1], padding[0][0], padding[0][1]))
        sums = F.conv2d(moved, k.to(torch.float64).permute(3, 2, 0, 1), stride=stride, groups=groups)
        sums = sums.permute(0, 2, 3, 1).round().to(torch.int64) + bias.to(torch.int64)
        geometry = {"window": [kh, kw], "stride": list(stride), "padding": padding}
        op = {"int8": {"conv": {"geometry": geometry, "groups": groups, "zero": zero, "output": output}}}
        inputs = [x, bytes_of(k), bias, multipliers, shifts]
        cases.add(f"conv/{label}", op, inputs, [finished(sums, output, multipliers, shifts)])

    whole, relu = {"zero": 120, "low": 0, "high": 255}, {"zero": 3, "low": 3, "high": 200}
    none, one = [[0, 0], [0, 0]], [[1, 1], [1, 1]]
    conv("plain", (2, 4, 5, 3), (3, 3, 4), (1, 1), none, 1, whole)
    conv("padded", (1, 5, 4, 2), (3, 3, 5), (2, 2), one, 1, relu)
    conv("points", (2, 3, 3, 5), (1, 1, 7), (1, 1), none, 1, whole)
    conv("wide", (1, 3, 3, 4), (2, 2, 17), (1, 1), [[0, 1], [1, 0]], 1, relu)
    conv("depthwise", (2, 4, 4, 6), (3, 3, 6), (1, 1), one, 6, whole)
    conv("depthwise/stride", (1, 5, 5, 3), (3, 2, 3), (2, 1), none, 3, relu)

    for n, k, o in [(3, 7, 4), (2, 16, 18), (1, 1, 1)]:
        x, w = codes(n, k), weights(k, o)
        bias, multipliers, shifts = layer(o)
        sums = (x.to(torch.int64) - 9) @ w + bias.to(torch.int64)
        op = {"int8": {"dense": {"zero": 9, "output": whole}}}
        cases.add(f"dense/{n}x{k}x{o}", op, [x, bytes_of(w), bias, multipliers, shifts], [finished(sums, whole, multipliers, shifts)])

    a, b = codes(3, 4, 5), codes(3, 4, 5)
    factors = [(1 << 30, 0), (1_900_000_000, -1), (1_500_000_000, -18)]
    sides = [scaled((x.to(torch.int64) - zero) << 20, *factor) for x, zero, factor in [(a, 10, factors[0]), (b, 200, factors[1])]]
    factor = lambda f: {"multiplier": f[0], "shift": f[1]}  # noqa: E731
    for label, output in [("add", whole), ("add/relu", relu)]:
        op = {"operands": [[10, factor(factors[0])], [200, factor(factors[1])]], "factor": factor(factors[2]), "output": output}
        cases.add(label, {"int8": {"add": op}}, [a, b], [finished(sides[0] + sides[1], output, *factors[2])])

    x = codes(2, 3, 4, 5)
    sums = (x.to(torch.int64) - 33).sum((1, 2), keepdim=True)
    op = {"int8": {"mean": {"zero": 33, "factor": factor((1_400_000_000, -3)), "output": whole}}}
    cases.add("mean", op, [x], [finished(sums, whole, 1_400_000_000, -3)])

    pooled = F.max_pool2d(x.to(torch.float64).permute(0, 3, 1, 2), (2, 2), (1, 2)).permute(0, 2, 3, 1).to(torch.uint8)
    windows = {"sliding": {"window": [2, 2], "stride": [1, 2], "padding": none}}
    cases.add("max_pool", {"int8": {"max_pool": {"windows": windows}}}, [x], [pooled])
    pooled = F.adaptive_max_pool2d(x.to(torch.float64).permute(0, 3, 1, 2), (2, 3)).permute(0, 2, 3, 1).to(torch.uint8)
    cases.add("max_pool/adaptive", {"int8": {"max_pool": {"windows": {"adaptive": {"output": [2, 3]}}}}}, [x], [pooled])

    grid = {"scale": 0.03125, "zero": 90}
    numbers = cases.values(6, 7) * 2
    found = (torch.round(numbers / 0.03125) + 90).clamp(0, 255).to(torch.uint8)
    cases.add("quantize", {"int8": {"quantize": grid}}, [numbers], [found])
    back = ((found.to(torch.float64) - 90) * 0.03125).to(torch.float32)
    cases.add("dequantize", {"int8": {"dequantize": grid}}, [found], [back])

    def averages(sums, counts):
        # Half away from zero, of codes that are 128 less.
        off = sums - 128 * counts
        return (torch.sign(off) * ((2 * off.abs() + counts) // (2 * counts)) + 128).to(torch.uint8)

    image = x.to(torch.float64).permute(0, 3, 1, 2)
    sums = F.avg_pool2d(image, (2, 2), (1, 2)).permute(0, 2, 3, 1) * 4
    cases.add("average_pool", {"int8": {"average_pool": {"windows": windows}}}, [x], [averages(sums.round().to(torch.int64), 4)])
    padded = {"sliding": {"window": [3, 3], "stride": [2, 1], "padding": one}}
    sums, counts = (F.avg_pool2d(i, (3, 3), (2, 1), 1).permute(0, 2, 3, 1) * 9 for i in (image, torch.ones_like(image)))
    found = averages(sums.round().to(torch.int64), counts.round().to(torch.int64))
    cases.add("average_pool/padded", {"int8": {"average_pool": {"windows": padded}}}, [x], [found])
    spans = lambda n, to: [(i * n // to, -(-(i + 1) * n // to)) for i in range(to)]  # noqa: E731
    means = [[x[:, a:b, c:d].to(torch.int64).sum((1, 2)) for c, d in spans(4, 3)] for a, b in spans(3, 2)]
    counts = torch.tensor([[(b - a) * (d - c) for c, d in spans(4, 3)] for a, b in spans(3, 2)])[None, :, :, None]
    found = averages(torch.stack([torch.stack(row, 1) for row in means], 1), counts)
    cases.add("average_pool/adaptive", {"int8": {"average_pool": {"windows": {"adaptive": {"output": [2, 3]}}}}}, [x], [found])

    for label, shape in [("mul", (2, 3, 4, 5)), ("mul/gates", (2, 1, 1, 5))]:
        gate = codes(*shape)
        product = (x.to(torch.int64) - 33) * (gate.to(torch.int64) - 5)
        for name, output in [(label, whole), (f"{label}/relu", relu)]:
            op = {"zeros": [33, 5], "factor": factor((1_300_000_000, -7)), "output": output}
            cases.add(name, {"int8": {"mul": op}}, [x, gate], [finished(product, output, 1_300_000_000, -7)])
    every = torch.arange(256).to(torch.uint8).reshape(4, 64)
    gates = (torch.sigmoid((every.to(torch.float64) - 140) * 0.0625) * 256).round().clamp(0, 255)
    cases.add("sigmoid", {"int8": {"sigmoid": {"scale": 0.0625, "zero": 140}}}, [every], [gates.to(torch.uint8)])
    product = (every.to(torch.int64) - 140) * gates.to(torch.int64)
    op = {"from": {"scale": 0.0625, "zero": 140}, "factor": factor((1_100_000_000, -7)), "output": {"zero": 10, "low": 0, "high": 255}}
    cases.add("swish", {"int8": {"swish": op}}, [every], [finished(product, op["output"], 1_100_000_000, -7)])

    def taps(mode, size, to, i):
        """Two elements and the share of the second in 1024ths, as TFLite's integer kernel computes them."""
        if mode == "nearest":
            return i * size // to, i * size // to, 0
        corners = mode["bilinear"]["align_corners"]
        step = (1024 * size + to // 2) // to
        if corners and to > 1:
            step = (1024 * (size - 1) + (to - 1) // 2) // (to - 1)
        place = i * step + (0 if corners else step // 2 - 512)
        low = max(int(place / 1024), 0)
        high = min(int((place + 1023) / 1024), size - 1)
        return min(low, size - 1), high, place - 1024 * low

    for label, mode, to in [
        ("nearest", "nearest", (4, 6)), ("bilinear", {"bilinear": {"align_corners": False}}, (5, 6)),
        ("bilinear/corners", {"bilinear": {"align_corners": True}}, (4, 7)), ("bilinear/smaller", {"bilinear": {"align_corners": False}}, (2, 2)),
    ]:  # fmt: skip
        off, found = x.to(torch.int64) - 128, torch.zeros(2, *to, 5, dtype=torch.int64)
        for i in range(to[0]):
            for j in range(to[1]):
                (top, bottom, down), (left, right, across) = taps(mode, 3, to[0], i), taps(mode, 4, to[1], j)
                upper = off[:, top, left] * (1024 - across) + off[:, top, right] * across
                lower = off[:, bottom, left] * (1024 - across) + off[:, bottom, right] * across
                total = upper * (1024 - down) + lower * down
                found[:, i, j] = torch.sign(total) * ((total.abs() + (1 << 19)) >> 20) + 128
        cases.add(f"resize/{label}", {"int8": {"resize": {"mode": mode, "output": list(to)}}}, [x], [found.to(torch.uint8)])
    return cases


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    families = (
        elementwise, fused, movement, reduce, matmul, conv, pool, resize, norm, attention, recurrent, index, loss, draws,
        quantise, prune, int8,
    )  # fmt: skip
    for family in families:
        family().write(folder)


if __name__ == "__main__":
    main()
