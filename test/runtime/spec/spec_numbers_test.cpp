// Goal: f16 and its loss scale, sizes that MXFP8 does not fit, and state in files are refused where they cannot be, each with one
// sentence; a job that does not have them keeps its text. Method: a table of overrides of a valid job, with
// the exact diagnostics.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/spec/fields/fp8_spec.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

constexpr const char* kNumbersJob = R"({
  "version": 1,
  "model": {"preset": "llama-tiny"},
  "data": {"train": [{"path": "a.idx"}]},
  "device": "cpu",
  "schedule": {"total_steps": 100, "lr": 3e-3}
})";

ParsedJob parsed_with(const std::vector<std::string>& overrides) {
  return parse_job({.text = kNumbersJob, .file = "job.json", .overrides = overrides});
}

struct NumbersCase {
  std::vector<std::string> overrides, expected;
};

void check_numbers(const NumbersCase& one) {
  INFO(fmt::format("{}", fmt::join(one.overrides, "  ")));
  std::vector<std::string> found;
  for (const Diagnostic& d : parsed_with(one.overrides).diagnostics) {
    found.push_back(d.code + " " + d.message);
    CHECK(!d.help.empty());
    CHECK(!explain(d.code, nullptr).empty());
  }
  CHECK(found == one.expected);
}

}  // namespace

TEST_CASE("f16 and its loss scale are checked with everything that they depend on", "[spec]") {
  const std::string half = "precision.compute=f16",
                    initial = "precision.loss_scale.initial=", least = "precision.loss_scale.minimum=";
  for (const NumbersCase& one : std::vector<NumbersCase>{
           {{half}, {}},
           {{"precision.compute=fp4"}, {"E0203 `precision.compute` cannot be \"fp4\""}},
           {{"precision.compute=fp16", initial + "1024", least + "1024",
             "precision.loss_scale.growth_interval=0"},
            {}},
           {{half, "device=auto"}, {"E0323 f16 is computed by ranks on CPUs alone"}},
           {{half, "device=gpu"}, {"E0323 f16 is computed by ranks on CPUs alone"}},
           {{half, "precision.fp8.recipe=tensor"},
            {"E0324 FP8 values times their scales leave the range of f16"}},
           {{half, initial + "1000"}, {"E0325 precision.loss_scale.initial = 1000 is no power of two"}},
           {{half, least + "3"}, {"E0325 precision.loss_scale.minimum = 3 is no power of two"}},
           {{half, least + "131072"}, {"E0325 the loss scale begins at 65536, below its floor of 131072"}},
           {{half, initial + "0"}, {"E0202 `precision.loss_scale.initial` = 0 is out of range"}},
           {{half, initial + "8589934592"},
            {"E0202 `precision.loss_scale.initial` = 8589934592 is out of range"}},
           {{initial + "1024"}, {"W0245 `precision.loss_scale.initial` has no effect here"}},
           {{"precision.compute=bf16", "precision.loss_scale.growth_interval=9"},
            {"W0245 `precision.loss_scale.growth_interval` has no effect here"}}})
    check_numbers(one);
}

TEST_CASE("the groups of MXFP8 are of 32", "[spec][fp8]") {
  const std::string mxfp8 = "precision.fp8.recipe=mxfp8", hidden = "model.hidden_size=192",
                    ffn = "model.ffn_size=", heads = "model.head_dim=16";
  for (const NumbersCase& one : std::vector<NumbersCase>{
           {{mxfp8, hidden, heads, ffn + "160"}, {}},
           {{mxfp8, hidden, heads, ffn + "200"},
            {"E0322 FP8 blocks of 32 do not fit the 200 channels of model.ffn_size = 200"}},
           {{mxfp8, hidden, heads, ffn + "200", "precision.keep=[\"up\", \"down\"]"}, {}}})
    check_numbers(one);
}

TEST_CASE("NVFP4 is for CPUs, with groups of 16 and one format", "[spec][fp8]") {
  const std::string nvfp4 = "precision.fp8.recipe=nvfp4", hidden = "model.hidden_size=144",
                    ffn = "model.ffn_size=", heads = "model.head_dim=16";
  for (const NumbersCase& one : std::vector<NumbersCase>{
           {{nvfp4, hidden, heads, ffn + "176", "precision.keep=[\"tail\"]"}, {}},
           {{nvfp4, hidden, heads, ffn + "200"},
            {"E0322 FP4 blocks of 16 do not fit the 200 channels of model.ffn_size = 200"}},
           {{nvfp4, hidden, heads, ffn + "176", "parallelism.tensor=2"},
            {"E0322 FP4 blocks of 16 do not fit the 88 channels that each of 2 tensor ranks has of "
             "model.ffn_size = "
             "176"}},
           {{nvfp4, "device=auto"}, {"E0328 nvfp4 is computed by ranks on CPUs alone"}},
           {{nvfp4, "precision.fp8.gradients=e5m2"}, {"W0245 `precision.fp8.gradients` has no effect here"}},
           {{nvfp4, "precision.compute=f16"},
            {"E0324 FP8 values times their scales leave the range of f16"}}})
    check_numbers(one);
}

