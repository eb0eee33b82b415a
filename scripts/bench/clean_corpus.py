#!/usr/bin/env python3
"""Writes JSON lines for the benchmark of `trainctl data dedup`: clean_corpus.py FILE BYTES.

Words of a made-up vocabulary by Zipf's law, documents of log-normal length (median 300 words); one document in five is a copy of
an earlier one, one in ten such a copy with a hundredth of its words replaced. The same bytes each time; six minutes for 1 GB.
"""
import itertools
import json
import random
import sys

path, wanted = sys.argv[1], int(sys.argv[2])
random.seed(1)
LETTERS = "etaoinshrdlucmfwgypbvk"
SHARES = [12.7, 9.1, 8.2, 7.5, 7, 6.7, 6.3, 6.1, 6, 4.3, 4, 2.8, 2.8, 2.4, 2.2, 2.4, 2, 2, 1.9, 1.5, 1, 0.8]
KEPT = 20_000  # documents that may be copied
vocabulary, seen = [], set()
while len(vocabulary) < 50_000:
    word = "".join(random.choices(LETTERS, weights=SHARES, k=max(1, min(14, int(random.gauss(5.5, 2.5))))))
    if word not in seen:
        seen.add(word)
        vocabulary.append(word)
cumulative = list(itertools.accumulate(1 / (i + 2.7) for i in range(len(vocabulary))))

total, documents = 0, []
with open(path, "w") as out:
    for number in itertools.count():
        if total >= wanted:
            break
        kind = random.random()
        if kind < 0.2 and len(documents) > 100:
            text = random.choice(documents)
        elif kind < 0.3 and len(documents) > 100:
            words = random.choice(documents).split(" ")
            for _ in range(max(1, len(words) // 100)):
                words[random.randrange(len(words))] = random.choice(vocabulary)
            text = " ".join(words)
        else:
            count = max(20, int(random.lognormvariate(5.7, 0.9)))
            words = random.choices(vocabulary, cum_weights=cumulative, k=count)
            for i in range(12, count, 14):
                words[i] += "."
            text = " ".join(words)
            if len(documents) < KEPT:
                documents.append(text)
            else:
                documents[random.randrange(KEPT)] = text
        out.write(json.dumps({"id": number, "text": text}) + "\n")
        total += len(text)
