"""Goal: Hugging Face's transformers load what `trainctl export` writes and compute the same logits, and what they
save is imported and exported again with the same bytes.
Method: random models of every family that transformers make and save, a trained checkpoint of each family, and
both kinds of tokenizer; trainctl's logits come from the program peer_logits.

    transformers_check.py TRAINCTL PEER_LOGITS SOURCE

Prints one line a check with the largest difference; ends with 1 at the first that fails.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors import safe_open

TRAINCTL, LOGITS, SOURCE = sys.argv[1:4]
# f32: sums of some dozens of products in another order; logits are about 1.
F32_LIMIT = 1e-5
VOCABULARY, POSITIONS = 97, 32


def trainctl(*arguments, cwd=None):
    done = subprocess.run([TRAINCTL, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise SystemExit(f"trainctl {' '.join(map(str, arguments))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(good, text):
    print(("ok    " if good else "FAILED ") + text, flush=True)
    if not good:
        raise SystemExit(1)


def raw_tensors(folder):
    """name -> (dtype, shape, bytes) of every safetensors file of the folder, read without any library."""
    result = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                assert name not in result, name
                begin, end = entry["data_offsets"]
                result[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + length + begin:8 + length + end])
    return result


def our_logits(checkpoint, tokens):
    text = " ".join(map(str, tokens))
    done = subprocess.run([LOGITS, str(checkpoint)], input=text.encode(), capture_output=True, check=True)
    return numpy.frombuffer(done.stdout, dtype="<f4").reshape(len(tokens), -1)


def their_logits(model, tokens):
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].float().numpy()


def load(folder, dtype):
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **{key: dtype})
    wrong = {key: list(value) for key, value in info.items() if value}
    if wrong:
        check(False, f"{folder}: transformers find every tensor and no other: {wrong}")
    return model


def families():
    gpt2 = dict(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=32, n_layer=3, n_head=4, bos_token_id=0,
                eos_token_id=0)
    llama = dict(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=32, intermediate_size=48,
                 num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    theta = ({"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
             if int(transformers.__version__.split(".")[0]) >= 5 else {"rope_theta": 500.0})
    for tied in (True, False):
        yield f"gpt2{' tied' if tied else ''}", transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**gpt2, tie_word_embeddings=tied))
        yield f"llama{' tied' if tied else ''}", transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**llama, **theta, tie_word_embeddings=tied, rms_norm_eps=1e-5))


def random_models(work):
    generator = torch.Generator().manual_seed(3)
    tokens = [int(t) for t in torch.randint(0, VOCABULARY, (POSITIONS,), generator=generator)]
    for number, (name, model) in enumerate(families()):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for dtype, word in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            model = model.to(dtype)
            saved, checkpoint, out = (work / f"{kind}-{number}-{word}" for kind in ("saved", "checkpoint", "out"))
            model.save_pretrained(saved, max_shard_size="20KB")
            trainctl("import", saved, "--out", checkpoint)
            trainctl("export", checkpoint, "--out", out, "--dtype", word, "--shard-size", "30kB", "--check-forward", 8)
            same = raw_tensors(out) == raw_tensors(saved)
            check(same, f"{name} {word}: {len(raw_tensors(saved))} tensors come back with the same names and bytes")
            theirs = their_logits(load(saved, dtype), tokens)
            check(numpy.array_equal(their_logits(load(out, dtype), tokens), theirs),
                  f"{name} {word}: the exported folder computes what the saved one does")
            if word == "f32":
                worst = float(numpy.abs(theirs - our_logits(checkpoint, tokens)).max())
                check(worst <= F32_LIMIT, f"{name} f32: logits of {len(tokens)} tokens, of up to {numpy.abs(theirs).max():.3g}, "
                                          f"differ by at most {worst:.3g}")


def trained_models(work):
    for name in ("gpt2-tiny", "llama-tiny"):
        golden = pathlib.Path(SOURCE) / "test/golden" / name
        job = {"version": 1, "name": name, "model": {"preset": name},
               "data": {"train": [{"path": str(golden / "tokens.bin"), "format": "raw", "dtype": "uint16"}], "seq_len": 32},
               "batch": {"global_sequences": 8, "micro_sequences": 1}, "parallelism": {"world_size": 2, "pipeline": 2},
               "schedule": {"total_steps": 6, "warmup_steps": 1, "lr": 3e-3}}
        folder = work / name
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(job))
        trainctl("launch", "job.json", "-s", "observability.run_id=run", cwd=folder)
        for word, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            trainctl("export", "run", "--out", word, "--dtype", word, "--check-forward", 40, cwd=folder)
        tokens = [int(t) for t in numpy.fromfile(golden / "tokens.bin", dtype="<u2")[:32]]
        model = load(folder / "f32", torch.float32)
        ours = our_logits(next((folder / "runs/run/ckpt").glob("step-*6")), tokens)
        theirs = their_logits(model, tokens)
        worst = float(numpy.abs(theirs - ours).max())
        check(worst <= F32_LIMIT, f"{name} after 6 steps: logits of up to {numpy.abs(theirs).max():.3g} differ by at most {worst:.3g}")
        rounded = {key: value.to(torch.bfloat16) for key, value in model.state_dict().items()}
        half = load(folder / "bf16", torch.bfloat16).state_dict()
        check(all(torch.equal(half[key], value) for key, value in rounded.items()),
              f"{name} after 6 steps: the export in bf16 is PyTorch's rounding of the one in f32")


def tokenizers(work):
    text = "def f(x):\n    return x  # naïve – 1234, 再见\n\tdone  twice\n"
    folder = work / "tokenizers"
    (folder / "corpus").mkdir(parents=True)
    lines = [f"{text}value_{i} = {i * 17} + other[{i % 7}] * 'text of line {i}'\n" for i in range(400)]
    (folder / "corpus/a.txt").write_text("".join(lines))
    (folder / "one.txt").write_text(text)
    trainctl("data", "tokenize", "corpus/a.txt", "--out", "sp", "--train-vocab", "600", cwd=folder)
    for name in ("bytes", "sp"):
        tokenizer = "bytes" if name == "bytes" else str(next(folder.glob("**/*.model")))
        config = {"model_type": "llama", "vocab_size": 700, "hidden_size": 32, "intermediate_size": 48,
                  "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64}
        saved = folder / f"{name}-saved"
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"})
                                      ).save_pretrained(saved)
        trainctl("import", saved, "--out", folder / f"{name}-checkpoint")
        out = folder / f"{name}-out"
        trainctl("export", folder / f"{name}-checkpoint", "--out", out, "--tokenizer", tokenizer)
        trainctl("data", "tokenize", "one.txt", "--out", f"{name}-one", "--tokenizer", tokenizer, cwd=folder)
        ours = [int(t) for t in numpy.fromfile(folder / f"{name}-one.bin", dtype="<u2")]
        theirs = transformers.AutoTokenizer.from_pretrained(out)
        ids = theirs(text)["input_ids"]
        check(ids == ours[:-1], f"tokenizer {name}: {len(ids)} ids as trainctl's {'' if ids == ours[:-1] else (ids, ours)}")
        check(theirs.eos_token_id == ours[-1], f"tokenizer {name}: end of text is {theirs.eos_token_id}")
        check(theirs.decode(ids) == text, f"tokenizer {name}: the ids decode to the text")


print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
transformers.utils.logging.disable_progress_bar()
torch.manual_seed(1)
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as temporary:
    random_models(pathlib.Path(temporary))
    trained_models(pathlib.Path(temporary))
    tokenizers(pathlib.Path(temporary))
