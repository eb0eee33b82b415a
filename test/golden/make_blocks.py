#!/usr/bin/env python3
"""Writes golden training runs of the published families: the numbers that a preset of trainctl must reproduce.

Each case is a tiny model of one family, built by Hugging Face transformers from a config and trained for 12 AdamW
steps on the CPU. A case folder holds:

  config.json          what transformers' save_pretrained writes (layout of transformers 5: rope_parameters)
  config_v4.json       the same model in the layout of transformers 4, which published files have (rope_theta,
                       rope_scaling); no file for gpt2, whose layout did not change
  weights.safetensors  initial parameters, F32, names and shapes as save_pretrained writes them: Linear = [out, in],
                       GPT-2's Conv1D = [in, out], no lm_head.weight where it is tied
  tokens.bin           raw little-endian u16 stream of steps * batch * seq_len + 1 tokens, samples as in make_golden.py
  grads.safetensors    F32 gradient of the mean loss of step 0, before clipping, per parameter
  logits.safetensors   F32 logits [seq_len, vocab] of the first sample of step 0, before the first update
  curve.json           per step: loss, grad_norm (before clipping), lr  (float64, printed exactly)

The recipe (clipping, decay, schedule) is the one of make_golden.py with the numbers of TRAIN below, which
train.json repeats. Weight decay applies to matrices; embeddings included, norms, biases and sinks not.

Everything is computed in float64. transformers computes norms, softmax and rotary tables in float32 whatever the
model's type is, so each request for float32 is answered with float64 (class Raised). Three checks run per case:
a second implementation of the forward pass in this file, written from the formulas, gives the same logits to 1e-11
and the loss of step 0 follows from the logits by hand; transformers without Raised gives the same logits to 1e-4;
and config_v4.json gives a model with the same logits, bit for bit.

Experts have the names under which save_pretrained writes them, one by one.

Experts of gpt_oss are joined in weights.safetensors, as its files have them, and apart in grads.safetensors. The biases
by which glm4_moe chooses experts change after each step by bias_update_rate of train.json, towards the mean of their
counts; the counts of step 0 are their gradients in grads.safetensors.

Padding tokens are null in all configs: with one, transformers gives that row of the embedding no gradient.

Needs: python3, numpy, PyTorch >= 2.6, transformers >= 5 (written with 5.24.0).
Usage: make_blocks.py OUT [CASE ...]
"""
import json
import math
import pathlib
import sys
import tempfile

import torch
import transformers
from torch.overrides import TorchFunctionMode

from make_golden import TRAIN as GOLDEN_TRAIN
from make_golden import lr_at, save_safetensors

TRAIN = dict(GOLDEN_TRAIN, steps=12, batch=4, bias_update_rate=0.01)
SIZE = dict(vocab_size=64, hidden_size=16, num_attention_heads=4, num_key_value_heads=2)
LLAMA3 = dict(rope_theta=100.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_theta=100.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0)
PLAIN = dict(rope_type="default")

