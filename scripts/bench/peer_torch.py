#!/usr/bin/env python3
"""A training step of the same models in PyTorch, as a careful user would write it: the peer with which trainctl's figures are compared.

One GPU, or the cores of the CPU (--device cpu --threads N). bf16 autocast over f32 master weights, or f32 (--precision f32),
scaled_dot_product_attention with a causal mask, torch.compile, fused AdamW, gradients clipped at norm 1. Tokens are random; time
does not depend on them. Prints one JSON object:

    python3 scripts/bench/peer_torch.py --model gpt2-124m --seq-len 1024 --micro-batch 32 --tokens-per-step 524288 --steps 30
    python3 scripts/bench/peer_torch.py --device cpu --threads 2 --precision f32 --model gpt2-124m --seq-len 256 --micro-batch 4 --tokens-per-step 1024

tokens_per_s is tokens_per_step over the median step after --warmup steps; mfu is model FLOP/s (causal attention counted as half) over
--peak-flops, which is a GPU's dense bf16 peak as its maker gives it (H100 and H200 SXM: 989.4e12; A100: 312e12); null on a CPU. Exits
77 without torch or a GPU.
"""
import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    import torch.utils.checkpoint
    from torch import nn
except ImportError:
    print("peer_torch.py: PyTorch is not installed, so there is no peer to measure", file=sys.stderr)
    sys.exit(77)


@dataclasses.dataclass(frozen=True)
class Shape:
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    theta: float = 500000.0

    @property
    def head_dim(self):
        return self.hidden // self.heads


# Where trainctl has a preset of the shape, its name is given; the others are shapes that measurements are often published for.
SHAPES = {
    "gpt2-124m": Shape("gpt2", 768, 12, 12, 12, 3072, 50257, True),
    "gpt2-1558m": Shape("gpt2", 1600, 48, 25, 25, 6400, 50257, True),
    "llama-1b": Shape("llama", 2048, 16, 32, 8, 8192, 128256, True),                    # llama3-1b
    "llama-1.5b": Shape("llama", 1536, 28, 12, 2, 8960, 151936, True, 1e6),             # the shape of Qwen2.5 1.5B
    "llama-3b": Shape("llama", 3072, 28, 24, 8, 8192, 128256, True),                    # llama3-3b
    "llama-7b": Shape("llama", 4096, 32, 32, 32, 11008, 32000, False, 1e4),             # Llama 2 7B
    "llama-8b-half": Shape("llama", 4096, 16, 32, 8, 14336, 128256, False),             # llama3-8b, every second layer
    "llama-8b-12-layers": Shape("llama", 4096, 12, 32, 8, 14336, 128256, False),        # llama3-8b, for 80 GB
}


class Gpt2Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(s.hidden), nn.LayerNorm(s.hidden)
        self.qkv, self.proj = nn.Linear(s.hidden, 3 * s.hidden), nn.Linear(s.hidden, s.hidden)
        self.up, self.down = nn.Linear(s.hidden, s.ffn), nn.Linear(s.ffn, s.hidden)

    def forward(self, x, rotation):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


def rotate(x, rotation):
    """Half-split rotary embedding of x [B, H, T, D]; rotation: cosines and sines, [T, D / 2] each."""
    cos, sin = (r.to(x.dtype) for r in rotation)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.widths = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        self.norm_1, self.norm_2 = RmsNorm(s.hidden), RmsNorm(s.hidden)
        self.qkv = nn.Linear(s.hidden, sum(self.widths), bias=False)
        self.proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.gate_up = nn.Linear(s.hidden, 2 * s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.hidden, bias=False)

    def forward(self, x, rotation):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, -1, self.s.head_dim).transpose(1, 2) for z in self.qkv(self.norm_1(x)).split(self.widths, dim=2))
        q, k = rotate(q, rotation), rotate(k, rotation)
        grouped = self.s.heads != self.s.kv_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **({"enable_gqa": True} if grouped else {}))
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, s, seq_len, recompute, dtype):
        super().__init__()
        self.s, self.recompute, self.dtype = s, recompute, dtype
        rows = (s.vocab + 127) // 128 * 128  # products are fast on multiples; no token names the added rows
        self.tokens = nn.Embedding(rows, s.hidden)
        self.positions = nn.Embedding(seq_len, s.hidden) if s.family == "gpt2" else None
        self.blocks = nn.ModuleList((Gpt2Block if s.family == "gpt2" else LlamaBlock)(s) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.hidden) if s.family == "gpt2" else RmsNorm(s.hidden)
        self.head = nn.Linear(s.hidden, rows, bias=False)
        self.apply(self._init)
        if s.tied:
            self.head.weight = self.tokens.weight
        angles = torch.outer(torch.arange(seq_len), s.theta ** -(torch.arange(0, s.head_dim, 2) / s.head_dim))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        x = x.to(self.dtype)
        rotation = (self.cos, self.sin)
        for block in self.blocks:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, rotation, use_reentrant=False)
            else:
                x = block(x, rotation)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1))


