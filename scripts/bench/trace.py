"""What recording costs a step: paired windows of one run, traced and not.

    scripts/bench/trace.py [PAIRS] [TRAINCTL]     default 20 pairs, build/trainctl

For each job: a run in the background; PAIRS times `trainctl trace --steps K`, and the median of the durations of the traced
steps (step_s of metrics.jsonl) over that of as many steps before and after them, without those in which the command
starts and reads the recordings. Printed: the median of these ratios, their quartiles, spans a step and rank.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKENS = {"path": f"{SOURCE}/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}
EIGHT = {"tensor": 2, "pipeline": 2, "data": 2, "threads_per_rank": 1}
# Name, model, sequence length, batch, parallelism, K, and the steps on both sides that are left out.
JOBS = [
    ("llama-4m widths, 8 ranks TP2 x PP2 x DP2",
     {"preset": "llama-4m", "vocab_size": 512, "max_seq_len": 128}, 128, 16, 4, EIGHT, 12, 6),
    ("llama-tiny, 8 ranks TP2 x PP2 x DP2", {"preset": "llama-tiny"}, 32, 8, 1, EIGHT, 60, 60),
    ("llama-tiny, 1 rank", {"preset": "llama-tiny"}, 32, 8, 1, {"threads_per_rank": 1}, 60, 200),
]


def steps_of(run):
    durations = {}
    with open(f"{run}/metrics.jsonl") as file:
        for line in file:
            if line.endswith("\n"):
                row = json.loads(line)
                durations[row["step"]] = row["step_s"]
    return durations


def await_step(run, step, process):
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if os.path.exists(f"{run}/metrics.jsonl"):
            steps = steps_of(run)
            if steps and max(steps) >= step:
                return steps
        assert process.poll() is None, "the run has ended"
        time.sleep(0.2)
    raise TimeoutError(f"{run} has not reached step {step} in 600 s")


def measure(trainctl, folder, job, pairs):
    name, model, seq_len, sequences, micro, parallelism, count, margin = job
    spec = {"version": 1, "name": "bench", "device": "cpu", "model": model,
            "data": {"train": [TOKENS], "seq_len": seq_len}, "parallelism": parallelism,
            "batch": {"global_sequences": sequences, "micro_sequences": micro},
            "schedule": {"total_steps": 10000000}, "checkpoint": {"memory": "off", "every_steps": 0, "on_exit": False},
            "observability": {"run_id": "bench", "log_every_steps": 1, "rank_metrics_every_steps": 0}}
    with open(f"{folder}/job.json", "w") as out:
        json.dump(spec, out)
    run = f"{folder}/runs/bench"
    launched = subprocess.Popen([trainctl, "-q", "launch", "job.json"], cwd=folder, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    ratios, traced_s, spans = [], [], []
    try:
        await_step(run, 2 * (count + margin), launched)
        for _ in range(pairs):
            done = subprocess.run([trainctl, "--json", "trace", "bench", "--steps", str(count), "--out", "t.json.gz"],
                                  cwd=folder, check=True, capture_output=True, text=True)
            summary = json.loads(done.stdout)
            first, last = summary["first_step"], summary["last_step"]
            if summary["overwritten_spans"]:
                first = last - count + 1   # also those that were overwritten were recorded
            steps = await_step(run, last + margin + count, launched)
            middle = lambda begin, end: statistics.median(steps[s] for s in range(begin, end + 1))
            plain = (middle(first - margin - count, first - margin - 1) + middle(last + margin + 1, last + margin + count)) / 2
            traced_s.append(middle(first, last))
            ratios.append(traced_s[-1] / plain)
            spans.append(summary["spans"] / len(summary["ranks"]) / (last - summary["first_step"] + 1))
    finally:
        subprocess.run([trainctl, "-q", "stop", "bench", "--now"], cwd=folder, stderr=subprocess.DEVNULL)
        launched.wait(timeout=60)
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"{name}: step {statistics.median(traced_s) * 1e3:.1f} ms, {statistics.median(spans):.0f} spans a step and rank, "
          f"traced / not {median:.4f} (quartiles {low:.4f} {high:.4f}, {pairs} pairs of {count} steps)", flush=True)


def main():
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    trainctl = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else f"{SOURCE}/build/trainctl"
    for job in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            measure(trainctl, folder, job, pairs)


main()