# The keys of the config class; head_dim is given where published configs of the family have it, and then differs
# from hidden_size / num_attention_heads. Caps are small because the scores of a tiny model are.
CASES = {
    "llama31": dict(model_type="llama", **SIZE, head_dim=8, num_hidden_layers=2, intermediate_size=32,
                    rms_norm_eps=1e-5, max_position_embeddings=256, rope_parameters=LLAMA3),
    "llama32": dict(model_type="llama", **SIZE, head_dim=8, num_hidden_layers=2, intermediate_size=32,
                    rms_norm_eps=1e-5, max_position_embeddings=1024, tie_word_embeddings=True,
                    rope_parameters=dict(LLAMA3, factor=32.0)),
    "qwen2": dict(model_type="qwen2", **SIZE, num_hidden_layers=3, intermediate_size=32, max_position_embeddings=64,
                  rope_parameters=dict(PLAIN, rope_theta=1e3)),
    "qwen3": dict(model_type="qwen3", **SIZE, head_dim=8, num_hidden_layers=3, intermediate_size=24,
                  max_position_embeddings=64, tie_word_embeddings=True,
                  rope_parameters=dict(PLAIN, rope_theta=1e3)),
    "olmo2": dict(model_type="olmo2", **SIZE, num_hidden_layers=3, intermediate_size=32, rms_norm_eps=1e-6,
                  max_position_embeddings=64, rope_parameters=dict(PLAIN, rope_theta=5e2)),
    # hidden_size / num_attention_heads = 4, so two frequencies: the ramp of YaRN takes 0 and 1/2 on them.
    "olmo3": dict(model_type="olmo3", **SIZE, num_hidden_layers=4, intermediate_size=16, rms_norm_eps=1e-6,
                  sliding_window=9, max_position_embeddings=512,
                  rope_parameters=dict(
                      full_attention=dict(YARN, attention_factor=1.25, original_max_position_embeddings=128),
                      sliding_attention=dict(PLAIN, rope_theta=100.0))),
    "gemma2": dict(model_type="gemma2", **dict(SIZE, hidden_size=20), head_dim=6, num_hidden_layers=3,
                   intermediate_size=20, sliding_window=9, query_pre_attn_scalar=10, attn_logit_softcapping=2.0,
                   final_logit_softcapping=3.0, max_position_embeddings=64,
                   rope_parameters=dict(PLAIN, rope_theta=1e4)),
    # One full layer in three, where published models have one in six.
    "gemma3_text": dict(model_type="gemma3_text", **dict(SIZE, hidden_size=20), head_dim=6, num_hidden_layers=3,
                        intermediate_size=20, sliding_window=9, query_pre_attn_scalar=10,
                        max_position_embeddings=256,
                        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                        rope_parameters=dict(
                            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000.0),
                            sliding_attention=dict(PLAIN, rope_theta=50.0))),
    "mistral": dict(model_type="mistral", **SIZE, head_dim=8, num_hidden_layers=2, intermediate_size=32,
                    sliding_window=9, rms_norm_eps=1e-5, max_position_embeddings=64,
                    rope_parameters=dict(PLAIN, rope_theta=1e4)),
    "smollm3": dict(model_type="smollm3", **SIZE, num_hidden_layers=4, intermediate_size=24,
                    max_position_embeddings=64, rope_parameters=dict(PLAIN, rope_theta=5e4)),
    # Coefficients of 0: the loss of these runs is without the one that balances experts.
    "mixtral": dict(model_type="mixtral", **SIZE, head_dim=8, num_hidden_layers=2, intermediate_size=24,
                    num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0, sliding_window=None,
                    max_position_embeddings=64, rope_parameters=dict(PLAIN, rope_theta=1e3)),
    "qwen3_moe": dict(model_type="qwen3_moe", **SIZE, head_dim=8, num_hidden_layers=3, intermediate_size=32,
                      moe_intermediate_size=12, num_experts=5, num_experts_per_tok=3, norm_topk_prob=False,
                      mlp_only_layers=[0], decoder_sparse_step=1, router_aux_loss_coef=0.0,
                      max_position_embeddings=64, rope_parameters=dict(PLAIN, rope_theta=1e3)),
    # Values are narrower than keys; both scales of YaRN count.
    "deepseek_v3": dict(model_type="deepseek_v3", **dict(SIZE, num_key_value_heads=4), num_hidden_layers=2,
                        intermediate_size=24, moe_intermediate_size=6, n_routed_experts=6, num_experts_per_tok=2,
                        n_shared_experts=1, n_group=3, topk_group=2, first_k_dense_replace=1, num_mtp_layers=0,
                        rms_norm_eps=1e-5,
                        kv_lora_rank=8, q_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
                        max_position_embeddings=256,
                        rope_parameters=dict(YARN, mscale=0.8, mscale_all_dim=0.5,
                                             original_max_position_embeddings=64)),
    "gpt2": dict(model_type="gpt2", vocab_size=64, n_embd=16, n_head=4, n_layer=2, n_positions=40, resid_pdrop=0.0,
                 embd_pdrop=0.0, attn_pdrop=0.0),
    "qwen2_moe": dict(model_type="qwen2_moe", **SIZE, num_hidden_layers=2, intermediate_size=32, moe_intermediate_size=12,
                      shared_expert_intermediate_size=20, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
                      decoder_sparse_step=1, router_aux_loss_coef=0.0, max_position_embeddings=64,
                      rope_parameters=dict(PLAIN, rope_theta=1e3)),
    "glm4_moe": dict(model_type="glm4_moe", **SIZE, head_dim=8, num_hidden_layers=3, intermediate_size=24,
                     moe_intermediate_size=8, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4,
                     topk_group=2, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5,
                     use_qk_norm=True, attention_bias=True, num_mtp_layers=0, max_position_embeddings=64,
                     rope_parameters=dict(PLAIN, rope_theta=1e3, partial_rotary_factor=0.5)),
    # The attention factor is the default of YaRN, 0.1 ln(factor) + 1; low and high of its ramp stay fractions.
    "gpt_oss": dict(model_type="gpt_oss", **SIZE, head_dim=8, num_hidden_layers=2, intermediate_size=12,
                    num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0, swiglu_limit=1.5,
                    sliding_window=9, max_position_embeddings=256,
                    rope_parameters=dict(YARN, rope_theta=150.0, truncate=False,
                                         original_max_position_embeddings=64)),
}
# The first from 200 whose routers never waver.
SEEDS = dict(mixtral=205, qwen3_moe=220, qwen2_moe=213, glm4_moe=201, gpt_oss=207, deepseek_v3=202)


