"""Goal: `trainctl data tokenize` gives the ids of Hugging Face's tokenizers and of tiktoken, and what `--train-kind bpe`
trains is loaded there with the same ids and has the merges that their trainer learns.
Method: tokenizers in the shapes of GPT-2, Llama 3, Qwen 2, GPT-4o and others, trained here by the peer's own trainer on text
of this machine; fuzzed text of every script, all white space, control characters, digits, contractions, marks, special
tokens; every code point of Unicode; broken UTF-8 as U+FFFD.

    tokenizers_check.py TRAINCTL [MB]

MB: how much fuzzed text, default 10. TRAINCTL_TEST_SEED repeats a run. Prints one line a check; ends with 1 at the first that
fails.
"""
import base64
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TRAINCTL = sys.argv[1]
MEGABYTES = float(sys.argv[2]) if len(sys.argv) > 2 else 10
SEED = int(os.environ.get("TRAINCTL_TEST_SEED", random.SystemRandom().randrange(1 << 32)))

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = CL100K.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def check(good, text):
    print(("ok    " if good else "FAILED ") + text, flush=True)
    if not good:
        raise SystemExit(1)


def trainctl(*arguments, cwd):
    done = subprocess.run([TRAINCTL, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise SystemExit(f"trainctl {' '.join(map(str, arguments))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def our_ids(work, tokenizer, texts):
    """The ids of each text, without the end of text."""
    with open(work / "texts.jsonl", "w", encoding="utf-8") as out:
        for text in texts:
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    trainctl("data", "tokenize", "texts.jsonl", "--out", "ours", "--tokenizer", tokenizer, "--force", cwd=work)
    index = (work / "ours.idx").read_bytes()
    sequences = int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, "<i4", sequences, 34)
    ids = numpy.fromfile(work / "ours.bin", "<u2" if index[17] == 8 else "<i4")
    check(len(lengths) == len(texts), f"{tokenizer}: {len(texts)} documents")
    ends = numpy.cumsum(lengths)
    return [ids[end - length:end - 1].tolist() for end, length in zip(ends, lengths)]


def compare(work, name, path, texts, theirs):
    ours = our_ids(work, path, texts)
    wrong = next((i for i in range(len(texts)) if ours[i] != theirs[i]), None)
    size = sum(len(t.encode()) for t in texts)
    detail = ""
    if wrong is not None:
        at = next((i for i, (a, b) in enumerate(zip(ours[wrong], theirs[wrong])) if a != b), -1)
        detail = f": text {wrong} {texts[wrong][:300]!r} id {at}: ours {ours[wrong][at:at + 8]}, theirs {theirs[wrong][at:at + 8]}"
    check(wrong is None, f"{name}: {sum(map(len, theirs))} ids of {len(texts)} texts, {size / 1e6:.1f} MB{detail}")


def machine_text():
    """Prose and code of this machine, about 8 MB."""
    parts, size = [], 0
    for pattern in ("/usr/share/common-licenses/*", "/usr/include/c++/12/bits/*.h", "/usr/share/perl/5*/unicore/*.txt",
                    "/usr/share/perl/5*/pod/*.pod", "/usr/lib/python3*/*.py", "/usr/share/doc/*/copyright", "/usr/share/i18n/locales/*"):
        taken = 0
        for path in sorted(pathlib.Path("/").glob(pattern[1:])):
            if path.is_file() and taken < 2_000_000:
                data = path.read_bytes()[:200_000]
                parts.append(data.decode("utf-8", "replace"))
                taken += len(data)
        size += taken
    return parts


def samples():
    return ["Größe, naïve, façade – „Zitat“. Ça va?\n", "Привет, мир! Это тест.\n", "你好，世界。这是一个测试。再见！\n",
            "こんにちは世界。カタカナとひらがな、漢字。\n", "안녕하세요 세계. 한국어 문장입니다.\n", "مرحبا بالعالم ١٢٣٤٥\n", "שלום עולם\n",
            "नमस्ते दुनिया, यह एक परीक्षण है। १२३\n", "สวัสดีชาวโลก ๑๒๓\n", "Xin chào thế giới, tiếng Việt.\n", "Γειά σου Κόσμε\n",
            "👩‍👩‍👧‍👦 family 🏳️‍🌈 flag 🇩🇪 👍🏽 ok\n", "e\u0301a\u0300 o\u0302\u0301 n\u0303 \u1100\u1161\u11a8 \ufb01 Å \u212b\n"]


def fuzzed(rng, megabytes):
    """Texts of up to some thousand characters."""
    blocks = [(0x20, 0x7F)] * 6 + [(0xA0, 0x250)] * 2 + [(0x250, 0x3000)] * 2 + [(0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
              (0x1F300, 0x1FAFF), (0x300, 0x370), (0x1100, 0x1200), (0x2000, 0x2070), (0xFE00, 0xFE10), (0xFF00, 0xFFF0),
              (0x10000, 0x20000), (0x20000, 0x2A6E0), (0xE000, 0xE010), (0xE0000, 0xE0080), (0, 0x20), (0x7F, 0xA1)]
    spaces = [" ", " ", " ", "\n", "\t", "\r\n", "\r", "\v", "\f", "\u0085", "\u00a0", "\u1680", "\u180e", "\u2000", "\u2003", "\u2028",
              "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\x1c", "\x1f"]
    words = ["the", "The", "it's", "IT'S", "we'll", "I'Ll", "don't", "you're", "'ve", "'D", "'\u017f", "\u017f", "\u2019s", "x'", "''s", "'S'T",
             "1234567", "3.14", "1,000", "２３４", "१२३४", "½", "Ⅷ", "<|endoftext|>", "<|im_start|>", "<|endof", "<|", "|>", "  <mask>  ",
             "__init__", "-->", "/*", "*/", "://", "\\n", "....", "!!!\n\n", "\ufffd", "\u0000", "a\u0301", "\u0301", "\u200d", "\u0345\u0308",
             "한", "\u1112\u1161\u11ab", "ǆ", "ǅ", "ᾳ", "ß", "ŉ", "İ", "ı", "K", "ſt", "ﬅ", "𐞀", "𖹀", "𞤀𞤢",
             "\u07fd\u0316", "a\u0898\u0301\u08ca", "\U000105d2\u0307", "\U00011935\U00011930", "\u0d3b\u0334"]
    natural = [s for text in machine_text()[:40] for s in text.split("\n")] + samples() * 20
    size, texts = 0, []
    while size < megabytes * 1e6:
        parts = []
        for _ in range(rng.randrange(1, 120)):
            kind = rng.random()
            if kind < 0.25:
                low, high = rng.choice(blocks)
                parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 9))))
            elif kind < 0.45:
                parts.append("".join(rng.choice(spaces) for _ in range(rng.choice((1, 1, 1, 2, 3, 7)))))
            elif kind < 0.65:
                parts.append(rng.choice(words))
            elif kind < 0.7:
                parts.append("".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 12))))
            elif kind < 0.72:
                parts.append(chr(rng.choice(CODE_POINTS)))
            elif kind < 0.73:
                parts.append(rng.choice(["ab", " ", "\n", "한글", "-", "é"]) * rng.randrange(1, 400))
            elif kind < 0.76:
                parts.append(rng.randbytes(rng.randrange(1, 9)).decode("utf-8", "replace"))
            else:
                parts.append(rng.choice(natural))
        text = "".join(parts)
        if text:
            texts.append(text)
            size += len(text.encode())
    return texts


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def shapes():
    """name -> (pre-tokenizer, normalizer, ignore_merges, more added tokens)."""
    sequence = pre_tokenizers.Sequence
    return {
        "gpt2": (byte_level(regex=True), None, False, []),
        "gpt2-prefix": (byte_level(prefix=True, regex=True), None, False, []),
        "llama3": (sequence([split(CL100K), byte_level()]), None, True, []),
        "qwen2": (sequence([split(QWEN2), byte_level()]), normalizers.NFC(), False,
                  [AddedToken("<|im_start|>", special=True), AddedToken("<tool_call>", special=False, normalized=False)]),
        "gpt-4o": (sequence([split(O200K, "removed", True), byte_level()]), normalizers.Sequence([normalizers.NFC()]), True, []),
        "starcoder": (sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)]), None, False,
                      [AddedToken("<mask>", special=True, lstrip=True, rstrip=True), AddedToken("é\u0301", normalized=True)]),
        "digits": (sequence([pre_tokenizers.Digits(), byte_level(prefix=True, regex=True)]), None, False, []),
        "behaviors": (sequence([split(r"\p{N}{1,3}", "merged_with_previous"), split(r"[一-龥\u3040-ゟ゠-ヿ]+", "contiguous"),
                                pre_tokenizers.Split("-", "merged_with_next"), split(r"\s+", "removed"), byte_level()]), None, False, []),
    }


