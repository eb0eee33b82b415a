// Goal: a valid spec means what it says: defaults, units, presets, precedence, derived sizes, and the
// resolved form. Method: small jobs with known answers; parameter counts against the closed formulas of the
// two families; round trips.
#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/model/params.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/lineage.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"
#include "runtime/spec/presets.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

const char* kMinimal =
    R"({"version":1,"model":{"preset":"gpt2-124m"},"data":{"train":[{"path":"data/train.idx"}]},"schedule":{"total_tokens":"1B"}})";

ParsedJob parse(const std::string& text, std::vector<std::string> overrides = {},
                std::vector<std::pair<std::string, std::string>> environment = {}) {
  ParsedJob parsed = parse_job({.text = text,
                                .file = "job.json",
                                .overrides = std::move(overrides),
                                .environment = std::move(environment)});
  INFO(render(parsed.diagnostics, false));
  CHECK(parsed.ok());
  return parsed;
}

std::string origin(const ParsedJob& parsed, const std::string& path) {
  return Json::parse(parsed.origins_json).value(path, "");
}

}  // namespace

TEST_CASE("the minimal job works and everything else has its default", "[spec]") {
  const JobSpec job = parse(kMinimal).job;
  CHECK(job.model.hidden_size == 768);
  CHECK(job.model.tie_embeddings);
  CHECK(job.data.seq_len == 1024);
  CHECK(job.batch.global_sequences == 32);
  CHECK(job.schedule.total_steps == (1'000'000'000 + 32 * 1024 - 1) / (32 * 1024));
  CHECK(job.parallelism.world_size == 1);
  CHECK(job.parallelism.lanes == 1);
  CHECK(job.parallelism.reduction == GradientSums::exact);
  CHECK(job.parallelism.threads_per_rank >= 1);
  CHECK(job.device == DeviceChoice::automatic);
  CHECK(job.optimizer.decay_exclude == std::vector{DecayKind::norm, DecayKind::bias});
}

TEST_CASE("the table's defaults are those of a default JobSpec", "[spec]") {
  const JobSpec plain;
  for (const spec::Field& field : spec::fields()) {
    if (!field.fallback || !field.get || field.accepts_auto || field.path == "device") continue;
    if (field.path == "optimizer.decay_exclude") continue;  // a vector's default stands in the table only
    INFO(field.path);
    CHECK(spec::json_of(field.get(plain)) == spec::json_of(*field.fallback));
  }
}

TEST_CASE("every preset is a job with the published number of parameters", "[spec]") {
  CHECK(spec::find_preset("gpt2-124m")->parameters == 124'439'808);
  CHECK(spec::find_preset("gpt2-1558m")->parameters == 1'557'611'200);
  CHECK(spec::find_preset("llama3-8b")->parameters == 8'030'261'248);
  CHECK(spec::find_preset("llama3-70b")->parameters == 70'553'706'496);
  for (const spec::Preset& preset : spec::presets()) {
    INFO(preset.name);
    const JobSpec job = parse(kMinimal, {"model.preset=" + preset.name}).job;
    CHECK(parameter_table(job.model, job.optimizer).total_count() == preset.parameters);
  }
}

TEST_CASE("a description replaces its family's, field by field", "[spec]") {
  const auto model = [](std::vector<std::string> overrides) { return parse(kMinimal, overrides).job.model; };
  const ModelSpec gpt2 = model({"model.preset=gpt2-tiny"});
  CHECK((gpt2.layer.norm_bias && gpt2.layer.qkv_bias && gpt2.position.type == PositionKind::learned));
  const ModelSpec mixed = model({"model.preset=gpt2-tiny", "model.layer.norm=rmsnorm", "model.layer.activation=swiglu",
                                 "model.position.type=rope", "model.layer.window=8", "model.layers=[\"window\", \"full\"]"});
  CHECK((!mixed.layer.norm_bias && mixed.layer.qkv_bias && mixed.is_rotary()));
  CHECK((mixed.kind_of_layer(0) == LayerKind::window && mixed.kind_of_layer(3) == LayerKind::full));
  CHECK(model({"model.preset=gpt2-tiny", "model.norm=rmsnorm"}).layer.norm == LayerNormKind::rmsnorm);
  const ModelSpec gemma = model({"model.preset=gemma3-1b"});
  CHECK(gemma.embedding_scale == Approx(std::sqrt(1152.0)));
  CHECK((gemma.layer.norm_place == NormPlace::sandwich && gemma.layer.qk_norm == QkNorm::head && gemma.head_dim() == 256));
  CHECK(model({"model.preset=gemma3-1b", "model.embedding_scale=1"}).embedding_scale == 1);
  // What a preset gave, and the user made idle, goes.
  CHECK(model({"model.preset=gemma3-270m", "model.layers=[\"full\"]"}).layer.window == 0);
  CHECK(model({"model.preset=olmo3-7b", "model.position.scaling.type=none"}).position.scaling.factor == 1);
}

TEST_CASE("a job's hash counts a description only where it differs from its family's", "[spec]") {
  const std::string preset = "model.preset=llama-tiny", hash = parse(kMinimal, {preset}).hash;
  CHECK(parse(kMinimal, {preset, "model.layer.qk_norm=none", "model.head_dim=16"}).hash == hash);
  CHECK(parse(kMinimal, {preset, "model.layer.qk_norm=head"}).hash != hash);
  CHECK(parse(kMinimal, {preset, "model.layer.window=8"}).hash != hash);
}

TEST_CASE("quantities are read in their units", "[spec]") {
  const auto with = [](const std::string& override) { return parse(kMinimal, {override}).job; };
  CHECK(with("batch.global_tokens=32Ki").batch.global_sequences == 32);
  CHECK(with("batch.global_tokens=1024").batch.global_sequences == 1);
  CHECK(with("batch.global_tokens=0.5Mi").batch.global_sequences == 512);
  CHECK(with("schedule.total_steps=4k").schedule.total_steps == 4000);
  CHECK(with("schedule.total_steps=4.1M").schedule.total_steps == 4'100'000);
  CHECK(with("schedule.total_tokens=1T").schedule.total_steps == 30'517'579);
  CHECK(with("schedule.total_steps=1e3").schedule.total_steps == 1000);
  CHECK(with("fault_tolerance.step_timeout_seconds=30m").fault_tolerance.step_timeout_seconds == 1800);
  CHECK(with("fault_tolerance.heartbeat_seconds=500 ms").fault_tolerance.heartbeat_seconds == Approx(0.5));
  CHECK(with("parallelism.bucket_mib=4GiB").parallelism.bucket_mib == 4096);
  CHECK(with("checkpoint.chunk_mib=512KiB").checkpoint.chunk_mib == 0.5);
  CHECK(with("seed=9223372036854775807").seed == 9223372036854775807u);
  CHECK(with("precision.compute=fp32").compute == DType::f32);
  CHECK(with("device=gpu").device == DeviceChoice::cuda);
  CHECK(with("optimizer.decay_exclude=").optimizer.decay_exclude.empty());
  CHECK(with("optimizer.decay_exclude=bias,embedding").optimizer.decay_exclude.size() == 2);
  CHECK(with("launcher.env.PATH=/a:/b").launcher.env == spec::TextMap{{"PATH", "/a:/b"}});
}

TEST_CASE("the job of a run is not judged by the slots of the machine that reads it", "[spec]") {
  // In a Slurm job of four nodes, where launcher.slots is what each may run.
  for (const bool is_of_run : {false, true})
    CHECK(parse_job({.text = kMinimal,
                     .file = "job.json",
                     .overrides = {"parallelism.data=4", "parallelism.world_size=4", "launcher.slots=1"},
                     .environment = {},
                     .is_of_run = is_of_run})
              .ok() == is_of_run);
}

TEST_CASE("a job without data.documents, as older runs have it, does not mask them", "[spec]") {
  for (const bool is_of_run : {false, true}) {
    const ParsedJob old = parse_job(
        {.text = kMinimal, .file = "job.json", .overrides = {}, .environment = {}, .is_of_run = is_of_run});
    CHECK(old.job.data.documents == Documents::automatic);
    CHECK_FALSE(old.job.data.masks_documents());
  }
  const ParsedJob masked = with_decided(parse(kMinimal), {"data.documents=mask"}, "auto, decided at launch");
  CHECK(masked.job.data.masks_documents());
  CHECK_FALSE(masked.job.data.count_boundary_targets);
  CHECK(masked.hash != parse(kMinimal).hash);  // fixed for the life of a run
}

TEST_CASE("stronger layers win, and say so", "[spec]") {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  FileSystem& fs = real_file_system();
  fs.write_new_text(
      folder + "/base.json",
      R"({"schedule": {"lr": 1e-3, "total_steps": 7}, "seed": 5, "data": {"train": [{"path": "base"}]}})");
  fs.write_new_text(folder + "/more.json",
                    R"({"extends": ["base.json"], "seed": 6, "optimizer": {"eps": 1e-6}})");
  const std::string text = R"({"extends": ["more.json"], "model": {"preset": "gpt2-tiny", "num_layers": 8},
    "schedule": {"total_tokens": 1000}, "optimizer": {"beta1": 0.8}})";
  const ParsedJob parsed =
      parse_job({.text = text,
                 .file = folder + "/job.json",
                 .overrides = {"optimizer.eps=1e-5", "optimizer.eps=1e-4"},
                 .environment = {{"TRAINCTL_SET__optimizer__eps", "1e-3"}, {"TRAINCTL_SET__SEED", "9"}}});
  INFO(render(parsed.diagnostics, false));
  REQUIRE(parsed.ok());
  CHECK(parsed.job.model.num_layers == 8);
  CHECK(parsed.job.model.num_heads == 4);
  CHECK(parsed.job.schedule.lr == 1e-3);
  CHECK(parsed.job.seed == 9);
  CHECK(parsed.job.optimizer.eps == 1e-4);
  CHECK(parsed.job.schedule.total_steps == 1);  // total_tokens replaces the base's total_steps
  CHECK(origin(parsed, "model.num_heads") == "preset gpt2-tiny");
  CHECK(origin(parsed, "model.num_layers") == folder + "/job.json:1");
  CHECK(origin(parsed, "schedule.lr") == folder + "/base.json:1");
  CHECK(origin(parsed, "schedule.total_steps") == folder + "/job.json:2");
  CHECK(origin(parsed, "seed") == "TRAINCTL_SET__SEED");
  CHECK(origin(parsed, "optimizer.eps") == "--set");
  CHECK(origin(parsed, "optimizer.beta2") == "default");
  fs.replace_text(folder + "/base.json", R"({"extends": ["more.json"]})");
  const ParsedJob circle = parse_job({.text = text, .file = folder + "/job.json"});
  REQUIRE(!circle.diagnostics.empty());
  // The circle alone: what is missing besides may be in what could not be read.
  CHECK(circle.diagnostics.size() == 1);
  CHECK(circle.diagnostics.front().code == "E0106");
}

TEST_CASE("words that stand for no file and no command are read once", "[spec]") {
  const auto parsed = [](const std::vector<std::string>& settings) {
    ParsedJob job = parse_job({.text = starter_job("gpt2-124m"), .file = "job.json", .overrides = settings});
    INFO(render(job.diagnostics, false));
    REQUIRE(job.ok());
    // The resolved spec has the same text, and means the same.
    const ParsedJob again = parse_job({.text = job.resolved_json, .file = "job.json"});
    CHECK(again.job.data.tokenizer == job.job.data.tokenizer);
    CHECK(again.job.launcher.shell.command() == job.job.launcher.shell.command());
    return job.job;
  };
  CHECK_FALSE(parsed({"data.tokenizer="}).data.tokenizer.is_given());
  CHECK(parsed({"data.tokenizer=bytes"}).data.tokenizer == data::TokenizerChoice::bytes());
  CHECK(parsed({"data.tokenizer=/tok/bytes"}).data.tokenizer == data::TokenizerChoice::file("/tok/bytes"));
  CHECK(parsed({}).launcher.shell.command() == "ssh");
  CHECK(parsed({"launcher.shell=none"}).launcher.shell.command() == std::nullopt);
  CHECK(parsed({"launcher.shell=ssh -F none"}).launcher.shell.command() == "ssh -F none");
}

TEST_CASE("a path is relative to the folder of the file it is written in, or to the current one with --set", "[spec]") {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  FileSystem& fs = real_file_system();
  fs.make_directories(folder + "/jobs");
  fs.make_directories(folder + "/base/deep");
  fs.make_directories(folder + "/elsewhere");
  std::filesystem::create_directory_symlink(folder + "/base/deep", folder + "/jobs/link");
  fs.write_new_text(folder + "/base/model.json",
                    R"({"model": {"preset": "gpt2-124m", "init": {"from": "weights"}}, "checkpoint": {"dir": "../out"}})");
  const std::string text = R"({"extends": ["../base/model.json"], "schedule": {"total_steps": 1},
    "data": {"tokenizer": "bytes", "train": [{"path": "a.idx"}, {"path": "../b*.idx"}, {"path": "/abs/c.idx"}, {"path": "link/../d"}]},
    "launcher": {"mpirun": "mpirun"}})";
  const std::string here = std::filesystem::current_path().string();
  const ParsedJob first = parse_job({.text = text,
                                     .file = folder + "/jobs/job.json",
                                     .overrides = {"data.val.1.path=v.idx"},
                                     .environment = {{"TRAINCTL_SET__data__val__0__path", "w.idx"}}});
  INFO(render(first.diagnostics, false));
  REQUIRE(first.ok());
  const JobSpec& job = first.job;
  CHECK(job.data.train[0].path == folder + "/jobs/a.idx");
  CHECK(job.data.train[1].path == folder + "/b*.idx");
  CHECK(job.data.train[2].path == "/abs/c.idx");
  CHECK(job.data.train[3].path == folder + "/base/d");   // as the file system sees it, not as text
  CHECK(job.data.val[0].path == here + "/w.idx");
  CHECK(job.data.val[1].path == here + "/v.idx");
  CHECK(job.data.tokenizer.is_bytes());
  CHECK(job.model.init.from == folder + "/base/weights");
  CHECK(job.checkpoint.dir == folder + "/out");
  CHECK(job.observability.run_dir == here + "/runs");
  CHECK(job.launcher.mpirun == "mpirun");
  CHECK(first.places.at("data.train.1.path").line == 2);
  CHECK(first.places.at("data.train.1.path").column == 74);
  // The resolved spec means the same from anywhere; one with relative paths starts in the folder that is given.
  CHECK(parse_job({.text = first.resolved_json, .file = folder + "/elsewhere/job.json"}).resolved_json == first.resolved_json);
  CHECK(parse_job({.text = text, .file = "job.json", .folder = folder + "/elsewhere"}).job.data.train[0].path ==
        folder + "/elsewhere/a.idx");
  CHECK(parse(kMinimal).job.data.train[0].path == here + "/data/train.idx");
}

TEST_CASE("a word or a number, a list or auto: each as it was given", "[spec]") {
  const auto job = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"model.preset=llama-tiny", "parallelism.pipeline=2"});
    return parse(kMinimal, std::move(overrides)).job;
  };
  using Layers = std::vector<int64_t>;
  CHECK(job({}).parallelism.stage_layers.empty());
  CHECK(job({"parallelism.stage_layers=[3, 1]"}).parallelism.stage_layers == Layers{3, 1});
  CHECK(job({"parallelism.stage_layers=1,3"}).parallelism.stage_layers == Layers{1, 3});
  const JobSpec last_wins = job({"parallelism.stage_layers=[3,1]", "parallelism.stage_layers=auto"});
  CHECK(last_wins.parallelism.stage_layers.empty());
  CHECK(job({}).recompute == Recompute::none);
  CHECK(job({"memory.activation_recompute=3"}).recompute == Recompute::first_layers);
  CHECK(job({"memory.activation_recompute=3"}).recomputed_layers(4) == 3);
  CHECK(job({"memory.activation_recompute=3"}).recomputed_layers(2) == 2);
  CHECK_FALSE(job({"memory.activation_recompute=0"}).recomputes_layers());
  CHECK(job({"memory.activation_recompute=3", "memory.activation_recompute=full"}).recomputed_layers(7) == 7);
  CHECK(job({"memory.activation_recompute=selective"}).recomputed_layers(7) == 0);
  // The text of the resolved spec: a number is a number, auto stays auto.
  const ParsedJob parsed = parse(kMinimal, {"memory.activation_recompute=2"});
  CHECK_THAT(parsed.resolved_json, Catch::Contains("\"activation_recompute\": 2") &&
                                       Catch::Contains("\"stage_layers\": \"auto\""));
}

