"""Traces a short run and checks the file with Perfetto's own descriptors, and with its trace processor where that can be had.

    python3 -m venv perfetto-env && perfetto-env/bin/pip install perfetto
    perfetto-env/bin/python benches/check_trace.py target/release/plimsoll [FLAGS OF train ...]

Numbers must agree with the run's log: one slice for each traced step, of the same length and loss; kernels inside of steps;
no more of the arena in use than was planned.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

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
        try:
            from perfetto.trace_processor import TraceProcessor
            with TraceProcessor(trace=str(trace)) as processor:
                query = "select count(*) as n from slice where category = 'kernel'"
                found = next(iter(processor.query(query))).n
                assert found == len(kernels), (found, len(kernels))
                query = """select max(value) as most, count(*) as n from counter join thread_counter_track on
                           counter.track_id = thread_counter_track.id where name = 'arena in use'"""
                found = next(iter(processor.query(query)))
                assert found.most == max(counters["arena in use"]), (found.most, max(counters["arena in use"]))
                print("the trace processor finds the same")
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"the trace processor cannot be had here ({error}); the descriptors read every packet")


main()