def make(work, name, shape, corpus):
    pre_tokenizer, normalizer, ignore_merges, added = shape
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens(added)
    if name == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    path = work / f"{name}.json"
    file = json.loads(tokenizer.to_str())
    file["model"]["ignore_merges"] = ignore_merges
    if name == "gpt2":   # as older files write them
        file["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in file["model"]["merges"]]
        file["model"]["continuing_subword_prefix"] = file["model"]["end_of_word_suffix"] = ""
    path.write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
    return path, Tokenizer.from_file(str(path))


def every_code_point():
    """Each code point after a letter, a digit, a space and a mark, in texts of 500 of them."""
    texts = []
    for begin in range(0, len(CODE_POINTS), 500):
        texts.append("".join(f"a{chr(c)}1 {chr(c)}.{chr(c)}" for c in CODE_POINTS[begin:begin + 500]))
    return texts


def check_shapes(work, corpus, texts, rng):
    points = every_code_point()
    for name, shape in shapes().items():
        path, peer = make(work, name, shape, corpus)
        encode = lambda batch: [e.ids for e in peer.encode_batch(batch, add_special_tokens=False)]
        compare(work, f"{name}, fuzzed", path, texts, encode(texts))
        if name in ("gpt2", "llama3", "qwen2"):
            compare(work, f"{name}, every code point", path, points, encode(points))


def check_training(work, corpus):
    (work / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
    text = (work / "corpus.txt").read_text(encoding="utf-8")
    files = []
    for threads in (1, 2, 5):
        trainctl("data", "tokenize", "corpus.txt", "--out", f"trained-{threads}", "--train-vocab", 5000, "--train-kind", "bpe",
                 "--tokenizer-out", f"bpe-{threads}.json", "--threads", threads, cwd=work)
        files.append(((work / f"bpe-{threads}.json").read_bytes(), (work / f"trained-{threads}.bin").read_bytes()))
    check(files[0] == files[1] == files[2], "training: the same tokenizer and tokens with 1, 2 and 5 threads")
    mine = Tokenizer.from_file(str(work / "bpe-1.json"))
    ids = numpy.fromfile(work / "trained-1.bin", "<u2").tolist()
    check(mine.encode(text).ids == ids[:-1], f"training: {len(ids) - 1} ids of the corpus in tokenizers, too")
    check(ids[-1] == mine.token_to_id("<|endoftext|>") == 4999, "training: the last id ends the document")
    check(mine.decode(ids) == text, "training: tokenizers decode the tokens to the corpus")
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence([split(CL100K), byte_level()])
    theirs.train_from_iterator([text], trainers.BpeTrainer(vocab_size=4999, min_frequency=2, show_progress=False,
                                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(theirs.to_str())["model"]
    our_model = json.loads(mine.to_str())["model"]
    check(our_model["merges"] == model["merges"], f"training: the {len(model['merges'])} merges of their trainer")
    check(our_model["vocab"] == model["vocab"], "training: the ids of their trainer")


def check_tiktoken(work, corpus, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(CL100K), byte_level()])
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=6000, show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    characters = {v: k for k, v in bytes_to_unicode().items()}
    ranks = {bytes(characters[c] for c in token): i for token, i in tokenizer.get_vocab().items()}
    lines = {i: b for b, i in ranks.items()}
    encodings = {"tokenizer.model": (6000, CL100K), "r50k_base.tiktoken": (50256, GPT2), "cl100k_base.tiktoken": (100256, CL100K),
                 "o200k_base.tiktoken": (199998, O200K)}
    for name, (count, pattern) in encodings.items():
        filled = dict(ranks)
        number = 0
        while len(filled) < count:   # tokens of three bytes that no text has
            token = b"\xff" + number.to_bytes(3, "big")
            filled.setdefault(token, len(filled))
            number += 1
        (work / name).write_bytes(b"".join(base64.b64encode(b) + b" %d\n" % i for b, i in sorted(filled.items(), key=lambda e: e[1])))
        peer = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=filled, special_tokens={})
        # tiktoken's own tables of Unicode are of another version: characters that all versions know.
        known = [t for t in texts if not any(ord(c) > 0x3000 and not 0x3040 <= ord(c) < 0xD800 and not 0xFE00 <= ord(c) < 0x10000
                                             and not 0x1F300 <= ord(c) < 0x1F600 for c in t)]
        compare(work, f"tiktoken {name}", work / name, known, [peer.encode_ordinary(t) for t in known])


def bytes_to_unicode():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def check_broken(work, rng):
    """Bytes that are not UTF-8: kept, and divided as U+FFFD is."""
    path, peer = work / "llama3.json", Tokenizer.from_file(str(work / "llama3.json"))
    data = bytearray("".join(samples()).encode() * 200)
    for _ in range(2000):
        data[rng.randrange(len(data))] = rng.randrange(256)
    (work / "broken.txt").write_bytes(bytes(data))
    trainctl("data", "tokenize", "broken.txt", "--out", "broken", "--tokenizer", path, "--force", cwd=work)
    ids = numpy.fromfile(work / "broken.bin", "<u2").tolist()[:-1]
    table = {v: k for k, v in bytes_to_unicode().items()}
    back = b"".join(bytes(table[c] for c in peer.id_to_token(i)) for i in ids)
    check(back == bytes(data), "broken UTF-8: the tokens are the bytes of the text")
    text = bytes(data).decode("utf-8", "replace")
    (work / "replaced.txt").write_text(text, encoding="utf-8", newline="")
    trainctl("data", "tokenize", "replaced.txt", "--out", "replaced", "--tokenizer", path, "--force", cwd=work)
    ids = numpy.fromfile(work / "replaced.bin", "<u2").tolist()[:-1]
    check(ids == peer.encode(text, add_special_tokens=False).ids, "broken UTF-8: replaced by U+FFFD, the ids of tokenizers")


print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}, TRAINCTL_TEST_SEED={SEED}")
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    generator = random.Random(SEED)
    corpus_parts = machine_text() + samples() * 50
    fuzz = fuzzed(generator, MEGABYTES)
    check_shapes(folder, corpus_parts, fuzz, generator)
    check_training(folder, corpus_parts)
    check_tiktoken(folder, corpus_parts, fuzz[:len(fuzz) // 4])
    check_broken(folder, generator)