TEST_CASE("the tail is 15 % of the layers, one at least", "[spec][fp8]") {
  const Fp8Spec fp8{.recipe = Fp8Recipe::nvfp4, .keep = {Fp8Kept::tail}};
  for (const auto& [layers, kept] : {std::pair{1, 1}, {2, 1}, {6, 1}, {7, 2}, {20, 3}, {61, 10}}) {
    CAPTURE(layers);
    for (int64_t l = 0; l < layers; ++l) CHECK(fp8.keeps_layer(l, layers) == (l >= layers - kept));
  }
}

TEST_CASE("experts have unequal parts but with moments in 8 bits", "[spec]") {
  const std::vector<std::string> experts = {"model.moe.num_experts=4", "model.moe.top_k=2",
                                            "model.moe.expert_ffn_size=10", "parallelism.tensor=4"};
  std::vector<std::string> int8 = experts;
  int8.push_back("optimizer.moments=int8");
  check_numbers({experts, {}});
  check_numbers(
      {int8, {"E0252 with moments in 8 bits tensor parallel size must divide the width of an expert"}});
}

TEST_CASE("state in files is refused where it cannot be, and is not in other jobs", "[spec]") {
  const std::string disk = "optimizer.offload=disk", folder = "optimizer.offload_directory=";
  for (const NumbersCase& one : std::vector<NumbersCase>{
           {{disk}, {}},
           {{disk, folder + "/local", "optimizer.type=lion", "optimizer.moments=int8"}, {}},
           {{"optimizer.offload=host"},
            {"E0326 ranks on CPUs have their state in the host's memory already"}},
           {{"optimizer.offload=host", "device=cuda"}, {}},
           {{"optimizer.offload=host", "device=auto", folder + "/local"},
            {"W0245 `optimizer.offload_directory` has no effect here"}},
           {{"optimizer.offload=ssd"}, {"E0203 `optimizer.offload` cannot be \"ssd\""}},
           {{disk, "device=auto"}, {"E0326 a GPU reads and writes no state in files"}},
           {{disk, "optimizer.type=muon"},
            {"E0326 muon updates whole matrices, whose state stays in the memory of the device"}},
           {{disk, folder + "scratch"}, {"E0326 `optimizer.offload_directory` is no absolute path"}},
           {{folder + "/local"}, {"W0245 `optimizer.offload_directory` has no effect here"}}})
    check_numbers(one);
  CHECK(parsed_with({}).resolved_json.find("offload") == std::string::npos);
  const ParsedJob with = parsed_with({disk, folder + "/local"});
  const ParsedJob again = parse_job({.text = with.resolved_json, .file = "job.json"});
  CHECK(again.job.optimizer.offload == StateOffload::disk);
  CHECK(again.job.optimizer.offload_directory == "/local");
}

TEST_CASE("master weights are left out only where updates can do without them", "[spec]") {
  const std::string none = "optimizer.master_weights=none", in_bf16 = "precision.compute=bf16";
  for (const NumbersCase& one : std::vector<NumbersCase>{
           {{none, in_bf16}, {}},
           {{"optimizer.master_weights=f32"}, {}},
           {{none, in_bf16, "optimizer.type=lion", "optimizer.moments=int8", "optimizer.offload=disk"}, {}},
           {{none, in_bf16, "precision.fp8.recipe=tensor"},
            {"E0327 FP8 products round copies of master weights, and there would be none"}},
           {{none}, {"E0327 only weights in bf16 can be all there is of them, and these are in f32"}},
           {{none, "precision.compute=f16"},
            {"E0327 only weights in bf16 can be all there is of them, and these are in f16"}},
           {{none, in_bf16, "optimizer.type=muon"},
            {"E0327 muon updates master weights, and there would be none"}},
           {{none, in_bf16, "device=auto"}, {"E0327 GPUs update master weights, and there would be none"}},
           {{"optimizer.master_weights=bf16"}, {"E0203 `optimizer.master_weights` cannot be \"bf16\""}}})
    check_numbers(one);
  CHECK(parsed_with({}).resolved_json.find("master_weights") == std::string::npos);
  const ParsedJob with = parsed_with({none, in_bf16});
  const ParsedJob again = parse_job({.text = with.resolved_json, .file = "job.json"});
  CHECK(again.job.optimizer.master_weights == MasterWeights::none);
}

TEST_CASE("a resolved job has a loss scale only where it was given", "[spec]") {
  const std::string plain = parsed_with({}).resolved_json;
  CHECK(plain.find("loss_scale") == std::string::npos);
  const ParsedJob half = parsed_with({"precision.compute=fp16", "precision.loss_scale.initial=1024"});
  CHECK(half.job.compute == DType::f16);
  CHECK(half.job.loss_scale.initial == 1024);
  CHECK(half.resolved_json.find("growth_interval") == std::string::npos);
  const ParsedJob again = parse_job({.text = half.resolved_json, .file = "job.json"});
  CHECK(again.diagnostics.empty());
  CHECK(again.job.loss_scale.initial == 1024);
  CHECK(again.resolved_json == half.resolved_json);
}

TEST_CASE("a message shows the beginning of a long value up to a whole character", "[spec]") {
  std::string given = "parallelism.pipeline_schedule=", shown = "\"";
  for (int i = 0; i < 31; ++i) given += "\u00fc";
  for (int i = 0; i < 28; ++i) shown += "\u00fc";
  const ParsedJob parsed = parsed_with({given});
  REQUIRE(parsed.diagnostics.size() == 1);
  CHECK_THAT(parsed.diagnostics[0].message, Catch::Contains(shown + "...\""));
}
