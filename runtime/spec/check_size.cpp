// Jobs too large to plan: refused from a few products of the spec's numbers, before anything is listed
// or laid out.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/units.h"
#include "runtime/spec/resolution.h"

namespace trainctl::spec {
namespace {

/// Planning lists a model's chunks, with about a hundred bytes for each.
constexpr double kMostChunks = 1 << 22;
/// Of activations on one rank; what is beyond would overflow sums of bytes.
constexpr double kMostBytes = 0x1p60;

std::string rounded(double n) { return n < 1e7 ? fmt::format("{:.0f}", n) : fmt::format("{:.2g}", n); }

/// A bucket is made of whole chunks.
void check_buckets(Resolution& r) {
  const ModelSpec& m = r.job.model;
  if (!r.sound({"parallelism.bucket_mib", "checkpoint.chunk_mib", "model.hidden_size", "model.ffn_size",
                "model.vocab_size"}))
    return;
  const double bucket = r.job.parallelism.bucket_mib, chunk = r.job.checkpoint.chunk_mib;
  const double widest = double(std::max({m.hidden_size, m.ffn_size, m.vocab_size}));
  const double needed = std::min(chunk, widest * double(m.hidden_size) * 4 / kMebibyte);
  if (bucket >= needed) return;
  r.report("E0318",
           fmt::format("a bucket of {:.4g} MiB cannot hold a chunk of the largest matrix, {:.4g} MiB", bucket,
                       needed),
           {"parallelism.bucket_mib", "checkpoint.chunk_mib"},
           {fmt::format("use a bucket_mib of {:.4g} or more, or, in a new run, a chunk_mib of at most {:.4g}",
                        std::ceil(needed * 1000) / 1000, bucket)});
}

}  // namespace

namespace {

/// Of a layer's attention.
double attention_elements(const ModelSpec& m) {
  const double hidden = double(m.hidden_size), heads = double(m.num_heads), head = double(m.head_dim());
  if (!m.is_latent())
    return hidden * head * ((m.layer.output_gate ? 3 : 2) * heads + 2 * double(m.num_kv_heads));
  const LatentSpec& l = m.latent;
  const double query = double(l.q_lora_rank), key = double(l.kv_lora_rank), value = double(l.v_head_dim);
  return hidden * (query + key + double(l.qk_rope_head_dim) + heads * value) +
         heads * ((query > 0 ? query : hidden) * head + key * (double(l.qk_nope_head_dim) + value));
}

}  // namespace

double matrix_elements(const ModelSpec& m, int tables) {
  const double hidden = double(m.hidden_size), ffn = double(m.ffn_size);
  const double in_attention = attention_elements(m) / hidden;
  const double modules = double(m.mtp.num_layers);
  double widths = 0;
  const auto width = [&](int64_t layer) {
    return m.has_experts(layer)
               ? double(m.moe.num_experts) * double(m.moe.expert_ffn_size) + double(m.moe.shared_ffn_size)
               : ffn;
  };
  for (int64_t layer = 0; layer < m.num_layers; ++layer) widths += width(layer);
  widths += modules * width(m.num_layers - 1);
  return hidden * ((double(m.num_layers) + modules) * in_attention +
                   (is_gated(m.layer.activation) ? 3 : 2) * widths) +
         modules * 2 * hidden * hidden + tables * double(m.vocab_size) * hidden;
}

void check_size(Resolution& r) {
  check_buckets(r);
  const ModelSpec& m = r.job.model;
  if (!r.sound({"model.hidden_size", "model.num_layers", "model.num_heads", "model.num_kv_heads",
                "model.ffn_size", "model.vocab_size", "data.seq_len", "batch.micro_sequences",
                "batch.global_sequences", "checkpoint.chunk_mib"}))
    return;
  const double hidden = double(m.hidden_size), ffn = double(m.ffn_size),
               layers = double(m.num_layers + m.mtp.num_layers), vocabulary = double(m.vocab_size);
  const double kv = double(m.is_latent() ? LatentSpec::tensor_parts(m.num_heads) : m.num_kv_heads),
               elements = matrix_elements(m, 2);
  // Chunks are also cut wherever tensor parallelism may cut.
  const double chunks = elements / std::max(1.0, r.job.checkpoint.chunk_mib * kMebibyte / 4) +
                        layers * (12 + 3 * double(m.moe.num_experts)) * kv;
  if (!(chunks <= kMostChunks))
    r.report(
        "E0401",
        fmt::format(
            "too large to plan: a model of about {} parameters makes {} chunks; at most {} can be planned",
            rounded(elements), rounded(chunks), rounded(kMostChunks)),
        {"model.hidden_size", "model.num_layers", "model.ffn_size", "checkpoint.chunk_mib"},
        {"use a smaller model, or a larger checkpoint.chunk_mib"});
  const double rows = double(r.job.batch.micro_sequences) * double(r.job.data.seq_len);
  const double micro_batches =
      double(r.job.batch.global_sequences) / double(std::max<int64_t>(1, r.job.batch.micro_sequences));
  const double bytes =
      4 * rows *
      (layers * (16 * hidden + 4 * std::max(ffn, double(m.moe.top_k) * double(m.moe.expert_ffn_size))) *
           std::max(1.0, micro_batches) +
       vocabulary);
  if (!(bytes <= kMostBytes))
    r.report("E0401",
             fmt::format("too large to plan: the activations of a step could take {} bytes", rounded(bytes)),
             {"batch.micro_sequences", "batch.global_sequences", "data.seq_len", "model.hidden_size"},
             {"use a smaller batch, shorter sequences or a smaller model"});
}

}  // namespace trainctl::spec