TEST_CASE("sizes follow from one another", "[spec]") {
  const auto mesh = [](std::vector<std::string> overrides) {
    overrides.push_back("model.preset=llama-tiny");
    return parse(kMinimal, std::move(overrides)).job.parallelism;
  };
  CHECK(mesh({"parallelism.world_size=8", "parallelism.tensor=2"}).data == 4);
  CHECK(mesh({"parallelism.data=4", "parallelism.pipeline=2"}).world_size == 8);
  CHECK(mesh({"parallelism.data=2", "parallelism.lanes=8"}).lanes == 8);
  const auto schedule = [](std::vector<std::string> overrides) {
    return parse(kMinimal, std::move(overrides)).job.schedule;
  };
  CHECK(schedule({"schedule.total_steps=100", "schedule.warmup_steps=10"}).decay_steps == 0);
  CHECK(schedule({"schedule.total_steps=100", "schedule.type=wsd"}).decay_steps == 20);
  CHECK(schedule({"schedule.warmup_tokens=32769"}).warmup_steps == 2);
  CHECK(parse(kMinimal, {"eval.max_tokens=1025"}).job.eval.max_sequences == 2);
  const std::string llama =
      R"({"model": {"family": "llama", "hidden_size": 100, "num_layers": 1, "num_heads": 2, "vocab_size": 9,
    "max_seq_len": 8}, "data": {"train": [{"path": "a"}]}, "schedule": {"total_steps": 1}})";
  const ModelSpec model = parse(llama).job.model;
  CHECK(model.ffn_size == 512);
  CHECK(model.num_kv_heads == 2);
  CHECK(!model.tie_embeddings);
}

