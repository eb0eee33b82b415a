"""A trace as a viewer of Chrome's trace format reads it. Usage: trace_check.py TRAINCTL SOURCE

Traces three steps of a run of eight ranks TP2 x PP2 x DP2 that evaluates and saves, and reads the file by the
format's own description alone: known kinds of events with their required fields; every process and thread has a
name; slices of a thread nest; an arrow's ends lie in slices and name one message; times are microseconds (a step is
as long as metrics.jsonl says); counters are numbers. Perfetto's own reader cannot be used: its package loads a program
from the network when it runs.
"""
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time

REQUIRED = {"X": ("name", "cat", "pid", "tid", "ts", "dur"), "M": ("name", "pid", "args"),
            "C": ("name", "pid", "ts", "args"), "i": ("name", "pid", "tid", "ts", "s"),
            "s": ("name", "cat", "id", "pid", "tid", "ts"), "f": ("name", "cat", "id", "pid", "tid", "ts", "bp")}


def nanoseconds(microseconds):
    return round(microseconds * 1000)


def check_form(events):
    for event in events:
        assert event["ph"] in REQUIRED, event
        for field in REQUIRED[event["ph"]]:
            assert field in event, (field, event)
        if "ts" in event:
            assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values()), event
    named = {(e["pid"]) for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        assert event["pid"] in named, event
        if event["ph"] in "Xisf":
            assert (event["pid"], event["tid"]) in threads, event


def check_nesting(slices):
    """Any two slices of one thread are apart, or one lies in the other: by a recursive division of the thread."""
    def divide(inside, begin, end):
        at = begin
        while inside:
            outer = inside.pop(0)
            assert outer[0] >= at and outer[1] <= end, (outer, begin, end)
            count = next((i for i, s in enumerate(inside) if s[0] >= outer[1] and s[1] > outer[1]), len(inside))
            divide(inside[:count], outer[0], outer[1])
            inside = inside[count:]
            at = outer[1]

    sys.setrecursionlimit(10000)
    for thread in slices.values():
        divide(sorted(((b, e) for b, e, _ in thread), key=lambda s: (s[0], -s[1])), 0, 1 << 62)


def enclosing(slices, thread, at):
    """The slices of a thread around a moment."""
    return [event for begin, end, event in slices[thread] if begin <= at <= end]


def check_flows(events, slices):
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts and starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert start["name"] == end["name"] and start["cat"] == end["cat"]
        assert start["ts"] <= end["ts"], (start, end)
        kind = start["name"]
        one = [e for e in enclosing(slices, (start["pid"], start["tid"]), nanoseconds(start["ts"]))
               if e["name"].startswith(f"send {kind} ")]
        other = [e for e in enclosing(slices, (end["pid"], end["tid"]), nanoseconds(end["ts"]))
                 if e["name"].startswith(f"wait {kind} ")]
        assert one and other, (start, end)
        sent, received = one[-1]["args"], other[-1]["args"]
        assert sent["step"] == received["step"] and sent["micro_batch"] == received["micro_batch"], (sent, received)
        assert abs(sent["virtual_stage"] - received["virtual_stage"]) == 1
    return len(starts)


def check_units(events, metrics):
    """The middle one of the durations of steps against the seconds in metrics.jsonl."""
    by_step = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] == "step":
            by_step.setdefault(event["args"]["step"], []).append(event["dur"] * 1e-6)
    for step, seconds in by_step.items():
        longest = max(seconds)
        assert 0.2 * metrics[step] < longest < 1.5 * metrics[step], (step, longest, metrics[step])
    return len(by_step)


def check(path, metrics):
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    check_form(events)
    slices = {}
    for event in events:
        if event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            slices.setdefault((event["pid"], event["tid"]), []).append((begin, begin + nanoseconds(event["dur"]), event))
    check_nesting(slices)
    flows = check_flows(events, slices)
    steps = check_units(events, metrics)
    ranks = {e["pid"] for e in events if e["ph"] == "X"}
    assert len(ranks) == 8 and steps == 3, (ranks, steps)
    assert trace["otherData"]["flows"] == flows
    for kind in ("compute", "pipeline", "state", "wait", "exchange", "save", "data", "phase"):
        assert any(e["ph"] == "X" and e["cat"] == kind for e in events), kind
    order = [e["ts"] for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (0, 1)]
    assert order == sorted(order)
    print(f"{len(events)} events, {sum(map(len, slices.values()))} slices, {flows} arrows, {steps} steps: good")


def main():
    trainctl, source = (os.path.abspath(path) for path in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        tokens = {"path": f"{source}/test/golden/gpt2-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}
        job = {
            "version": 1, "name": "trace", "device": "cpu",
            "model": {"family": "gpt2", "hidden_size": 32, "num_layers": 4, "num_heads": 2, "vocab_size": 512,
                      "max_seq_len": 32},
            "data": {"train": [tokens], "val": [tokens], "seq_len": 32},
            "batch": {"global_sequences": 8, "micro_sequences": 1},
            "eval": {"every_steps": 2, "max_tokens": 256},
            "parallelism": {"tensor": 2, "pipeline": 2, "data": 2, "threads_per_rank": 1},
            "schedule": {"total_steps": 100000}, "checkpoint": {"memory": "on", "every_steps": 2},
            "observability": {"run_id": "traced"},
        }
        with open(f"{folder}/job.json", "w") as out:
            json.dump(job, out)
        run = f"{folder}/runs/traced"

        def lines():
            if not os.path.exists(f"{run}/metrics.jsonl"):
                return []
            with open(f"{run}/metrics.jsonl") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]

        launched = subprocess.Popen([trainctl, "launch", "job.json"], cwd=folder, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
        try:
            limit = time.monotonic() + 60
            while len(lines()) < 5:
                assert launched.poll() is None and time.monotonic() < limit, "the run did not start"
                time.sleep(0.05)
            traced = subprocess.run([trainctl, "--json", "trace", "traced", "--steps", "3", "--out", "t.json.gz"], cwd=folder,
                                    check=True, capture_output=True, text=True, timeout=120)
            summary = json.loads(traced.stdout)
            assert re.fullmatch(r"t\.json\.gz", summary["file"]) and summary["bytes"] == os.path.getsize(f"{folder}/t.json.gz")
            limit = time.monotonic() + 60
            while lines()[-1]["step"] < summary["last_step"]:
                assert time.monotonic() < limit
                time.sleep(0.05)
            check(f"{folder}/t.json.gz", {line["step"]: line["step_s"] for line in lines()})
        finally:
            subprocess.run([trainctl, "stop", "traced", "--now"], cwd=folder, stderr=subprocess.DEVNULL)
            launched.wait(timeout=60)


main()
