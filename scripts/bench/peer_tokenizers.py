"""Encoding rates of `trainctl data tokenize` and of Hugging Face's tokenizers, in turns, on text of this machine.

    peer_tokenizers.py TRAINCTL [MB [ROUNDS]]     default: 30 MB, 5 rounds; prints a table in Markdown

Needs the Python packages tokenizers and, for the second table, pyarrow; and the program zstd. The tokenizers have 50000 ids, that of the
shape of Llama 3 128000, trained here on a third of the text. trainctl's time is that of the whole command: reading
tokenizer.json, parsing JSON lines, encoding, writing the token files. tokenizers' time is encode_batch_fast alone, on documents of
about 4 kB in memory, the first call not counted. CPU: MB for each second of CPU time (user and system) with one thread. The second table is of the same texts in other formats, encoded in
the shape of Llama 3; its rates count unpacked text.
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
VOCABULARY = {"gpt2": 50000, "llama3": 128000, "qwen2": 50000}
SEPARATOR = "<|document|>"
THREADS = len(os.sched_getaffinity(0))
TEXTS = {"prose and code": ("usr/share/common-licenses/*", "usr/include/c++/12/**/*", "usr/lib/python3*/**/*.py", "usr/share/perl/5*/**/*.p[lmo]*",
                            "usr/include/**/*.h", "usr/share/doc/*/copyright"),
         "many scripts": ("usr/share/i18n/locales/*", "usr/share/perl/5*/unicore/**/*", "usr/share/locale/*/LC_MESSAGES/*.mo", "usr/share/X11/locale/**/*",
                          "usr/share/vim/**/*", "usr/share/zoneinfo/**/*.tab", "usr/share/i18n/charmaps/*")}


def documents(patterns, most):
    texts, size = [], 0
    for pattern in patterns:
        for path in sorted(pathlib.Path("/").glob(pattern)):
            if size >= most or not path.is_file():
                continue
            text = path.read_bytes()[:1 << 20].decode("utf-8", "replace").replace("\0", "\n")
            size += len(text.encode())
            texts += [text[i:i + 4096] for i in range(0, len(text), 4096)]
    return texts


def shape(name):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt2")
    if name == "gpt2":
        return level, None
    pattern = CL100K if name == "llama3" else CL100K.replace("{1,3}", "")
    return (pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level]),
            normalizers.NFC() if name == "qwen2" else None)


def theirs(path, file, rounds):
    """In a process of its own, whose environment says how many threads."""
    tokenizer = Tokenizer.from_file(path)
    texts = [json.loads(line)["text"] for line in open(file, encoding="utf-8")]
    tokenizer.encode_batch_fast(texts[:50], add_special_tokens=False)
    best, cpu = 1e9, 1e9
    for _ in range(rounds):
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
        best = min(best, time.monotonic() - start)
        cpu = min(cpu, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(json.dumps([best, cpu]))


def run_theirs(path, file, threads):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true" if threads > 1 else "false")
    return json.loads(subprocess.run([sys.executable, __file__, "--theirs", path, file], env=environment, check=True, capture_output=True).stdout)


def run_ours(trainctl, path, file, threads, *options):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([trainctl, "-q", "data", "tokenize", file, "--out", "ours", "--tokenizer", path, "--force", "--threads", str(threads), *options], check=True,
                   cwd=os.path.dirname(file), capture_output=True)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def formats(trainctl, path, folder, texts, rounds):
    """Rates of the same texts in other formats."""
    import pyarrow
    import pyarrow.parquet
    files = {}
    with open(f"{folder}/texts.txt", "w", encoding="utf-8", newline="") as out:
        out.writelines(f"{t}\n{SEPARATOR}\n" for t in texts)
    for name in ("texts.jsonl", "texts.txt"):
        files[name] = f"{folder}/{name}"
        for tool, ending in ((["gzip", "-kf"], "gz"), (["zstd", "-qf"], "zst")):
            subprocess.run([*tool, f"{folder}/{name}"], check=True)
            files[f"{name}.{ending}"] = f"{folder}/{name}.{ending}"
    for codec in ("none", "snappy", "gzip", "zstd"):
        files[f"parquet, {codec}"] = f"{folder}/{codec}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), files[f"parquet, {codec}"], compression=codec)
    size = sum(len(t.encode()) for t in texts) / 1e6
    best = {name: [(1e9, 1e9)] * 2 for name in files}
    for _ in range(rounds):
        for name, file in files.items():
            for i, threads in enumerate((1, THREADS)):
                run = run_ours(trainctl, path, file, threads, "--separator", SEPARATOR)
                best[name][i] = tuple(map(min, best[name][i], run))
    print(f"\n| format | MB stored | 1 thread (CPU) | {THREADS} threads |\n|---|---|---|---|")
    for name, (one, many) in best.items():
        print(f"| {name} | {os.path.getsize(files[name]) / 1e6:.1f} | {size / one[0]:.0f} ({size / one[1]:.0f}) | {size / many[0]:.0f} |", flush=True)


def main(trainctl, megabytes, rounds):
    print(f"| text | tokenizer | trainctl, 1 thread (CPU) | {THREADS} threads | tokenizers, 1 thread (CPU) | {THREADS} threads | "
          f"times as fast, 1 thread (CPU) | {THREADS} threads |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for text, patterns in TEXTS.items():
            texts = documents(patterns, megabytes * 1e6)
            size = sum(len(t.encode()) for t in texts) / 1e6
            file = f"{folder}/texts.jsonl"
            with open(file, "w", encoding="utf-8") as out:
                out.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
            for name in ("gpt2", "llama3", "qwen2"):
                tokenizer = Tokenizer(models.BPE())
                tokenizer.pre_tokenizer, normalizer = shape(name)
                if normalizer:
                    tokenizer.normalizer = normalizer
                tokenizer.decoder = decoders.ByteLevel()
                tokenizer.train_from_iterator(texts[::3], trainers.BpeTrainer(vocab_size=VOCABULARY[name], special_tokens=["<|endoftext|>"], show_progress=False,
                                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
                path = f"{folder}/{name}.json"
                tokenizer.save(path)
                figures = []   # by round: ours with 1 and all threads, theirs likewise
                for _ in range(rounds):
                    figures.append([run_ours(trainctl, path, file, 1), run_ours(trainctl, path, file, THREADS), run_theirs(path, file, 1),
                                    run_theirs(path, file, THREADS)])
                one, many, their_one, their_many = ([min(r[i][k] for r in figures) for k in (0, 1)] for i in range(4))
                print(f"| {text}, {size:.0f} MB | {name} | {size / one[0]:.0f} ({size / one[1]:.0f}) | {size / many[0]:.0f} | {size / their_one[0]:.1f} "
                      f"({size / their_one[1]:.1f}) | {size / their_many[0]:.1f} | {their_one[0] / one[0]:.1f} ({their_one[1] / one[1]:.1f}) | "
                      f"{their_many[0] / many[0]:.1f} |", flush=True)
            if text == next(iter(TEXTS)):
                first_texts = texts
                os.rename(f"{folder}/llama3.json", f"{folder}/first.json")
        formats(trainctl, f"{folder}/first.json", folder, first_texts, rounds)


if sys.argv[1] == "--theirs":
    theirs(sys.argv[2], sys.argv[3], 1)
else:
    main(os.path.abspath(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 30, int(sys.argv[3]) if len(sys.argv) > 3 else 5)
