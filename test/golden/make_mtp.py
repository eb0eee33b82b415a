#!/usr/bin/env python3
"""Writes the golden training run of a model with modules of multi-token prediction: blocks/deepseek_v3_mtp.

The files are those of make_blocks.py; curve.json also has the losses of the modules. The model is the case
deepseek_v3 of make_blocks.py, and its two modules are written here from the formula (arXiv:2412.19437, section 2.2),
since transformers have none. Module d = 1, 2 has at token i

  x = eh_proj [enorm(Emb(t[i + d])); hnorm(h)],  y = shared_head.norm(layer(x)),  loss of head(y) on t[i + d + 1]

with h what the head reads, behind the final norm (d = 1), or the y of module 1, as in Megatron-LM. The layer is one
more of the model's. Each loss is the mean over the targets that the sequence has; a token behind its end is the last
one, which no target sees. The loss is that of the next token + 0.3 * mean of the modules' losses.

Needs and usage: as make_blocks.py, without CASE.
"""
import json
import pathlib
import sys

import torch
import transformers

from make_blocks import CASES, TRAIN, Raised, biases, build, init, load, on_disk, watch_routers, write_configs
from make_golden import lr_at, save_safetensors

MODULES, WEIGHT, SEED = 2, 0.3, 205


def make_model(keys):
    """The model with its modules as further layers, which its own forward pass does not have."""
    layers = keys["num_hidden_layers"]
    config = load(dict(keys, num_hidden_layers=layers + MODULES))
    with Raised():
        model = build(config)
        norm = type(model.model.norm)
        for layer in model.model.layers[layers:]:
            layer.enorm, layer.hnorm = (norm(config.hidden_size, config.rms_norm_eps).double() for _ in range(2))
            layer.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False).double()
            layer.shared_head = torch.nn.Module()
            layer.shared_head.norm = norm(config.hidden_size, config.rms_norm_eps).double()
    model.config.num_hidden_layers = layers
    model.config.num_nextn_predict_layers = MODULES
    return model


def losses(model, tokens):
    """The loss of the next token and those of the modules; tokens [B, T + 1]."""
    seen, layers = {}, model.config.num_hidden_layers
    hook = model.model.layers[0].register_forward_pre_hook(
        lambda _, __, kwargs: seen.update(kwargs), with_kwargs=True)
    t = tokens.shape[1] - 1
    cross_entropy = lambda z, target: torch.nn.functional.cross_entropy(z.flatten(0, 1), target.flatten())
    with Raised():
        h = model.model(tokens[:, :-1], use_cache=False).last_hidden_state
        hook.remove()
        found = [cross_entropy(model.lm_head(h), tokens[:, 1:])]
        for d, layer in enumerate(model.model.layers[layers:], 1):
            ahead = tokens[:, (torch.arange(t) + d).clamp(max=t)]
            pair = torch.cat([layer.enorm(model.model.embed_tokens(ahead)), layer.hnorm(h)], -1)
            y = layer(layer.eh_proj(pair), **{k: v for k, v in seen.items() if k != "hidden_states"})
            h = layer.shared_head.norm(y[0] if isinstance(y, tuple) else y)
            found.append(cross_entropy(model.lm_head(h)[:, : t - d], tokens[:, d + 1:]))
    return found


def train(model, tokens, folder):
    params = list(model.parameters())
    decay, plain = [], []
    for p in params:
        (plain if p.dim() == 1 else decay).append(p)
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=TRAIN["weight_decay"]),
                             dict(params=plain, weight_decay=0.0)], lr=TRAIN["lr"],
                            betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"])
    curve, (gaps, counts) = [], watch_routers(model)
    for step in range(TRAIN["steps"]):
        opt.zero_grad()
        counts.clear()
        first, *ahead = losses(model, tokens[step])
        (first + WEIGHT / MODULES * sum(ahead)).backward()
        if step == 0:
            grads = on_disk(model, {k: v.grad for k, v in model.named_parameters()} | counts)
            save_safetensors(folder / "grads.safetensors", {k: v.float().numpy() for k, v in grads.items()})
        norm = torch.nn.utils.clip_grad_norm_(params, TRAIN["grad_clip"])
        for group in opt.param_groups:
            group["lr"] = lr_at(TRAIN, step)
        opt.step()
        for name, b in biases(model).items():
            b += TRAIN["bias_update_rate"] * torch.sign(counts[name].double().mean() - counts[name])
        curve.append(dict(step=step, loss=first.item(), mtp_losses=[x.item() for x in ahead],
                          grad_norm=norm.item(), lr=lr_at(TRAIN, step)))
    if min(gaps) <= 5e-4:  # a rounding could send a token to another expert
        return None
    (folder / "curve.json").write_text(json.dumps(curve, indent=1) + "\n")
    return curve


def run(folder, seed):
    g = torch.Generator().manual_seed(seed)
    model = make_model(CASES["deepseek_v3"])
    init(model, g)
    stride, count = TRAIN["seq_len"], TRAIN["steps"] * TRAIN["batch"]
    stream = (3 * torch.randint(0, 5, (count * stride + 1,), generator=g)).cumsum(0) % 64
    tokens = stream.unfold(0, stride + 1, stride).view(TRAIN["steps"], TRAIN["batch"], stride + 1)
    write_configs(model, folder)
    weights = on_disk(model, {k: v.detach() for k, v in model.named_parameters()} | biases(model))
    for i in range(MODULES):  # which files have, too
        at = f"model.layers.{model.config.num_hidden_layers + i}."
        weights[at + "embed_tokens.weight"] = weights["model.embed_tokens.weight"]
        weights[at + "shared_head.head.weight"] = weights["lm_head.weight"]
    save_safetensors(folder / "weights.safetensors", {k: v.float().numpy() for k, v in weights.items()})
    stream.numpy().astype("<u2").tofile(folder / "tokens.bin")
    with torch.no_grad(), Raised():
        logits = model(tokens[0, :1, :-1]).logits
    save_safetensors(folder / "logits.safetensors", dict(logits=logits[0].float().numpy()))
    return train(model, tokens, folder)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    folder = pathlib.Path(sys.argv[1], "deepseek_v3_mtp")
    folder.mkdir(parents=True, exist_ok=True)
    seed = SEED
    while (curve := run(folder, seed)) is None:
        seed += 1
    print(f"deepseek_v3_mtp, seed {seed}: loss {curve[0]['loss']:.4f} -> {curve[-1]['loss']:.4f}, "
          f"modules {curve[0]['mtp_losses']} -> {curve[-1]['mtp_losses']}")
