#include "test/end_to_end/jobs.h"

namespace trainctl::test {
namespace {

const std::string kGolden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/";

std::string training(const std::string& tokens) {
  return R"("data": {"train": [{"path": ")" + tokens + R"(", "format": "raw", "dtype": "uint16"}], "seq_len": 32, "shuffle": false},
  "batch": {"global_sequences": 8, "micro_sequences": 1},
  "optimizer": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0},
  "schedule": {"total_steps": 20, "warmup_steps": 4, "lr": 3e-3, "min_lr": 3e-4, "type": "cosine"})";
}

}  // namespace

std::string golden_spec(const std::string& name) {
  const std::string model = name == "gpt2-tiny" ? R"("preset": "gpt2-tiny")" : R"("preset": "llama-tiny")";
  return R"({"version": 1, "name": ")" + name + R"(", "model": {)" + model + R"(, "init": {"from": ")" + kGolden + name + R"("}},
  )" + training(kGolden + name + "/tokens.bin") + "}\n";
}

std::string tiny_spec(const std::string& name) {
  return R"({"version": 1, "name": ")" + name + R"(", "model": {"preset": "llama-tiny"},
  )" + training(kGolden + "llama-tiny/tokens.bin") + R"(,
  "parallelism": {"world_size": "auto", "data": 2, "pipeline": 2, "lanes": 4},
  "checkpoint": {"every_steps": 4, "chunk_mib": 0.01, "memory": "off"}}
)";
}

std::string expert_spec(const std::string& name) {
  return R"({"version": 1, "name": ")" + name + R"(", "device": "cpu", "model": {"preset": "mixtral-tiny",
  "moe": {"bias_update_rate": 1e-3}}, )" +
         training(kGolden + "llama-tiny/tokens.bin") + R"(,
  "parallelism": {"world_size": "auto", "data": 2, "context": 2, "expert": 2, "lanes": 2},
  "checkpoint": {"memory": "off"}, "observability": {"rank_metrics_every_steps": 5}})";
}

}  // namespace trainctl::test
