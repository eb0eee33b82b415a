#!/usr/bin/env python3
"""Which spikes the loss monitor finds with its defaults, and its false alarms: tiny runs of 2,000 steps.

    scripts/bench/loss_monitor.py build/trainctl FOLDER     prints the tables of results/loss-monitor.md

Runs of a made-up language (each token has six successors) with several models, batches and schedules; and one in
which some steps have noise in 8, 4, 2 or 1 of their 8 sequences, for 1, 3 or 10 steps.
"""
import array
import json
import os
import random
import subprocess
import sys

WORDS, STEPS, STEP_TOKENS = 256, 2000, 256
SUCCESSORS = [random.Random(1000 + w).sample(range(WORDS), 6) for w in range(WORDS)]
CUMULATED = [0.4, 0.65, 0.8, 0.9, 0.96]


def language(seed):
    chance, tokens, word = random.Random(seed), array.array("H"), 0
    for _ in range((STEPS + 100) * STEP_TOKENS + 1):
        at = chance.random()
        word = SUCCESSORS[word][sum(at > c for c in CUMULATED)]
        tokens.append(word)
    return tokens


def with_noise(tokens):
    """Returns what was put in: (first step, steps, sequences)."""
    chance, put_in, at = random.Random(9), [], 300
    for sequences in (8, 4, 2, 1):
        for steps in (1, 3, 10):
            for step in range(at, at + steps):
                for i in range(sequences * 32):
                    tokens[(step - 1) * STEP_TOKENS + i] = chance.randrange(WORDS)
            put_in.append((at, steps, sequences))
            at += 140
    return put_in


def launch(program, folder, name, tokens, changes):
    with open(os.path.join(folder, name + ".bin"), "wb") as file:
        tokens.tofile(file)
    job = {
        "version": 1, "name": name, "model": {"preset": "llama-tiny"},
        "data": {"train": [{"path": name + ".bin", "format": "raw", "dtype": "uint16"}], "seq_len": 32,
                 "shuffle": False},
        "batch": {"global_sequences": 8, "micro_sequences": 8},
        "schedule": {"total_steps": STEPS, "warmup_steps": 50, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"},
        "parallelism": {"world_size": "auto", "data": 1, "lanes": 1},
        "checkpoint": {"memory": "off", "on_exit": False},
        "observability": {"run_id": name, "log_every_steps": 500},
    }
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as file:
        json.dump(job, file)
    words = [program, "launch", path, "--run-dir", os.path.join(folder, "runs")]
    for change in changes:
        words += ["-s", change]
    subprocess.run(words, check=True, capture_output=True)
    with open(os.path.join(folder, "runs", name, "events.jsonl")) as file:
        events = [json.loads(line) for line in file]
    kinds = ("loss_spike", "loss_divergence", "loss_plateau", "experts_collapsed", "loss_not_finite")
    return [event for event in events if event["kind"] in kinds]


def main():
    program, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    clean = {
        "Llama, cosine": [], "Llama, constant lr 0.01": ["schedule.type=constant", "schedule.lr=1e-2"],
        "GPT-2, lr 0.001": ["model.preset=gpt2-tiny", "schedule.lr=1e-3"],
        "Llama, batch of 2 sequences": ["batch.global_sequences=2", "batch.micro_sequences=2"],
        "Mixtral": ["model.preset=mixtral-tiny"],
    }
    print("| run | steps | false alarms |\n|---|---|---|")
    for i, (name, changes) in enumerate(clean.items()):
        events = launch(program, folder, f"clean{i}", language(100 + i), changes)
        print(f"| {name} | {STEPS} | {len(events)} |", *(e["text"] for e in events))
    tokens = language(200)
    put_in = with_noise(tokens)
    events = launch(program, folder, "noise", tokens, [])
    of_loss = [event for event in events if event["of"] == "loss"]
    print("\n| sequences with noise, of 8 | steps put in | steps found | deviations of the first |\n|---|---|---|---|")
    for at, steps, sequences in put_in:
        hit = [e for e in of_loss if e["first"] <= at + steps - 1 and e["last"] >= at]
        found = ", ".join(f"{e['first']} to {e['last']}" for e in hit) or "none"
        score = f"{hit[0]['score']:.0f}" if hit else ""
        print(f"| {sequences} | {at} to {at + steps - 1} | {found} | {score} |")
    apart = [e for e in events if not any(e["first"] <= at + steps and e["last"] >= at for at, steps, _ in put_in)]
    print(f"\n{len(of_loss)} incidents of the loss, {len(events) - len(of_loss)} of the gradient norm; apart from what "
          f"was put in: {len(apart)}")


if __name__ == "__main__":
    main()
