"""Goal: `trainctl data tokenize` reads the Parquet files of pyarrow, polars and duckdb, and refuses by name what it does not read.
Method: tables of random shapes: sizes, nulls, lists, repeated and long values, each codec, page version, sizes of pages, groups and
dictionaries. The tokens (of bytes) of each file must be the texts that were written.

    parquet_check.py TRAINCTL

TRAINCTL_TEST_SEED repeats a run. Prints one line a writer; ends with 1 at the first difference.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

TRAINCTL = os.path.abspath(sys.argv[1])
SEED = int(os.environ.get("TRAINCTL_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
RANDOM = random.Random(SEED)
WORDS = ["the", "quick", "Größe", "你好", "👩‍👧", "\n", "\"", "\\", "\t", "x" * 50, "", "naïve", "value[i];"]


def text():
    kind = RANDOM.random()
    if kind < 0.1:
        return ""
    if kind < 0.3:
        return RANDOM.choice(WORDS)
    return " ".join(RANDOM.choice(WORDS) for _ in range(RANDOM.choice([1, 3, 10, 10, 50, 2000 if RANDOM.random() < 0.1 else 5])))


def values(count, nulls, lists):
    def one():
        return None if RANDOM.random() < nulls else text()
    if not lists:
        return [one() for _ in range(count)]
    return [None if RANDOM.random() < nulls else [one() for _ in range(RANDOM.choice([0, 0, 1, 2, 5]))] for _ in range(count)]


def joined(value):
    return "\n".join(v for v in value if v is not None) if isinstance(value, list) else value


def tokenize(path, *options):
    return subprocess.run([TRAINCTL, "--json", "data", "tokenize", str(path), "--out", str(path.parent / "out"), "--force", *options],
                          capture_output=True, text=True)


def tokens_of(folder):
    index, tokens = (folder / "out.idx").read_bytes(), (folder / "out.bin").read_bytes()
    sequences, documents = struct.unpack_from("<QQ", index, 18)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    ids = struct.unpack(f"<{len(tokens) // 2}H", tokens)
    texts, at = [], 0
    for length in lengths:
        assert ids[at + length - 1] == 256
        texts.append(bytes(ids[at:at + length - 1]).decode())
        at += length
    assert documents == sequences + 1
    return texts


def check(path, rows, what):
    expected = [t for t in map(joined, rows) if t]
    result = tokenize(path)
    if not expected:
        assert result.returncode == 6 and "would hold no documents" in result.stderr + result.stdout, (what, result)
        return
    assert result.returncode == 0, (SEED, what, result.stdout, result.stderr)
    assert tokens_of(path.parent) == expected, (SEED, what)
    assert json.loads(result.stdout)["empty_documents"] == len(rows) - len(expected), (SEED, what)


def with_pyarrow(folder, round_):
    lists = RANDOM.random() < 0.4
    count = RANDOM.choice([0, 1, 7, 300, 3000])
    rows = values(count, RANDOM.choice([0, 0, 0.2, 1]), lists)
    string = RANDOM.choice([pa.string(), pa.large_string(), pa.binary()])
    kind = RANDOM.choice([pa.list_, pa.large_list])(string) if lists else string
    cells = rows if string != pa.binary() else json.loads(json.dumps(rows))
    table = pa.table({"before": pa.array(range(count)), "text": pa.array(cells, kind), "after": pa.array([["a", None]] * count)})
    options = dict(compression=RANDOM.choice(["none", "snappy", "gzip", "zstd"]), use_dictionary=RANDOM.random() < 0.5,
                   data_page_version=RANDOM.choice(["1.0", "2.0"]), version=RANDOM.choice(["1.0", "2.4", "2.6"]),
                   data_page_size=RANDOM.choice([100, 5000, 1 << 20]), row_group_size=RANDOM.choice([3 if count < 500 else 1000, 500, 1 << 20]),
                   dictionary_pagesize_limit=RANDOM.choice([100, 1 << 20]), write_batch_size=RANDOM.choice([1, 10, 1024]),
                   write_page_checksum=RANDOM.random() < 0.5, write_page_index=RANDOM.random() < 0.5)
    path = folder / f"pyarrow-{round_}.parquet"
    pq.write_table(table, path, **options)
    check(path, rows, ("pyarrow", count, str(kind), options))


def with_polars(folder, round_):
    lists = RANDOM.random() < 0.4
    count = RANDOM.choice([1, 50, 2000])
    rows = values(count, RANDOM.choice([0, 0.3]), lists)
    kind = polars.List(polars.String) if lists else polars.String
    options = dict(compression=RANDOM.choice(["uncompressed", "snappy", "gzip", "zstd"]), row_group_size=RANDOM.choice([None, 100]),
                   data_page_size=RANDOM.choice([None, 1000]))
    path = folder / f"polars-{round_}.parquet"
    polars.DataFrame({"id": list(range(count)), "text": polars.Series(rows, dtype=kind)}).write_parquet(path, **options)
    check(path, rows, ("polars", count, lists, options))


def with_duckdb(folder, round_):
    lists = RANDOM.random() < 0.4
    count = RANDOM.choice([1, 50, 5000])
    rows = values(count, RANDOM.choice([0, 0.3]), lists)
    source = pa.table({"id": pa.array(range(count)), "text": pa.array(rows, pa.list_(pa.string()) if lists else pa.string())})
    codec = RANDOM.choice(["uncompressed", "snappy", "gzip", "zstd"])
    path = folder / f"duckdb-{round_}.parquet"
    connection = duckdb.connect()
    connection.register("source", source)
    connection.execute(f"COPY (SELECT * FROM source ORDER BY id) TO '{path}' (FORMAT parquet, COMPRESSION {codec}, ROW_GROUP_SIZE 2048)")
    check(path, rows, ("duckdb", count, lists, codec))


def refusals(folder):
    path = folder / "refused.parquet"
    for options, word in ((dict(compression="lz4"), "LZ4"), (dict(compression="brotli"), "BROTLI"),
                          (dict(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}), "DELTA_BYTE_ARRAY"),
                          (dict(use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}), "DELTA_LENGTH_BYTE_ARRAY")):
        pq.write_table(pa.table({"text": ["a", "b"]}), path, **options)
        result = tokenize(path)
        message = result.stdout + result.stderr
        assert result.returncode == 6 and word in message and "column text" in message, (word, result)
    print("refusals are named")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for writer, rounds in ((with_pyarrow, 120), (with_polars, 30), (with_duckdb, 30)):
        for round_ in range(rounds):
            writer(folder, round_)
        print(f"{writer.__name__[5:]}: {rounds} tables are read as they were written (TRAINCTL_TEST_SEED={SEED})", flush=True)
    refusals(folder)