TEST_CASE("a run is born with lanes to grow into where they cost little", "[spec]") {
  const auto lanes = [](const std::string& preset, std::vector<std::string> overrides) {
    overrides.push_back("model.preset=" + preset);
    const ParsedJob job = parse(kMinimal, overrides);
    REQUIRE(job.ok());
    return job.job.parallelism.lanes;
  };
  // Up to eight times the width, and no more than micro-batches.
  CHECK(lanes("llama-tiny", {}) == 8);
  CHECK(lanes("llama-tiny", {"parallelism.data=2"}) == 16);
  CHECK(lanes("llama-tiny", {"parallelism.data=4"}) == 32);
  CHECK(lanes("llama-tiny", {"parallelism.data=8"}) == 32);
  CHECK(lanes("llama-tiny", {"parallelism.data=3"}) == 32);
  CHECK(lanes("llama-tiny", {"parallelism.data=8", "batch.micro_sequences=4"}) == 8);
  CHECK(lanes("llama-tiny", {"parallelism.data=2", "batch.global_sequences=12"}) == 4);
  // ZeRO-2 and 3 send gradients once a lane.
  CHECK(lanes("llama-tiny", {"parallelism.data=4", "parallelism.zero_stage=2"}) == 4);
  CHECK(lanes("llama-tiny", {"parallelism.data=4", "parallelism.zero_stage=0"}) == 32);
  // A sum of the gradients of GPT-2 124M takes 500 MB, a quarter on four stages; one of 8 B takes 32 GB.
  CHECK(lanes("gpt2-124m", {}) == 1);
  CHECK(lanes("gpt2-124m", {"parallelism.pipeline=4"}) == 4);
  CHECK(lanes("gpt2-124m", {"parallelism.tensor=2", "parallelism.pipeline=4"}) == 8);
  CHECK(lanes("llama3-8b", {"parallelism.data=8"}) == 8);
  CHECK(lanes("llama3-8b", {"parallelism.data=7"}) == 16);  // 3 lanes need no more sums than 2
  // Not where the schedule has no place for the micro-batches of some rank then.
  CHECK(lanes("llama-tiny", {"parallelism.data=3", "batch.global_sequences=16"}) == 16);
  CHECK(lanes("llama-tiny", {"parallelism.data=3", "parallelism.pipeline=2", "parallelism.virtual_stages=2",
                             "parallelism.pipeline_schedule=interleaved", "batch.global_sequences=16"}) == 8);
}

