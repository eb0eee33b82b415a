"""Writes small tokenizers in the shapes of GPT-2, Llama 3, Qwen 2, GPT-4o and others, and the ids that Hugging Face's tokenizers give.

NAME.json: the tokenizer. ids.json: {NAME: [{"text": ..., "ids": [...]}]}. Made with tokenizers 0.23.3:
    make_tokenizers.py FOLDER
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+"
CORPUS = ["The quick brown fox jumps over the lazy dog; it's what we're told, isn't it?\n",
          "def main(argc, argv):\n    return argc + 1  # 12345 and 67\n\n", "Größe, naïve, façade. Привет, мир! 你好，世界。\n",
          "for (int i = 0; i < 100; ++i) { sum += value[i]; }\n", "한국어 문장입니다. こんにちは世界 👍🏽 👩‍👩‍👧\n"] * 20
TEXTS = ["", " ", "  ", "\n", "\n\n\n", "a", " a", "a ", "  a  b ", "it's IT'S we'LL 'tis don't x'S 'ſ", "1 12 123 1234 12345 ½Ⅷ२३４",
         "a\r\nb\rc\n\n d\n \n  e", "\t\tx\t \ty", "!!! ...\n\n--> /* */ ://\n/", "<|endoftext|>a<|endoftext|><|endof", "x <mask>  y<mask>z <mas",
         "<|im_start|>user\nhi<|im_end|>", "naïve Größe Привет 你好世界 こんにちは 한국어", "e\u0301a\u0300\u0323 \u1112\u1161\u11ab \u212b \u0958 \u0344",
         "\u07fd\u0316 a\u0898\u0301", "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪", "\u00a0\u2003\u3000\u180e\u200b\ufeff\u0085\u2028x", "\u0000\u0001\x1c\x7f\ufffd", "ab" * 100, "=" * 200,
         "the the the quick brown value[i]; return argc + 1", "𝔘𝔫𝔦 𐞀 ⅷ ǅ 𞤀", "a-b--c -d", "日本語と123と漢字", "A1b22C333d4444"]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


SEQUENCE = pre_tokenizers.Sequence
SHAPES = {
    "gpt2": (level(prefix=True, regex=True), None, False, []),
    "llama3": (SEQUENCE([split(CL100K), level()]), None, True, []),
    "qwen2": (SEQUENCE([split(CL100K.replace("{1,3}", "")), level()]), normalizers.NFC(), False,
              [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True), AddedToken("naïve", normalized=True)]),
    "cased": (SEQUENCE([split(CASED, "removed", True), level()]), None, True, []),
    "digits": (SEQUENCE([pre_tokenizers.Digits(individual_digits=True), level(regex=True)]), None, False,
               [AddedToken("<mask>", special=True, lstrip=True, rstrip=True)]),
    "behaviors": (SEQUENCE([split(r"\p{N}{1,3}", "merged_with_previous"), split(r"[一-龥]+", "contiguous"),
                            pre_tokenizers.Split("-", "merged_with_next"), split(r"\s+", "removed"), level()]), None, False, []),
}

folder = pathlib.Path(sys.argv[1])
golden = {}
for name, (pre_tokenizer, normalizer, whole, added) in SHAPES.items():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=["<|endoftext|>"], show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens(added)
    file = json.loads(tokenizer.to_str())
    file["model"]["ignore_merges"] = whole
    if name == "gpt2":   # as older files write them
        file["model"]["merges"] = [" ".join(merge) for merge in file["model"]["merges"]]
        file["model"]["continuing_subword_prefix"] = file["model"]["end_of_word_suffix"] = ""
    text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    encode = Tokenizer.from_str(text).encode
    golden[name] = [{"text": t, "ids": encode(t, add_special_tokens=False).ids} for t in TEXTS]
(folder / "ids.json").write_text(json.dumps(golden, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n", encoding="utf-8")
