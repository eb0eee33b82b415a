#!/usr/bin/env python3
"""Writes a multiple-choice file and what models of test/golden/blocks think of it, as a scorer in Python computes it.

  tasks.bin         40 examples in the form of llm.c's HellaSwag files, with tokens below 64
  likelihoods.json  for each model: the summed log likelihood of every ending, and the accuracies by means and by sums

Contexts are cut at their beginning where context and ending have more than 33 tokens, which is one more than the
models' sequences. Each ending is scored alone, in float64, with the float32 weights of the block's folder.

Needs: as make_blocks.py.   Usage: make_tasks.py BLOCKS OUT
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file

from make_blocks import Raised, build, load

MODELS, SEQ_LEN, EXAMPLES = ["gemma2", "olmo3", "qwen3"], 32, 40


def examples(g):
    draw = lambda low, high: int(torch.randint(low, high, (1,), generator=g))
    text = lambda n: torch.randint(0, 64, (n,), generator=g).tolist()
    return [dict(context=text(draw(1, 36)), endings=[text(draw(1, 9)) for _ in range(draw(2, 6))]) for _ in range(EXAMPLES)]


def write(path, items):
    stream, longest = [], 0
    for i, item in enumerate(items):
        words = [65535, 0, i, item["label"], len(item["endings"])]
        for tokens in [item["context"], *item["endings"]]:
            words += [len(tokens), *tokens]
        words[1] = 2 * len(words)
        longest = max(longest, words[1])
        stream += words
    header = np.zeros(256, dtype="<i4")
    header[:4] = [20240522, 1, len(items), longest]
    path.write_bytes(header.tobytes() + np.array(stream, dtype="<u2").tobytes())


def likelihood(model, context, ending):
    ids = torch.tensor((context + ending)[-(SEQ_LEN + 1):])
    with torch.no_grad(), Raised():
        logs = model(ids[None, :-1]).logits[0].log_softmax(-1)
    return logs.gather(1, ids[1:, None])[-len(ending):].sum().item()


def main(blocks, out):
    items = examples(torch.Generator().manual_seed(5))
    results, best = {}, None
    for name in MODELS:
        with Raised():
            model = build(load(json.loads((blocks / name / "config.json").read_text())))
        model.load_state_dict({k: v.double() for k, v in load_file(blocks / name / "weights.safetensors").items()}, strict=False)
        model.eval()
        results[name] = [[likelihood(model, item["context"], e) for e in item["endings"]] for item in items]
    # The right ending of two in three is what the first model takes, so that accuracies are not those of chance.
    for i, item in enumerate(items):
        sums = results[MODELS[0]][i]
        item["label"] = int(np.argmax(sums)) if i % 3 else (int(np.argmax(sums)) + 1) % len(sums)
    out.mkdir(parents=True, exist_ok=True)
    write(out / "tasks.bin", items)
    for name, sums in results.items():
        means = [[s / len(e) for s, e in zip(of, item["endings"])] for of, item in zip(sums, items)]
        right = lambda values: sum(int(np.argmax(v)) == item["label"] for v, item in zip(values, items))
        results[name] = dict(sums=sums, right_by_sum=right(sums), right_by_mean=right(means))
        print(name, results[name]["right_by_sum"], results[name]["right_by_mean"], "of", EXAMPLES)
    (out / "likelihoods.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