TEST_CASE("other lanes are refused on a resume with a sentence that has both numbers", "[spec]") {
  const ParsedJob run =
      parse(kMinimal, {"parallelism.data=4", "parallelism.lanes=4", "model.preset=llama-tiny"});
  CHECK(refused_other_lanes(run, parse(run.resolved_json, {"parallelism.data=2"})).empty());
  const auto refused = refused_other_lanes(run, parse(run.resolved_json, {"parallelism.lanes=16"}));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].code == "E0605");
  CHECK(refused[0].file == "--set parallelism.lanes=16");
  CHECK(refused[0].message ==
        "parallelism.lanes = 16 instead of the run's 4 adds the gradients in another order, so "
        "that from here on the bits are others");
  CHECK(refused[0].help ==
        std::vector<std::string>{"allow it with --allow-other-bits, or stay with lanes = 4, which "
                                 "any parallelism.data from 1 to 4 fits"});
}

TEST_CASE("the resolved spec is strict JSON and means the same job", "[spec]") {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"parallelism.data=4", "batch.global_tokens=128Ki", "eval.max_tokens=5000", "name=a-b"},
      {"parallelism.world_size=8", "parallelism.pipeline=2", "schedule.type=wsd", "optimizer.eps=1.1e-9"},
      {"model.preset=llama3-8b", "parallelism.tensor=8", "data.train.0.weight=0.3", "data.train.1.path=b",
       "data.train.1.format=raw", "data.train.1.dtype=uint32", "data.val.0.path=v",
       "launcher.env={\"A\":\"\\\"\"}", "schedule.warmup_tokens=7M"},
      {"model.preset=llama3-8b", "parallelism.pipeline=2", "parallelism.stage_layers=17,15",
       "memory.activation_recompute=5"},
  };
  for (const auto& overrides : cases) {
    const ParsedJob first = parse(kMinimal, overrides);
    const ParsedJob second = parse(first.resolved_json);
    CHECK(second.resolved_json == first.resolved_json);
    CHECK(second.hash == first.hash);
    CHECK(second.job.parallelism.world_size == first.job.parallelism.world_size);
    CHECK(second.job.schedule.total_steps == first.job.schedule.total_steps);
    CHECK(second.job.parallelism.stage_layers == first.job.parallelism.stage_layers);
    CHECK(second.job.recompute == first.job.recompute);
    CHECK(second.job.recompute_layers == first.job.recompute_layers);
    CHECK(changed_fields(first, second).empty());
  }
}