def flops_per_token(s, seq_len):
    """Forward and backward: 6 for each weight of every product (the head once, no look-up), and causal attention."""
    width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    ffn = (2 if s.family == "gpt2" else 3) * s.hidden * s.ffn
    weights = s.layers * (s.hidden * (width + 2 * kv_width) + width * s.hidden + ffn) + s.vocab * s.hidden
    return 6 * weights + 6 * s.layers * width * seq_len


def optimizer_of(model, lr):
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True, help="sequences in one forward pass")
    parser.add_argument("--tokens-per-step", type=int, required=True)
    parser.add_argument("--steps", type=int, default=30, help="measured ones")
    parser.add_argument("--warmup", type=int, default=10, help="steps before those: compilation, clocks")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU; 0: as PyTorch chooses")
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--peak-flops", type=float, default=989.4e12)
    parser.add_argument("--recompute", action="store_true", help="keep only the blocks' inputs, recompute the rest in backward")
    parser.add_argument("--no-compile", action="store_true")
    a = parser.parse_args()
    if min(a.seq_len, a.micro_batch, a.steps) < 1 or a.warmup < 0:
        parser.error("--seq-len, --micro-batch and --steps are at least 1, --warmup at least 0")
    micro = a.seq_len * a.micro_batch
    if a.tokens_per_step < micro or a.tokens_per_step % micro != 0:
        parser.error(f"--tokens-per-step = {a.tokens_per_step} is no multiple of seq-len * micro-batch = {micro}")
    return a


def measure(a, device):
    """(seconds of each measured step, last loss)"""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest" if device.type == "cpu" else "high")
    dtype = torch.bfloat16 if a.precision == "bf16" else torch.float32
    compute = (lambda: torch.autocast(device.type, dtype)) if dtype == torch.bfloat16 else contextlib.nullcontext
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    shape = SHAPES[a.model]
    with device:
        model = Model(shape, a.seq_len, a.recompute, dtype)
    optimizer = optimizer_of(model, lr=1e-4)
    step_model = model if a.no_compile else torch.compile(model)
    accumulation = a.tokens_per_step // (a.seq_len * a.micro_batch)
    seconds = []
    for step in range(a.warmup + a.steps):
        tokens = torch.randint(shape.vocab, (accumulation, a.micro_batch, a.seq_len + 1), device=device)
        wait()
        begin = time.perf_counter()
        total = torch.zeros((), device=device)
        for micro in tokens:
            ids, targets = micro[:, :-1].contiguous(), micro[:, 1:].contiguous()
            with compute():
                loss = step_model(ids, targets)
            (loss / accumulation).backward()
            total += loss.detach() / accumulation
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        if step >= a.warmup:
            seconds.append(time.perf_counter() - begin)
    return seconds, total.item()


def device_facts(device):
    if device.type == "cpu":
        return {"threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}
    return {"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name(device),
            "peak_memory_bytes": {"allocated": torch.cuda.max_memory_allocated(device), "reserved": torch.cuda.max_memory_reserved(device)}}


def main():
    a = arguments()
    if a.device == "cuda" and not torch.cuda.is_available():
        print("peer_torch.py: there is no CUDA GPU (torch.cuda.is_available() is false), so nothing was measured", file=sys.stderr)
        return 77
    if a.threads > 0:
        torch.set_num_threads(a.threads)
    device = torch.device(a.device, 0) if a.device == "cuda" else torch.device("cpu")
    seconds, loss = measure(a, device)
    median = statistics.median(seconds)
    tokens_per_s = a.tokens_per_step / median
    on_gpu = device.type == "cuda"
    print(json.dumps({
        "peer": "pytorch", "torch": torch.__version__, **device_facts(device), "precision": a.precision,
        "model": a.model, "seq_len": a.seq_len, "micro_batch": a.micro_batch, "tokens_per_step": a.tokens_per_step,
        "compiled": not a.no_compile, "recompute": a.recompute, "steps": a.steps, "loss": loss,
        "step_s": {"median": median, "min": min(seconds), "max": max(seconds)},
        "tokens_per_s": tokens_per_s,
        "flops_per_token": flops_per_token(SHAPES[a.model], a.seq_len),
        "peak_flops": a.peak_flops if on_gpu else None,
        "mfu": tokens_per_s * flops_per_token(SHAPES[a.model], a.seq_len) / a.peak_flops if on_gpu else None,
    }))
    return 0


if __name__ == "__main__":
    sys.exit(main())
