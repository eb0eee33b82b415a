#!/usr/bin/env python3
"""Gives the steps of a trainctl run to Weights & Biases or MLflow.

    scripts/track.py wandb  RUN_FOLDER [--project NAME] [--follow]
    scripts/track.py mlflow RUN_FOLDER [--experiment NAME] [--follow]

Needs `pip install wandb` or `pip install mlflow`. With WANDB_MODE=offline wandb writes files that `wandb sync`
uploads later; mlflow writes to MLFLOW_TRACKING_URI, by default to its own choice in the current folder.

The spec becomes the configuration, a step's numbers become metrics at that step and its time. --follow goes on until
the run ends. Called again, it goes on behind the last step that it gave; steps that a restart did again are given once,
as they were done first.
"""
import argparse
import json
import math
import os
import sys
import time

NUMBERS = ("loss", "val_loss", "grad_norm", "lr", "tokens", "tokens_per_s", "mfu", "step_s", "skipped_steps")


def leave(message):
    sys.exit(f"error: {message}")


def spec_of(run):
    """The resolved spec as {"schedule.lr": 0.001, ...}."""
    flat = {}

    def add(path, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if path + key != "launcher.env":
                    add(path + key + ".", inner)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for i, inner in enumerate(value):
                add(f"{path}{i}.", inner)
        else:
            flat[path[:-1]] = value

    with open(os.path.join(run, "job.json"), encoding="utf-8") as file:
        add("", json.load(file))
    return flat


def has_ended(run):
    try:
        with open(os.path.join(run, "status.json"), encoding="utf-8") as file:
            return json.load(file)["exit_code"] >= 0
    except (OSError, ValueError, KeyError):
        return False


def steps_of(run, after, follow):
    """The lines of metrics.jsonl with steps greater than `after`, each step once."""
    path, offset = os.path.join(run, "metrics.jsonl"), 0
    while True:
        ended = has_ended(run)
        if os.path.exists(path):
            if os.path.getsize(path) < offset:  # the run went back, and its file was replaced
                offset = 0
            with open(path, "rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    step = json.loads(line)
                    if step["step"] > after:
                        after = step["step"]
                        yield step
        if ended or not follow:
            return
        time.sleep(2)


def metrics_of(line):
    numbers = {key: line[key] for key in NUMBERS if line.get(key) is not None}
    for key in ("loss", "grad_norm", "val_loss"):
        if f"{key}_kind" in line:  # null in JSON
            numbers[key] = float(line[f"{key}_kind"])
    for phase, seconds in (line.get("phases") or {}).items():
        if seconds is not None:
            numbers["phases/" + phase] = seconds
    return numbers


def to_wandb(run, options):
    import wandb

    name = os.path.basename(run)
    with wandb.init(project=options.project, id=name, name=name, resume="allow", config=spec_of(run)) as tracked:
        for line in steps_of(run, tracked.step - 1 if tracked.step else 0, options.follow):
            tracked.log({**metrics_of(line), "_timestamp": line.get("t", time.time())}, step=line["step"])


def to_mlflow(run, options):
    import mlflow
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client, name = MlflowClient(), os.path.basename(run)
    mlflow.set_experiment(options.experiment)
    experiment = client.get_experiment_by_name(options.experiment).experiment_id
    before = client.search_runs([experiment], f"tags.`trainctl.run` = '{name}'")
    tracked = before[0] if before else client.create_run(experiment, run_name=name, tags={"trainctl.run": name})
    run_id = tracked.info.run_id
    if not before:
        params = [Param(key, str(value)[:500]) for key, value in spec_of(run).items()]
        for i in range(0, len(params), 100):  # what a call may carry
            client.log_batch(run_id, params=params[i : i + 100])
    done = [metric.step for metric in client.get_metric_history(run_id, "lr")] if before else []
    waiting = []
    for line in steps_of(run, max(done, default=0), options.follow):
        at = int(line.get("t", time.time()) * 1000)
        waiting += [Metric(key, float(value), at, line["step"]) for key, value in metrics_of(line).items()]
        if len(waiting) > 500 or options.follow:
            client.log_batch(run_id, metrics=waiting[:1000])
            waiting = waiting[1000:]
    if waiting:
        client.log_batch(run_id, metrics=waiting)
    client.set_terminated(run_id)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=("wandb", "mlflow"))
    parser.add_argument("run", metavar="RUN_FOLDER")
    parser.add_argument("--project", default="trainctl", help="of wandb")
    parser.add_argument("--experiment", default="trainctl", help="of mlflow")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    options = parser.parse_args()
    run = os.path.realpath(options.run)
    if not os.path.exists(os.path.join(run, "job.json")):
        leave(f"{options.run} is no folder of a run; name one of runs/")
    try:
        (to_wandb if options.tracker == "wandb" else to_mlflow)(run, options)
    except ModuleNotFoundError as missing:
        leave(f"{missing.name} is not installed: pip install {options.tracker}")


if __name__ == "__main__":
    main()