TEST_CASE("what was auto is decided once and stays", "[spec]") {
  const ParsedJob job = parse(kMinimal, {"parallelism.data=2"});
  const ParsedJob decided = with_decided(job, {"device=cuda"}, "auto, decided at launch");
  CHECK(decided.job.device == DeviceChoice::cuda);
  CHECK(parse(decided.resolved_json).job.device == DeviceChoice::cuda);
  CHECK(decided.hash == job.hash);
  for (size_t i = 0; i < job.values.size(); ++i) {
    const bool device = job.values[i].path == "device";
    CHECK(decided.values[i].origin == (device ? "auto, decided at launch" : job.values[i].origin));
    if (!device) CHECK(decided.values[i].value == job.values[i].value);
  }
}

TEST_CASE("each field says what a change of it means to a run", "[spec]") {
  const ParsedJob run =
      parse(kMinimal, {"parallelism.data=4", "parallelism.lanes=4", "model.preset=llama-tiny"});
  const std::vector<std::pair<Change, std::vector<std::string>>> cases = {
      {Change::free,
       {"parallelism.data=2", "parallelism.pipeline=2", "parallelism.pipeline_schedule=gpipe",
        "memory.activation_recompute=full", "memory.activation_recompute=3", "parallelism.stage_layers=[4]",
        "checkpoint.every_steps=5", "observability.run_dir=x", "launcher.slots=9", "eval.every_steps=0",
        "fault_tolerance.max_restarts=0", "data.train.0.path=moved.idx", "parallelism.zero_stage=0",
        "name=other"}},
      {Change::numerics,
       {"parallelism.tensor=2", "parallelism.lanes=8", "batch.micro_sequences=2", "schedule.total_steps=10",
        "schedule.total_tokens=2B", "schedule.type=wsd", "schedule.min_lr=1e-5", "optimizer.grad_clip=0.5",
        "parallelism.reduction=fast", "checkpoint.chunk_mib=4", "device=cpu"}},
      {Change::branch,
       {"schedule.lr=1e-4", "seed=1", "data.shuffle_seed=1", "precision.compute=bf16", "optimizer.beta1=0.8",
        "optimizer.muon.scale=spectral", "optimizer.muon.split_heads=true", "optimizer.ema.decay=0.9",
        "data.train.0.weight=2", "data.train.1.path=b", "batch.global_sequences=64",
        "schedule.warmup_steps=3", "model.position.theta=20000"}},
      {Change::never,
       {"model.num_layers=2", "model.vocab_size=500", "optimizer.type=lion", "optimizer.moments=bf16"}}};
  for (const auto& [change, overrides] : cases)
    for (const std::string& override : overrides) {
      CAPTURE(override, name_of(change));
      const ParsedJob now = parse(run.resolved_json, {override});
      const std::vector<FieldChange> changes = changed_fields(run, now);
      CHECK(most_serious(changes) == change);
      CHECK((now.hash == run.hash) == (change < Change::branch));
      CHECK(refused_on_resume(run, now, "").empty() == (change < Change::branch));
      CHECK(refused_on_branch(run, now).empty() == (change < Change::never));
    }
  CHECK(most_serious({}) == Change::free);
  // Positions are learned one by one in gpt2 only.
  const ParsedJob gpt2 = parse(kMinimal, {"model.preset=gpt2-tiny"});
  CHECK(most_serious(changed_fields(gpt2, parse(gpt2.resolved_json, {"model.max_seq_len=64"}))) == Change::never);
}

