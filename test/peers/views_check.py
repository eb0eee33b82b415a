"""A run's files as TensorBoard and Prometheus read them. Usage: views_check.py TRAINCTL SOURCE

Trains twelve steps, ends the run at step 8 and resumes it from step 4, so that steps 5 to 8 exist twice; then
TensorBoard's own reader must show each step once with the numbers of metrics.jsonl, and Prometheus's parser must
take trainctl.prom. The names in scripts/grafana must be names that the page has or can have.
"""
import glob
import json
import math
import os
import re
import subprocess
import sys
import tempfile

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main():
    trainctl, source = (os.path.abspath(path) for path in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        tokens = f"{source}/test/golden/gpt2-tiny/tokens.bin"
        job = {
            "version": 1, "name": "views", "device": "cpu",
            "model": {"family": "gpt2", "hidden_size": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 512,
                      "max_seq_len": 32},
            "data": {"train": [{"path": tokens, "format": "raw", "dtype": "uint16"}], "seq_len": 32},
            "batch": {"global_sequences": 8, "micro_sequences": 2},
            "parallelism": {"data": 2, "threads_per_rank": 1},
            "schedule": {"total_steps": 12}, "checkpoint": {"every_steps": 4, "keep_last": 9},
            "observability": {"run_id": "views"},
        }
        with open(f"{folder}/job.json", "w") as out:
            json.dump(job, out)

        def run(*arguments):
            subprocess.run([trainctl, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)

        run("launch", "job.json", "--max-steps", "8")
        run("resume", "views", "--step", "4")
        path = f"{folder}/runs/views"
        files = glob.glob(f"{path}/events.out.tfevents.*")
        assert len(files) == 2, files
        shown = EventAccumulator(path)
        shown.Reload()
        lines = [json.loads(line) for line in open(f"{path}/metrics.jsonl")]
        assert [line["step"] for line in lines] == list(range(1, 13))
        for tag, field in (("loss/train", "loss"), ("optim/grad_norm", "grad_norm"), ("optim/lr", "lr"),
                           ("perf/step_s", "step_s")):
            scalars = shown.Scalars(tag)
            assert [s.step for s in scalars] == list(range(1, 13)), (tag, [s.step for s in scalars])
            for scalar, line in zip(scalars, lines):
                assert math.isclose(scalar.value, line[field], rel_tol=1e-6), (tag, scalar, line[field])
        print(f"TensorBoard: {len(lines)} steps of {len(files)} attempts, each once, as in metrics.jsonl")

        page = open(f"{path}/trainctl.prom").read()
        families = {family.name: family for family in text_string_to_metric_families(page)}
        value = {(s.name, s.labels.get("state")): s.value for f in families.values() for s in f.samples}
        assert value["trainctl_step", None] == 12 and value["trainctl_state", "finished"] == 1
        assert math.isclose(value["trainctl_loss", None], lines[-1]["loss"])
        print(f"Prometheus: {len(families)} families")
        dashboard = open(f"{source}/scripts/grafana/trainctl.json").read()
        json.loads(dashboard)
        rules = open(f"{source}/scripts/grafana/alerts.yml").read()
        program = open(f"{source}/runtime/run/views/prometheus.cpp").read()
        for name in set(re.findall(r"trainctl_[a-z_]+", dashboard + rules)):
            assert f'"{name}"' in program, name
        print("Grafana: every name of the dashboard and of the rules is one of the page")


main()
