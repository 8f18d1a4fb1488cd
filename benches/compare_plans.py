#!/usr/bin/env python3
"""Compares the plans of two binaries over the zoo: no plan should get a higher peak or a longer predicted step.

    python3 benches/compare_plans.py record BINARY FILE.json [--models a,b]
    python3 benches/compare_plans.py compare OLD.json NEW.json
    python3 benches/compare_plans.py ascend BINARY [--models a,b] [--lines 8]

`record` plans every model of the zoo under five lines: none, and four from the old floor up to the peak without a line. The lines
are stored, so that a second binary is given the same ones with `--lines OLD.json`. Predictions use the default disk speed, so that
the figures do not depend on the machine's load. `compare` lists every plan that changed and exits 1 if one got worse. `ascend` plans
models under lines from the floor to the peak without one, lists every line whose step is predicted to take over 0.1 % longer than that
of a lower line, and exits 1 if there is one.
"""

import argparse
import json
import subprocess
import sys

FRACTIONS = (0.0, 0.25, 0.5, 0.75)


# Models whose plans are compared from line to line, with their flags.
ASCENDED = ("mlp", "lenet", "resnet20", "gpt", "lstm --micro-batches 2", "vit_tiny", "unet_plain")
# A step that takes this share longer than that of a lower line is slower.
SLOWER = 0.001


def plan(binary, model, line=None):
    """The figures of one plan, or why there is none. The model's name may have flags after it."""
    command = [binary, "plan", "--model", *model.split(), "--json", "--plan-cache", "none", "--threads", "2"]
    if line is not None:
        command += ["--memory", str(line)]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"status": done.returncode, "error": done.stderr[-300:]}
    if not answer.get("feasible"):
        return {"status": done.returncode, "feasible": False, "floor_bytes": answer.get("floor_bytes")}
    sheet = answer["load_sheet"]
    return {
        "status": done.returncode,
        "feasible": True,
        "floor_bytes": answer.get("floor_bytes"),
        "total_bytes": sheet["total_bytes"],
        "arena_bytes": sheet["arena_bytes"],
        "predicted_us": [row["predicted_us"] for row in sheet["plans"]],
        "peak_bytes": [row["peak_bytes"] for row in sheet["plans"]],
        "micro_batches": sheet["plans"][0]["micro_batches"],
        "recomputed": sheet["plans"][0]["recomputed"],
        "spilled_bytes": sheet["spilled_bytes"],
    }


def models(binary):
    listing = subprocess.run([binary, "zoo"], capture_output=True, text=True, check=True).stdout
    rows = listing.splitlines()[1:]
    return [row.split()[0] for row in rows[: next(i for i, row in enumerate(rows) if row.startswith("State:"))]]


def record(arguments):
    known = json.load(open(arguments.lines)) if arguments.lines else {}
    names = arguments.models.split(",") if arguments.models else models(arguments.binary)
    found = {}
    for model in names:
        whole = plan(arguments.binary, model)
        rows = {"none": whole}
        if model in known:
            lines = [line for line in known[model] if line != "none"]
        else:
            floor, top = whole["floor_bytes"], whole["total_bytes"]
            lines = [str(int(floor + (top - floor) * fraction)) for fraction in FRACTIONS]
        for line in lines:
            rows[line] = plan(arguments.binary, model, line)
        found[model] = rows
        print(model, {line: row.get("total_bytes", row) for line, row in rows.items()}, flush=True)
        json.dump(found, open(arguments.file, "w"), indent=1)


def compare(arguments):
    old, new = (json.load(open(file)) for file in (arguments.old, arguments.new))
    changed = worse = plans = 0
    for model, rows in old.items():
        for line, before in rows.items():
            after = new.get(model, {}).get(line)
            plans += 1
            if after == before:
                continue
            changed += 1
            bad = after is None or before.get("feasible", False) and (
                not after.get("feasible")
                or after["total_bytes"] > before["total_bytes"]
                or after["predicted_us"][0] > before["predicted_us"][0]
            )
            worse += bad
            print("WORSE" if bad else "changed", model, line, before, "->", after)
    print(f"{plans} plans, {changed} changed, {worse} worse")
    sys.exit(1 if worse else 0)


def ascend(arguments):
    slower = plans = 0
    for model in arguments.models.split(",") if arguments.models else ASCENDED:
        whole = plan(arguments.binary, model)
        floor, top = whole["floor_bytes"], whole["total_bytes"]
        lines = [floor + (top - floor) * at // (arguments.lines - 1) for at in range(arguments.lines)]
        fastest = None
        for line in lines:
            answer = plan(arguments.binary, model, line)
            if not answer.get("feasible"):
                sys.exit(f"{model}: no plan under {line}, though the floor is {floor}: {answer}")
            plans += 1
            time = answer["predicted_us"][0]
            words = ""
            if fastest and time > fastest[0] * (1 + SLOWER):
                slower += 1
                words = f"  SLOWER by {time / fastest[0] - 1:.2%} than under {fastest[1]}"
            if not fastest or time <= fastest[0]:
                fastest = (time, line)
            used = f"{answer['micro_batches']} micro-batches, {answer['recomputed']} recomputed, {answer['spilled_bytes']} spilled"
            print(f"{model:<24} {line:>12} {time:>10} us  {used}{words}", flush=True)
    print(f"{plans} plans, {slower} slower than one under a lower line")
    sys.exit(1 if slower else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.add_argument("binary")
    one.add_argument("file")
    one.add_argument("--models")
    one.add_argument("--lines", help="take the lines of this earlier record")
    one.set_defaults(run=record)
    two = commands.add_parser("compare")
    two.add_argument("old")
    two.add_argument("new")
    two.set_defaults(run=compare)
    three = commands.add_parser("ascend")
    three.add_argument("binary")
    three.add_argument("--models")
    three.add_argument("--lines", type=int, default=8)
    three.set_defaults(run=ascend)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