TEST_CASE("a field that runs of the past lack is left out of the spec where it has its default", "[spec]") {
  const ParsedJob plain = parse(kMinimal),
                  given = parse(kMinimal,
                                {"optimizer.type=adamw", "optimizer.muon.steps=5", "optimizer.moments=f32",
                                 "optimizer.ema.decay=0", "launcher.burn_in=0"});
  for (const char* word : {"\"type\": \"adamw\"", "momentum", "muon", "moments", "ema", "burn_in"})
    CHECK(plain.resolved_json.find(word) == std::string::npos);
  CHECK(given.resolved_json == plain.resolved_json);
  CHECK(given.hash == plain.hash);
  const ParsedJob muon = parse(kMinimal, {"optimizer.type=muon", "optimizer.muon.steps=10"});
  const ParsedJob again = parse(muon.resolved_json);
  CHECK(muon.hash != plain.hash);
  CHECK(again.hash == muon.hash);
  CHECK(again.job.optimizer.type == OptimizerType::muon);
  CHECK(again.job.optimizer.muon.steps == 10);
  const ParsedJob small = parse(kMinimal, {"optimizer.moments=int8", "optimizer.ema.decay=0.99"});
  CHECK(small.hash != plain.hash);
  CHECK(parse(small.resolved_json).hash == small.hash);
  CHECK(parse(small.resolved_json).job.optimizer.moments == kernels::Moments::int8);
  CHECK(parse(small.resolved_json).job.optimizer.ema_decay == 0.99);
  const ParsedJob tested = parse(kMinimal, {"launcher.burn_in=2m"});
  CHECK(tested.hash == plain.hash);  // no bit of the training differs
  CHECK(parse(tested.resolved_json).job.launcher.burn_in == 120);
  // Back to the default: the run has the field, the new spec leaves it out.
  CHECK(refused_on_resume(muon, plain, "").size() == 2);
}

