// Goal: of a run without master weights its averages are exported as what they are, f32 numbers, and its
// weights as what bf16 has of them, with and without the check of the forward pass.
// Method: a checkpoint whose numbers the test makes and writes, in a file system in memory.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "ckpt/view.h"
#include "runtime/base/error.h"
#include "runtime/exchange/export.h"
#include "runtime/spec/parse.h"
#include "test/runtime/exchange/hub_folder.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

/// /ckpt/step-00000007 of a run with averages and without master weights.
struct RunWithoutMasters {
  using Values = std::map<std::string, std::vector<float>>;  ///< by the names of parameters
  PowerLossFileSystem fs;
  ParsedJob parsed;
  ParamTable table;
  Values weights, averages;
  int in_bf16 = 0;  ///< of the weights
  const std::string path = ckpt::step_directory("/ckpt", 7);

  RunWithoutMasters()
      : parsed(parse_job({.text = R"({"version": 1, "name": "averages", "device": "cpu",
            "model": {"family": "llama", "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                      "num_kv_heads": 2, "ffn_size": 64, "vocab_size": 97, "max_seq_len": 16},
            "precision": {"compute": "bf16"},
            "optimizer": {"master_weights": "none", "ema": {"decay": 0.9}},
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]},
            "schedule": {"total_steps": 10, "lr": 1e-3}})",
                          .file = "job.json",
                          .overrides = {},
                          .environment = {}})) {
    INFO(render(parsed.diagnostics, false));
    REQUIRE(parsed.ok());
    table = parameter_table(parsed.job.model, parsed.job.optimizer);
    const ckpt::StateInfo info{.run_id = "averages",
                               .epoch = 1,
                               .step = 7,
                               .spec_hash = parsed.hash,
                               .program_version = "0.1.0",
                               .resolved_spec_json = parsed.resolved_json};
    const std::vector<ckpt::Tensor> tensors = checkpoint_tensors(table);
    std::vector<std::vector<std::byte>> held;
    std::vector<ckpt::ChunkData> chunks;
    for (const ckpt::Tensor& tensor : tensors) {
      const parallel::Box box{0, tensor.shape[0], 0, tensor.shape.size() == 2 ? tensor.shape[1] : 1};
      held.push_back(bytes_of(tensor, size_t(box.count())));
      chunks.push_back({int(chunks.size()), box, held.back().data()});
    }
    ckpt::prepare_saving(fs, "/ckpt", info);
    const ckpt::ShardReceipt receipt = ckpt::write_shard(fs, ckpt::saving_directory("/ckpt", info),
                                                         ckpt::shard_file_name(0, 1), info, tensors, chunks);
    ckpt::publish(fs, "/ckpt", info, tensors, {&receipt, 1});
  }

 private:
  /// Of weights and averages numbers by chance, of others zeros.
  std::vector<std::byte> bytes_of(const ckpt::Tensor& tensor, size_t count) {
    std::vector<std::byte> bytes(count * size_of(tensor.dtype));
    const bool is_weight = tensor.role == ckpt::Role::master;
    if (!is_weight && tensor.role != ckpt::Role::ema) return bytes;
    std::vector<float>& values = (is_weight ? weights : averages)[tensor.name];
    in_bf16 += tensor.dtype == DType::bf16;
    for (size_t i = 0; i < count; ++i) {
      const float value = float(int(random_() % 2001) - 1000) * 1e-4f;
      const bf16 rounded(value);
      values.push_back(tensor.dtype == DType::bf16 ? float(rounded) : value);
      if (tensor.dtype == DType::bf16)
        std::memcpy(bytes.data() + i * sizeof rounded, &rounded, sizeof rounded);
      else
        std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
    return bytes;
  }

  std::mt19937 random_{7};
};

/// In a file of this dtype.
std::string stored_bytes(const std::vector<float>& values, DType dtype) {
  if (dtype == DType::f32)
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  const std::vector<bf16> rounded(values.begin(), values.end());
  return {reinterpret_cast<const char*>(rounded.data()), rounded.size() * sizeof(bf16)};
}

}  // namespace

TEST_CASE("the averages and the weights of a run without master weights are exported", "[master_weights]") {
  RunWithoutMasters run;
  REQUIRE(run.in_bf16 > 10);
  REQUIRE(run.averages.size() == run.table.params.size());
  int exports = 0;
  for (const bool averages : {true, false})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int64_t tokens : {0, 20}) {
        CAPTURE(averages, trainctl::name_of(dtype), tokens);
        const std::string out = fmt::format("/out-{}", ++exports);
        const ExportReport report = export_checkpoint(run.fs, {.checkpoint = run.path,
                                                               .out = out,
                                                               .dtype = dtype,
                                                               .averages = averages,
                                                               .check_tokens = tokens});
        const auto stored = tensors_of(run.fs, out, dtype == DType::f32 ? "F32" : "BF16");
        CHECK(stored.size() == run.table.params.size());
        for (const Param& param : run.table.params) {
          const std::string& name = param.layout.name;
          CAPTURE(name);
          const std::vector<float>& values = (averages ? run.averages : run.weights).at(name);
          CHECK((stored.at(stored_param(run.table, param).name).second == stored_bytes(values, dtype)));
        }
        REQUIRE(report.forward.has_value() == (tokens > 0));
        if (tokens == 0) continue;
        CHECK(report.forward->largest == 0);
        if (averages) CHECK((report.forward->from_master > 0) == (dtype == DType::bf16));
      }
}

TEST_CASE("averages are f32 whatever the weights are in, also box by box", "[master_weights]") {
  RunWithoutMasters run;
  auto checkpoint = ckpt::Checkpoint::open(run.fs, run.path);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  CHECK(checkpoint->dtype_of(name, ckpt::Role::master) == DType::bf16);
  CHECK(checkpoint->dtype_of(name, ckpt::Role::ema) == DType::f32);
  CHECK_THROWS_WITH(checkpoint->dtype_of("other", ckpt::Role::master), Contains("has no tensor other"));
  const auto view = ckpt::averages_of(std::move(checkpoint));
  CHECK(view->dtype_of(name, ckpt::Role::master) == DType::f32);
  ckpt::CheckpointView again(*view);  // reads each box by read()
  const std::vector<float>& averages = run.averages.at(name);
  const parallel::Box whole{0, 64, 0, 32};
  REQUIRE(size_t(whole.count()) == averages.size());
  constexpr float kUntouched = 5;
  for (const bool as_f32 : {false, true}) {
    std::vector<float> out(2 * averages.size(), kUntouched);
    const ckpt::BoxRead read{.name = name, .box = whole, .out = out.data(), .as_f32 = as_f32};
    again.read_all({&read, 1}, [](uint64_t) {});
    CHECK(std::equal(averages.begin(), averages.end(), out.begin()));
    CHECK(std::count(out.begin() + ptrdiff_t(averages.size()), out.end(), kUntouched) ==
          ptrdiff_t(averages.size()));
  }
}