class Raised(TorchFunctionMode):
    """Answers each request for float32 with float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        raised = lambda x: torch.float64 if x is torch.float32 else x
        return func(*map(raised, args), **{k: raised(v) for k, v in (kwargs or {}).items()})


def build(config):
    config._experts_implementation = "eager"  # the only one in float64
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.double().train()


def load(keys):
    """The config of these keys, without special tokens and without a type for the parameters."""
    keys = json.loads(json.dumps(keys))  # a copy: the config classes change the dictionaries they are given
    keys = {k: v for k, v in keys.items() if k not in ("dtype", "torch_dtype")}
    return transformers.AutoConfig.for_model(**dict(keys, pad_token_id=None, bos_token_id=None, eos_token_id=None))


def init(model, g):
    """Scores, gates and logits of order one, so that windows, caps and rotations matter; no weight is neutral."""
    for name, p in model.named_parameters():
        if p.dim() == 3:  # [experts, out, in], of gpt_oss [experts, in, out]
            fan = p.shape[1 if model.config.model_type == "gpt_oss" else 2]
            p.data.copy_((torch.randn(p.shape, generator=g) / math.sqrt(fan)).float().double())
            continue
        noise = torch.randn(p.shape, generator=g)
        if p.dim() == 1:  # norms around 1, or 0 where the weight is added to 1; biases around 0
            value = noise if name.endswith("sinks") else p.detach().round() + 0.1 * noise
        elif "conv1d" in type(model.get_submodule(name.rpartition(".")[0])).__name__.lower():
            value = noise / math.sqrt(p.shape[0])
        else:
            value = noise / math.sqrt(p.shape[1])
        p.data.copy_(value.float().double())
    for b in biases(model).values():
        b.copy_((0.05 * torch.randn(b.shape, generator=g)).float().double())


def biases(model):
    """The buffers by which experts are chosen, by name."""
    return {k: b for k, b in model.named_buffers() if k.endswith("e_score_correction_bias")}


def one_by_one(tensors):
    """Joined tensors of gpt_oss, apart: [out, in]."""
    out = {}
    for name, x in tensors.items():
        base, _, what = name.partition("experts.")
        if not what:
            out[name] = x
        for e in range(len(x) if what else 0):
            end = f"{base}experts.{e}."
            kind = "bias" if what.endswith("bias") else "weight"
            part = x[e].T if kind == "weight" else x[e]
            if what.startswith("down"):
                out[end + "down_proj." + kind] = part.contiguous()
            else:
                out[end + "gate_proj." + kind] = part[::2].contiguous()
                out[end + "up_proj." + kind] = part[1::2].contiguous()
    return out


def on_disk(model, tensors):
    """Tensors by the names that save_pretrained gives them: those of experts one by one."""
    mixtral = model.config.model_type == "mixtral"
    if model.config.model_type == "gpt_oss":
        return tensors
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name, x in tensors.items():
        base = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(x):
                for word, part in zip(names, both.chunk(2)):
                    out[f"{base.removesuffix('gate_up_proj')}{e}.{word}.weight"] = part.contiguous()
        elif name.endswith("experts.down_proj"):
            for e, part in enumerate(x):
                out[f"{base.removesuffix('down_proj')}{e}.{names[2]}.weight"] = part.contiguous()
        else:
            out[base] = x
    return out


def v4_layout(config, model_type):
    """The config as transformers 4 wrote it."""
    c = {k: v for k, v in config.items() if not k.startswith("_")}
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.57.3"
    if model_type == "qwen3_moe":
        c["num_experts"] = c.pop("num_local_experts")
    rope = c.pop("rope_parameters")
    if model_type == "gemma3_text":
        c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        c["sliding_window_pattern"] = 3
        del c["layer_types"]
    full = dict(rope.get("full_attention", rope))
    if model_type == "glm4_moe":
        c["partial_rotary_factor"] = full.pop("partial_rotary_factor")
    c["rope_theta"] = full.pop("rope_theta")
    c["rope_scaling"] = None if full == PLAIN else full
    return dict(sorted(c.items()))


# ---- the second implementation -------------------------------------------------------------------------------------

def growth(rope, strength):
    return 0.1 * strength * math.log(rope["factor"]) + 1


def frequencies(rope, d):
    """Inverse frequencies [d / 2] and the factor on cos and sin."""
    theta, kind = rope["rope_theta"], rope["rope_type"]
    f = [theta ** (-2 * j / d) for j in range(d // 2)]
    factor = rope.get("factor", 1.0)
    if kind == "linear":
        return [x / factor for x in f], 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        rotations = [rope["original_max_position_embeddings"] * x / (2 * math.pi) for x in f]
        keep = [min(1.0, max(0.0, (r - low) / (high - low))) for r in rotations]
        return [x * k + x / factor * (1 - k) for x, k in zip(f, keep)], 1.0
    if kind == "yarn":
        length = rope["original_max_position_embeddings"]
        at = lambda turns: d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        low, high = at(rope["beta_fast"]), at(rope["beta_slow"])
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        ramp = [min(1.0, max(0.0, (j - low) / (high - low))) for j in range(d // 2)]
        scale = rope.get("attention_factor", growth(rope, rope.get("mscale", 1)) / growth(rope, rope.get("mscale_all_dim", 0)))
        return [x * (1 - r) + x / factor * r for x, r in zip(f, ramp)], scale
    return f, 1.0


def rotate(x, rope, neighbours=False):
    """Half-split rotation, or of neighbours; x [B, H, T, d]."""
    f, scale = frequencies(rope, x.shape[3])
    angle = torch.outer(torch.arange(x.shape[2]).double(), torch.tensor(f))
    a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else x.chunk(2, 3)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return torch.cat([a * cos - b * sin, b * cos + a * sin], 3)


def attend(q, k, v, scale, window, cap, sinks):
    group, t = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("bhid,bhjd->bhij", q, k) * scale
    if cap:
        s = cap * (s / cap).tanh()
    distance = torch.arange(t)[:, None] - torch.arange(t)
    e = torch.where((distance >= 0) & (distance < (window or t)), s, -math.inf).exp()
    total = e.sum(3, keepdim=True)
    if sinks is not None:
        total = total + sinks.exp()[:, None, None]
    return torch.einsum("bhij,bhjd->bhid", e / total, v)


def layer_kinds(c):
    """Per layer: (the window or None, the rotation or None)."""
    n, kind, rope = c["num_hidden_layers"], c["model_type"], c["rope_parameters"]
    full_every = dict(olmo3=4, gemma2=2, gemma3_text=3, gpt_oss=2, mistral=n + 1).get(kind, 1)
    nope_every = 4 if kind == "smollm3" else n + 1
    kinds = []
    for i in range(n):
        windowed = (i + 1) % full_every != 0
        r = rope.get("sliding_attention" if windowed else "full_attention", rope)
        kinds.append((c["sliding_window"] if windowed else None, None if (i + 1) % nope_every == 0 else r))
    return kinds


def latent_attention(c, p, h, x, rope, norm):
    """What o_proj reads. The class turns parts of a head in another order, for q and k alike."""
    heads, own, width = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    product = lambda y, name: y @ p[h + name + ".weight"].T
    split = lambda y: y.view(*y.shape[:2], heads, -1).transpose(1, 2)
    query = norm(product(x, "q_a_proj"), h + "q_a_layernorm.weight")
    latent, key = product(x, "kv_a_proj_with_mqa").split([c["kv_lora_rank"], c["qk_rope_head_dim"]], -1)
    q = split(product(query, "q_b_proj"))
    k, v = split(product(norm(latent, h + "kv_a_layernorm.weight"), "kv_b_proj")).split([own, width], -1)
    turn = lambda y: rotate(y, rope, neighbours=True)
    q = torch.cat([q[..., :own], turn(q[..., own:])], -1)
    k = torch.cat([k, turn(key[:, None]).expand(-1, heads, -1, -1)], -1)
    scale = q.shape[-1] ** -0.5 * growth(rope, rope["mscale_all_dim"]) ** 2
    return attend(q, k, v, scale, None, None, None).transpose(1, 2).reshape(*x.shape[:2], heads * width)


def mix(c, p, h, x, act):
    """Every expert of every token, most of them times 0, and the shared ones."""
    kind, k = c["model_type"], c["num_experts_per_tok"]
    z = x @ p[h + ("router.weight" if kind == "gpt_oss" else "gate.weight")].T + p.get(h + "router.bias", 0.0)
    biased = kind in ("glm4_moe", "deepseek_v3")
    s = z.sigmoid() if biased else z.softmax(-1)
    value = s + p.get(h + "gate.e_score_correction_bias", 0.0)
    if biased:
        best = value.unflatten(-1, (c["n_group"], -1)).sort(-1, descending=True).values[..., :2].sum(-1)
        kept = best >= best.sort(-1, descending=True).values[..., c["topk_group"] - 1, None]
        value = torch.where(kept.repeat_interleave(s.shape[-1] // c["n_group"], -1), value, -math.inf)
    chosen = value >= value.sort(-1, descending=True).values[..., k - 1, None]
    w = torch.where(chosen, s, 0.0)
    if kind in ("mixtral", "gpt_oss") or c["norm_topk_prob"]:
        w = w / w.sum(-1, keepdim=True)
    if kind == "gpt_oss":
        both = torch.einsum("btd,edf->btef", x, p[h + "experts.gate_up_proj"]) + p[h + "experts.gate_up_proj_bias"]
        limit = c["swiglu_limit"]
        gate, up = both[..., ::2].clamp(max=limit), both[..., 1::2].clamp(-limit, limit)
        y = torch.einsum("btef,efd->bted", (up + 1) * gate * (1.702 * gate).sigmoid(), p[h + "experts.down_proj"])
        return torch.einsum("bte,bted->btd", w, y + p[h + "experts.down_proj_bias"])
    gate, up = torch.einsum("btd,efd->btef", x, p[h + "experts.gate_up_proj"]).chunk(2, -1)
    y = torch.einsum("bte,btef,edf->btd", w, act(gate) * up, p[h + "experts.down_proj"])
    if biased:
        y = c["routed_scaling_factor"] * y
    for name in ("shared_expert", "shared_experts"):
        if h + name + ".up_proj.weight" in p:
            gate, up, down = (p[f"{h}{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            one = (act(x @ gate.T) * (x @ up.T)) @ down.T
            y = y + (one * (x @ p[h + "shared_expert_gate.weight"].T).sigmoid() if name == "shared_expert" else one)
    return y


def forward(c, p, ids):
    """Logits of the families with rotary positions, from the config's keys and the parameters' names."""
    gemma = c["model_type"].startswith("gemma")
    d, heads, groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    hd = c.get("head_dim") or d // heads
    act = (lambda y: torch.nn.functional.gelu(y, approximate="tanh")) if gemma else torch.nn.functional.silu

    def norm(y, name):
        if name not in p:
            return y
        w = p[name] + (1 if gemma else 0)
        eps = 1e-6 if "_a_layernorm" in name else c["rms_norm_eps"]  # of latents, whatever the config says
        return y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * w

    def linear(y, name):
        return y @ p[name + ".weight"].T + p.get(name + ".bias", torch.zeros(()))

    def attention(y, h, window, rope):
        q, k, v = (linear(y, h + f"self_attn.{n}_proj") for n in "qkv")
        split = lambda z: z.view(*z.shape[:2], -1, hd).transpose(1, 2)
        order = (lambda z, n: split(norm(z, n))) if c["model_type"].startswith("olmo") else \
            (lambda z, n: norm(split(z), n))
        q, k = order(q, h + "self_attn.q_norm.weight"), order(k, h + "self_attn.k_norm.weight")
        assert q.shape[1] == heads and k.shape[1] == groups
        if rope:
            turned = int(hd * rope.get("partial_rotary_factor", 1.0))
            q, k = (torch.cat([rotate(z[..., :turned], rope), z[..., turned:]], -1) for z in (q, k))
        o = attend(q, k, split(v), c.get("query_pre_attn_scalar", hd) ** -0.5, window,
                   c.get("attn_logit_softcapping"), p.get(h + "self_attn.sinks"))
        return o.transpose(1, 2).reshape(*ids.shape, heads * hd)

    x = p["model.embed_tokens.weight"][ids] * (math.sqrt(d) if gemma else 1)
    pre = "model.layers.0.input_layernorm.weight" in p
    sandwich = "model.layers.0.pre_feedforward_layernorm.weight" in p
    for i, (window, rope) in enumerate(layer_kinds(c)):
        h = f"model.layers.{i}."
        y = norm(x, h + "input_layernorm.weight")
        if "kv_lora_rank" in c:
            o = latent_attention(c, p, h + "self_attn.", y, rope, norm)
        else:
            o = attention(y, h, window, rope)
        y = linear(o, h + "self_attn.o_proj")
        after = h + "post_attention_layernorm.weight"
        x = x + (norm(y, after) if sandwich or not pre else y)
        before = h + "pre_feedforward_layernorm.weight" if sandwich else after if pre else ""
        y = norm(x, before)
        if h + "mlp.gate.weight" in p or h + "mlp.router.weight" in p:
            y = mix(c, p, h + "mlp.", y, act)
        else:
            y = linear(act(linear(y, h + "mlp.gate_proj")) * linear(y, h + "mlp.up_proj"), h + "mlp.down_proj")
        x = x + norm(y, h + "post_feedforward_layernorm.weight")
    logits = norm(x, "model.norm.weight") @ p.get("lm_head.weight", p["model.embed_tokens.weight"]).T
    cap = c.get("final_logit_softcapping")
    return cap * (logits / cap).tanh() if cap else logits


def forward_gpt2(c, p, ids):
    d, heads = c["n_embd"], c["n_head"]
    linear = lambda y, n: y @ p[n + ".weight"] + p[n + ".bias"]

    def norm(y, n):
        y = y - y.mean(-1, keepdim=True)
        y = y / (y.square().mean(-1, keepdim=True) + c["layer_norm_epsilon"]).sqrt()
        return y * p[n + ".weight"] + p[n + ".bias"]

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][: ids.shape[1]]
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        q, k, v = (z.view(*ids.shape, heads, d // heads).transpose(1, 2)
                   for z in linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(d, 2))
        o = attend(q, k, v, (d // heads) ** -0.5, None, None, None)
        x = x + linear(o.transpose(1, 2).reshape(x.shape), h + "attn.c_proj")
        y = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        x = x + linear(torch.nn.functional.gelu(y, approximate="tanh"), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


# ---- one case ------------------------------------------------------------------------------------------------------

def write_configs(model, folder):
    """config.json as save_pretrained writes it, and the same in the old layout; returns both as dictionaries."""
    with tempfile.TemporaryDirectory() as t:
        model.config.save_pretrained(t)
        config = json.loads(pathlib.Path(t, "config.json").read_text())
    config["dtype"] = "float32"
    old = None if config["model_type"] == "gpt2" else v4_layout(config, config["model_type"])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if old:
        (folder / "config_v4.json").write_text(json.dumps(old, indent=2) + "\n")
    return config, old


def check(model, config, old, ids, logits):
    """The three comparisons of the docstring; returns the two largest differences."""
    p = {k: v.detach() for k, v in model.named_parameters()} | biases(model)
    second = (forward_gpt2 if config["model_type"] == "gpt2" else forward)(config, p, ids)
    error = (second - logits).abs().max().item()
    assert error < 1e-11, error
    with torch.no_grad():
        rounded = build(load(config))
        rounded.load_state_dict(model.state_dict())
        rounding = (rounded(ids).logits - logits).abs().max().item()
        assert 0 < rounding < 1e-4 or config["model_type"] == "gpt2", rounding
        if old:
            again = load(old)
            if config["model_type"] == "olmo3":  # 5.24 loses rope_theta on sliding layers; 4.57 has one for all
                again.rope_parameters["sliding_attention"]["rope_theta"] = old["rope_theta"]
            with Raised():
                twin = build(again)
                twin.load_state_dict(model.state_dict())
                assert torch.equal(twin(ids).logits, logits)
    return error, rounding


def gap(values, k):
    """How far the last chosen value is from the first that is not."""
    best = values.sort(-1, descending=True).values
    return (best[..., k - 1] - best[..., k]).min().item()


def watch_routers(model):
    """A list that gets, of each pass, how far choices are from others; and of routers with a bias, by its name, the
    counts of experts since it was cleared."""
    gaps, counts = [], {}

    def look(router, _, out):
        gaps.append(gap(out[0], router.top_k))

    def look_at_biased(router, args, name):
        x, bias = args[0].detach().reshape(-1, router.hidden_dim), router.e_score_correction_bias
        value = (x @ router.weight.detach().T).sigmoid() + bias
        best = value.unflatten(-1, (router.num_group, -1)).sort(-1, descending=True).values[..., :2].sum(-1)
        gaps.append(10 * gap(best, router.topk_group))  # sigmoids differ by less than logits
        kept = best >= best.sort(-1, descending=True).values[..., router.topk_group - 1, None]
        left = torch.where(kept.repeat_interleave(len(bias) // router.num_group, -1), value, -math.inf)
        gaps.append(10 * gap(left, router.top_k))
        chosen = left.topk(router.top_k, -1).indices
        counts[name] = counts.get(name, 0) + torch.bincount(chosen.flatten(), minlength=len(bias))

    for name, module in model.named_modules():
        if hasattr(module, "e_score_correction_bias"):
            module.register_forward_hook(
                lambda router, args, _, name=name + ".e_score_correction_bias": look_at_biased(router, args, name))
        elif type(module).__name__.endswith("TopKRouter") and hasattr(module, "top_k"):
            module.register_forward_hook(look)
    return gaps, counts


def train(model, tokens, folder, logits):
    params = [p for p in model.parameters()]
    decay, plain = [], []
    for name, p in model.named_parameters():
        (plain if p.dim() == 1 or name.endswith("bias") else decay).append(p)
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=TRAIN["weight_decay"]),
                             dict(params=plain, weight_decay=0.0)], lr=TRAIN["lr"],
                            betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"])
    curve, (gaps, counts) = [], watch_routers(model)
    for step in range(TRAIN["steps"]):
        ids, target = tokens[step, :, :-1], tokens[step, :, 1:]
        opt.zero_grad()
        counts.clear()
        with Raised():
            z = model(ids).logits
            loss = torch.nn.functional.cross_entropy(z.reshape(-1, z.shape[-1]), target.reshape(-1))
        loss.backward()
        if step == 0:
            by_hand = (logits.exp().sum(-1).log() - logits.gather(2, target[..., None])[..., 0]).mean()
            assert abs(by_hand - loss.item()) < 1e-12 and torch.equal(z, logits)
            grads = on_disk(model, {k: v.grad for k, v in model.named_parameters()} | counts)
            grads = one_by_one(grads) if model.config.model_type == "gpt_oss" else grads
            save_safetensors(folder / "grads.safetensors", {k: v.float().numpy() for k, v in grads.items()})
        norm = torch.nn.utils.clip_grad_norm_(params, TRAIN["grad_clip"])
        for group in opt.param_groups:
            group["lr"] = lr_at(TRAIN, step)
        opt.step()
        for name, b in biases(model).items():
            b += TRAIN["bias_update_rate"] * torch.sign(counts[name].double().mean() - counts[name])
        curve.append(dict(step=step, loss=loss.item(), grad_norm=norm.item(), lr=lr_at(TRAIN, step)))
    assert not gaps or min(gaps) > 5e-4, min(gaps)  # no rounding sends a token to another expert
    (folder / "curve.json").write_text(json.dumps(curve, indent=1) + "\n")
    return curve


def run(name, out, seed):
    folder = pathlib.Path(out, name)
    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed)
    with Raised():
        model = build(load(CASES[name]))
    init(model, g)
    stride, count = TRAIN["seq_len"], TRAIN["steps"] * TRAIN["batch"]
    stream = (3 * torch.randint(0, 5, (count * stride + 1,), generator=g)).cumsum(0) % 64
    tokens = stream.unfold(0, stride + 1, stride).view(TRAIN["steps"], TRAIN["batch"], stride + 1)
    config, old = write_configs(model, folder)
    save_safetensors(folder / "weights.safetensors",
                     {k: v.float().numpy() for k, v in
                      on_disk(model, {k: v.detach() for k, v in model.named_parameters()} | biases(model)).items()})
    stream.numpy().astype("<u2").tofile(folder / "tokens.bin")
    ids = tokens[0, :, :-1]
    with torch.no_grad(), Raised():
        logits = model(ids).logits
    save_safetensors(folder / "logits.safetensors", dict(logits=logits[0].float().numpy()))
    error, rounding = check(model, config, old, ids, logits)
    curve = train(model, tokens, folder, logits)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, {size} bytes, "
          f"loss {curve[0]['loss']:.4f} -> {curve[-1]['loss']:.4f}, second implementation {error:.1e}, "
          f"transformers in float32 {rounding:.1e}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    out, wanted = sys.argv[1], sys.argv[2:] or list(CASES)
    for name in wanted:
        run(name, out, SEEDS.get(name) or 100 + [n for n in CASES if n not in SEEDS].index(name))
    pathlib.Path(out, "train.json").write_text(json.dumps(TRAIN, indent=1) + "\n")
