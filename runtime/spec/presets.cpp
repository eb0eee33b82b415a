#include "runtime/spec/presets.h"

#include <fmt/format.h>

namespace trainctl::spec {

// Shapes: GPT-2 from "Language Models are Unsupervised Multitask Learners" (2019) and the released
// checkpoints; Llama 3 from arXiv:2407.21783, table 3, and the released 3.2 checkpoints, with the 8192
// tokens of their main pre-training.
const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"gpt2-tiny", Family::gpt2, "GPT-2 in miniature, for tests", 218496,
       R"({"hidden_size": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 4, "ffn_size": 256,
           "vocab_size": 256, "max_seq_len": 32, "tie_embeddings": true})"},
      {"gpt2-30m", Family::gpt2, "GPT-2 for an evening on a CPU", 29676544,
       R"({"hidden_size": 512, "num_layers": 8, "num_heads": 8, "num_kv_heads": 8, "ffn_size": 2048,
           "vocab_size": 8192, "max_seq_len": 512, "tie_embeddings": true})"},
      {"gpt2-124m", Family::gpt2, "GPT-2 small", 124439808,
       R"({"hidden_size": 768, "num_layers": 12, "num_heads": 12, "num_kv_heads": 12, "ffn_size": 3072,
           "vocab_size": 50257, "max_seq_len": 1024, "tie_embeddings": true})"},
      {"gpt2-350m", Family::gpt2, "GPT-2 medium", 354823168,
       R"({"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "num_kv_heads": 16, "ffn_size": 4096,
           "vocab_size": 50257, "max_seq_len": 1024, "tie_embeddings": true})"},
      {"gpt2-774m", Family::gpt2, "GPT-2 large", 774030080,
       R"({"hidden_size": 1280, "num_layers": 36, "num_heads": 20, "num_kv_heads": 20, "ffn_size": 5120,
           "vocab_size": 50257, "max_seq_len": 1024, "tie_embeddings": true})"},
      {"gpt2-1558m", Family::gpt2, "GPT-2 XL", 1557611200,
       R"({"hidden_size": 1600, "num_layers": 48, "num_heads": 25, "num_kv_heads": 25, "ffn_size": 6400,
           "vocab_size": 50257, "max_seq_len": 1024, "tie_embeddings": true})"},
      {"llama-tiny", Family::llama, "Llama in miniature, for tests", 229952,
       R"({"hidden_size": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 192,
           "vocab_size": 256, "max_seq_len": 32, "position": {"theta": 10000}, "tie_embeddings": false})"},
      {"llama-4m", Family::llama, "Llama for ten minutes on a CPU", 4000000,
       R"({"hidden_size": 256, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 704,
           "vocab_size": 2048, "max_seq_len": 256, "position": {"theta": 10000}, "tie_embeddings": false})"},
      {"llama3-1b", Family::llama, "Llama 3.2 1B", 1235814400,
       R"({"hidden_size": 2048, "num_layers": 16, "num_heads": 32, "num_kv_heads": 8, "ffn_size": 8192,
           "vocab_size": 128256, "max_seq_len": 8192, "position": {"theta": 500000}, "tie_embeddings": true})"},
      {"llama3-3b", Family::llama, "Llama 3.2 3B", 3212749824,
       R"({"hidden_size": 3072, "num_layers": 28, "num_heads": 24, "num_kv_heads": 8, "ffn_size": 8192,
           "vocab_size": 128256, "max_seq_len": 8192, "position": {"theta": 500000}, "tie_embeddings": true})"},
      {"llama3-8b", Family::llama, "Llama 3 8B", 8030261248,
       R"({"hidden_size": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "ffn_size": 14336,
           "vocab_size": 128256, "max_seq_len": 8192, "position": {"theta": 500000}, "tie_embeddings": false})", 4, 1, 2},
      {"llama3-70b", Family::llama, "Llama 3 70B", 70553706496,
       R"({"hidden_size": 8192, "num_layers": 80, "num_heads": 64, "num_kv_heads": 8, "ffn_size": 28672,
           "vocab_size": 128256, "max_seq_len": 8192, "position": {"theta": 500000}, "tie_embeddings": false})", 8, 8, 1},
      {"llama3-405b", Family::llama, "Llama 3.1 405B", 405853388800,
       R"({"hidden_size": 16384, "num_layers": 126, "num_heads": 128, "num_kv_heads": 8, "ffn_size": 53248,
           "vocab_size": 128256, "max_seq_len": 8192, "position": {"theta": 500000}, "tie_embeddings": false})", 8, 16, 1},
  };
  return all;
}

std::string Preset::model_json() const {
  return fmt::format(R"({{"family": "{}", {})", word_of(family), shape.substr(1));
}

const Preset* find_preset(const std::string& name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return &preset;
  return nullptr;
}

}  // namespace trainctl::spec
