#!/usr/bin/env python3
"""Compares the plans of two binaries over the zoo: no plan should get a higher peak or a longer predicted step.

    python3 benches/compare_plans.py record BINARY FILE.json [--models a,b]
    python3 benches/compare_plans.py compare OLD.json NEW.json

`record` plans every model of the zoo under five lines: none, and four from the old floor up to the peak without a line. The lines
are stored, so that a second binary is given the same ones with `--lines OLD.json`. Predictions use the default disk speed, so that
the figures do not depend on the machine's load. `compare` lists every plan that changed and exits 1 if one got worse.
"""

import argparse
import json
import subprocess
import sys

FRACTIONS = (0.0, 0.25, 0.5, 0.75)


def plan(binary, model, line=None):
    """The figures of one plan, or why there is none."""
    command = [binary, "plan", "--model", model, "--json", "--plan-cache", "none", "--threads", "2"]
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
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
