"""What Weights & Biases and MLflow get of a run by scripts/track.py is what metrics.jsonl says, bit for bit.

    trackers_check.py TRAINCTL SOURCE

Trains a tiny Llama with a stop and a resume, gives it to both (wandb offline, mlflow with its own database), reads back
what they keep, and follows a second run to its end. Needs wandb and mlflow (trackers.sh installs them).
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

JOB = """{"version": 1, "name": "tracked", "model": {"preset": "llama-tiny"},
"data": {"train": [{"path": "%s/tokens.bin", "format": "raw", "dtype": "uint16"}],
         "val": [{"path": "%s/tokens.bin", "format": "raw", "dtype": "uint16"}], "seq_len": 32},
"batch": {"global_sequences": 8, "micro_sequences": 1}, "eval": {"every_steps": 5, "max_tokens": "1k"},
"schedule": {"total_steps": 40, "warmup_steps": 4, "lr": 3e-3}, "launcher": {"env": {"SECRET": "x"}},
"parallelism": {"pipeline": 2}, "checkpoint": {"every_steps": 8}}"""


def check(condition, what):
    if not condition:
        sys.exit(f"trackers_check: {what}")


def main():
    trainctl, source = sys.argv[1:3]
    tracker = os.path.join(source, "scripts", "track.py")
    golden = os.path.join(source, "test", "golden", "llama-tiny")
    with tempfile.TemporaryDirectory() as work:
        environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": work,
                       "MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db"}

        def run(*words, **more):
            subprocess.run(words, cwd=work, check=True, env=environment, **more)

        with open(os.path.join(work, "job.json"), "w", encoding="utf-8") as file:
            file.write(JOB % (golden, golden))
        run(trainctl, "-q", "launch", "job.json", "-s", "observability.run_id=tracked", "--max-steps", "21")
        run(trainctl, "-q", "resume", "tracked")
        lines = steps(os.path.join(work, "runs", "tracked"))
        check(len(lines) == 40, f"the run has {len(lines)} steps, not 40")

        run(sys.executable, tracker, "wandb", "runs/tracked")
        files = glob.glob(os.path.join(work, "wandb", "offline-run-*", "*.wandb"))
        check(len(files) == 1, f"wandb wrote {files}")
        history, configuration = wandb_records(files[0])
        compare("wandb", lines, lambda line: history[line["step"]])
        check(configuration["schedule.lr"] == 3e-3, "wandb has another learning rate")
        check(not any("SECRET" in key for key in configuration), "wandb got the environment of the job")

        run(sys.executable, tracker, "mlflow", "runs/tracked")
        run(sys.executable, tracker, "mlflow", "runs/tracked")  # nothing is given twice
        compare_mlflow(environment["MLFLOW_TRACKING_URI"], "tracked", lines)

        with subprocess.Popen([trainctl, "-q", "launch", "job.json", "-s", "observability.run_id=followed", "-s",
                               "schedule.total_steps=300"], cwd=work, env=environment) as launch:
            while not os.path.exists(os.path.join(work, "runs", "followed", "status.json")):
                check(launch.poll() is None, "the run to follow ended before it began")
            run(sys.executable, tracker, "mlflow", "runs/followed", "--follow", timeout=300)
            check(launch.wait(60) == 0, "the run to follow failed")
        compare_mlflow(environment["MLFLOW_TRACKING_URI"], "followed", steps(os.path.join(work, "runs", "followed")))
    print("trackers_check: wandb and mlflow have each step once, with the bits of metrics.jsonl")


def steps(run):
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare(name, lines, numbers_of):
    for line in lines:
        numbers = numbers_of(line)
        for key in ("loss", "grad_norm", "lr", "tokens", "val_loss", "mfu"):
            if line.get(key) is not None:
                check(numbers.get(key) == line[key], f"{name}: step {line['step']}: {key} {numbers.get(key)}, not {line[key]}")


def compare_mlflow(uri, run, lines):
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("trainctl").experiment_id
    found = client.search_runs([experiment], f"tags.`trainctl.run` = '{run}'")
    check(len(found) == 1, f"mlflow has {len(found)} runs {run}")
    check(found[0].data.params["schedule.lr"] == "0.003", "mlflow has another learning rate")
    kept = {}
    for key in ("loss", "grad_norm", "lr", "tokens", "val_loss", "mfu"):
        history = client.get_metric_history(found[0].info.run_id, key)
        with_key = [line for line in lines if line.get(key) is not None]
        check(len(history) == len(with_key), f"mlflow has {len(history)} values of {key}, not {len(with_key)}")
        for metric in history:
            kept.setdefault(metric.step, {})[key] = metric.value
    compare("mlflow", lines, lambda line: kept[line["step"]])


def wandb_records(path):
    """Steps and configuration of a .wandb file: records of LevelDB's log format, each a protobuf."""
    from wandb.proto import wandb_internal_pb2

    with open(path, "rb") as file:
        data = file.read()
    check(data[:4] == b":W&B", "this is no .wandb file of the known format")
    history, configuration, at, record = {}, {}, 7, b""
    block = 32768
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block that holds no header
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):  # whole, or the last part
            continue
        parsed = wandb_internal_pb2.Record()
        parsed.ParseFromString(record)
        record = b""
        if parsed.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in parsed.history.item}
            history.setdefault(parsed.history.step.num, {}).update(items)
        elif parsed.WhichOneof("record_type") in ("run", "config"):
            update = parsed.run.config.update if parsed.HasField("run") else parsed.config.update
            for item in update:
                configuration[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return history, configuration


if __name__ == "__main__":
    main()
