"""Writes small Parquet files of many shapes, and the rows that they have.

NAME.parquet; rows.json: {NAME: {"column": ..., "rows": [text or null, ...]}}, where the strings of a list are joined by newlines;
refused.json: {NAME: {"column": ..., "names": [what the error names, ...]}}. Made with pyarrow 26.0.1:
    make_parquet.py FOLDER
"""
import base64
import json
import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

FOLDER = pathlib.Path(sys.argv[1])
random.seed(1)
WORDS = ["the", "quick", "brown", "Größe", "你好", "naïve", "👩‍👧", "\n", "\"quoted\"", "\\", "\t", "x" * 40, ""]


def text(i):
    return " ".join(random.choice(WORDS) for _ in range(i % 9)) + f" {i}"


TEXTS = [text(i) for i in range(60)]
NULLS = [None if i % 5 == 0 or 20 <= i < 30 else t for i, t in enumerate(TEXTS)]
REPEATED = [["yes", "no", None, ""][i * i % 4] for i in range(60)]
LISTS = [None if i % 11 == 3 else [None if (i + j) % 7 == 0 else f"{i}-{j} {t}" for j in range(i % 5)] for i, t in enumerate(TEXTS)]
rows, refused = {}, {}


def joined(value):
    if isinstance(value, list):
        return "\n".join(v for v in value if v is not None)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def write(name, values, kind=None, column="text", nullable=True, **options):
    field = pa.field(column, kind or pa.string(), nullable=nullable)
    table = pa.table([pa.array(range(len(values)), pa.int64()), pa.array(values, field.type), pa.array([{"a": str(i)} for i in range(len(values))])],
                     schema=pa.schema([pa.field("id", pa.int64()), field, pa.field("meta", pa.struct([("a", pa.string())]))]))
    pq.write_table(table, FOLDER / f"{name}.parquet", **options, store_schema=False)
    return table


def good(name, values, kind=None, column="text", **options):
    write(name, values, kind, column, **options)
    back = pq.read_table(FOLDER / f"{name}.parquet")[column].to_pylist()
    rows[name] = {"column": column, "rows": [joined(v) for v in back]}
    assert back == values, name


def bad(name, names, values=TEXTS[:5], kind=None, column="text", **options):
    write(name, values, kind, **options)
    refused[name] = {"column": column, "names": names}


for version in ("1.0", "2.0"):
    for codec in ("none", "snappy", "gzip", "zstd"):
        good(f"plain-{version[0]}-{codec}", NULLS, compression=codec, use_dictionary=False, data_page_version=version)
        good(f"dictionary-{version[0]}-{codec}", REPEATED, compression=codec, use_dictionary=True, data_page_version=version)
    good(f"list-{version[0]}", LISTS, pa.list_(pa.string()), compression="snappy", data_page_version=version, data_page_size=64, write_batch_size=4)
good("required", TEXTS, nullable=False, compression="snappy")
good("required-list", [[t or "" for t in v or []] for v in LISTS], pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False)
good("large", TEXTS, pa.large_string(), compression="zstd", column="content")
good("binary", [t.encode() for t in TEXTS], pa.binary())
good("many-pages", NULLS * 3, data_page_size=64, write_batch_size=8, use_dictionary=False, row_group_size=50, write_page_checksum=True)
good("old-dictionary", REPEATED, version="1.0", row_group_size=7, write_page_index=True)   # PLAIN_DICTIONARY
# The dictionary grows too large, and later pages are PLAIN.
good("dictionary-overflow", [t * 3 for t in TEXTS], dictionary_pagesize_limit=200, data_page_size=100, write_batch_size=4)
good("one-value", ["same"] * 200)
good("nulls", [None] * 200)
good("empty-file", [])
good("empty-lists", [[]] * 20, pa.list_(pa.string()))
good("map-beside", TEXTS[:3], compression="none")

bad("lz4", ["column text", "LZ4"], compression="lz4")
bad("brotli", ["column text", "BROTLI"], compression="brotli")
for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
    bad(encoding.lower(), ["column text", encoding], use_dictionary=False, column_encoding={"text": encoding})
bad("integers", ["column text", "INT32"], [1, 2, 3], pa.int32())
bad("fixed", ["column text", "FIXED_LEN_BYTE_ARRAY"], [b"abcd"], pa.binary(4))
bad("struct", ["column text", "structs or maps"], [{"a": "x"}], pa.struct([("a", pa.string())]))
bad("map", ["column text", "structs or maps"], [[("k", "v")]], pa.map_(pa.string(), pa.string()))
bad("lists", ["column text", "lists of lists"], [[["x"]]], pa.list_(pa.list_(pa.string())))
bad("list-of-integers", ["column text", "lists of INT64"], [[1]], pa.list_(pa.int64()))
bad("list-of-structs", ["column text", "lists of lists or of structs"], [[{"a": "x"}]], pa.list_(pa.struct([("a", pa.string())])))
bad("no-column", ['no column "body"', "id, text, meta", "--text-key"], column="body")


class Keys(pe.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


table = pa.table({"text": TEXTS[:5], "other": TEXTS[:5]})
for name, plaintext, column, names in (("encrypted-footer", False, "text", ["encrypted footer"]),
                                       ("encrypted-column", True, "text", ["column text", "encrypted"])):
    factory = pe.CryptoFactory(Keys)
    settings = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["text"]}, plaintext_footer=plaintext)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(FOLDER / f"{name}.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    refused[name] = {"column": column, "names": names}
rows["encrypted-other"] = {"column": "other", "rows": TEXTS[:5]}
(FOLDER / "encrypted-column.parquet").read_bytes()
(FOLDER / "encrypted-other.parquet").write_bytes((FOLDER / "encrypted-column.parquet").read_bytes())
for name, value in (("rows", rows), ("refused", refused)):
    (FOLDER / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", "utf-8")