TEST_CASE("a refused change is located, and the command that makes it is named", "[spec]") {
  const ParsedJob run = parse(kMinimal);
  const ParsedJob now = parse(run.resolved_json, {"schedule.lr=1e-4"});
  const auto changes = changed_fields(run, now);
  REQUIRE(changes.size() == 1);
  CHECK(describe(changes[0]) == "schedule.lr 0.0003 → 0.0001");
  const Diagnostic refusal = refused_on_resume(run, now, "trainctl launch it").at(0);
  CHECK(refusal.code == "E0602");
  CHECK(refusal.file == "--set schedule.lr=1e-4");
  CHECK(refusal.message == "`schedule.lr` is fixed for the life of a run");
  CHECK(refusal.notes == std::vector<std::string>{"in the run: 0.0003, now: 0.0001"});
  CHECK(refusal.help == std::vector<std::string>{"a new run may begin from a checkpoint with it: trainctl launch it"});
}

TEST_CASE("a lineage comes back as it was written", "[spec]") {
  const LineageEntry branch{.kind = LineageEntry::branch,
                            .run_id = "base",
                            .step = 500,
                            .root = "0123456789abcdef0123",
                            .changes = {{.path = "schedule.lr", .before = "0.003", .now = "0.001"}},
                            .new_data = true};
  const LineageEntry change{.kind = LineageEntry::change, .run_id = "b", .step = 600, .numerics_before = "cpu", .numerics = "cuda"};
  const std::string text = lineage_json({branch, change});
  const auto back = lineage_of(text);
  CHECK(lineage_json(back) == text);
  CHECK(describe(back.at(0)) ==
        "from base step 500 (state 0123456789abcdef): schedule.lr 0.003 → 0.001, data from its start");
  CHECK(describe(back.at(1)) == "from step 600 on: computed by cpu → cuda");
  CHECK(lineage_of(lineage_at(text, 550)).at(1).step == 550);   // the run went back: the change begins there
  CHECK(lineage_at(text, 700) == text);
  CHECK(lineage_of("").empty());
  CHECK(lineage_of("[{}]").empty());
}

TEST_CASE("the sample specs are valid", "[spec]") {
  FileSystem& fs = real_file_system();
  const std::string folder = std::string(TRAINCTL_SOURCE_DIR) + "/scripts/jobs/";
  int found = 0;
  for (const std::string& name : fs.list(folder)) {
    if (name.size() < 5 || name.substr(name.size() - 5) != ".json") continue;
    INFO(name);
    const ParsedJob parsed = parse(fs.read_text(folder + name));
    CHECK(parsed.diagnostics.empty());
    ++found;
  }
  CHECK(found >= 3);
}
