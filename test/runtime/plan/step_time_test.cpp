// Goal: the predicted time of a step conserves its parts and follows its causes.
// Method: tiny and named models on meshes; parts are added up, 1F1B is held to its closed form, and slower
// clusters, more layers and more micro-batches are compared.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "runtime/plan/fit.h"
#include "runtime/plan/report.h"
#include "runtime/plan/step_time.h"
#include "runtime/spec/parse.h"
#include "test/support/tolerances.h"

using namespace trainctl;

namespace {

ParseInput timed_input(const std::string& model, std::vector<std::string> settings) {
  settings.push_back("device=cuda");
  return {.text = R"({"version": 1, "name": "timed", "model": )" + model + R"(,
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint32"}]},
            "precision": {"compute": "bf16"}, "schedule": {"total_steps": 10, "lr": 1e-3}})",
          .file = "job.json",
          .overrides = std::move(settings),
          .environment = {}};
}

JobSpec timed_job(const std::string& model, const std::vector<std::string>& settings) {
  const ParsedJob parsed = parse_job(timed_input(model, settings));
  std::string mistakes;
  for (const Diagnostic& d : parsed.diagnostics) mistakes += d.message + "\n";
  CAPTURE(mistakes);
  REQUIRE(parsed.ok());
  return parsed.job;
}

StepTime time_of(const JobSpec& job, const predict::ClusterModel& cluster) {
  DeviceModel device = device_named("h100", job, DeviceKind::cuda);
  device.ranks_on_node = 8;
  return predict_step(job, make_plan(job, device), device, cluster);
}

const std::string kSmall =
    R"({"family": "llama", "hidden_size": 512, "num_layers": 8, "num_heads": 8, "num_kv_heads": 4, "ffn_size": 1536,
        "vocab_size": 1024, "max_seq_len": 256, "tie_embeddings": false})";

}  // namespace

TEST_CASE("a plan for GPUs of known power has the energy of the run") {
  const ParseInput input = timed_input(kSmall, {});
  const JobSpec job = timed_job(kSmall, {});
  DeviceModel device = device_named("h100", job, DeviceKind::cuda);
  const PlanReport report = make_report(input, job, device, std::nullopt);
  const auto time = parse_json(plan_json(report))["time"];
  const double hours = time["device_hours"], kwh = time["energy"]["kwh"];
  CHECK(kwh == Approx(hours * 0.7 * (1 + predict::kHostShare) * predict::kPowerUsageEffectiveness));
  CHECK(time["energy"]["board_w"] == 700);
  CHECK_THAT(render_plan(report),
             Catch::Contains("at the limit of 700 W a board, 40 % more for hosts, PUE 1.2"));
  device.cluster->device.board_w = 0;
  const PlanReport unknown = make_report(input, job, device, std::nullopt);
  CHECK_FALSE(parse_json(plan_json(unknown))["time"].contains("energy"));
  CHECK_THAT(render_plan(unknown), !Catch::Contains("Energy"));
}

TEST_CASE("the parts of a predicted step are the step, on every axis") {
  const predict::ClusterModel cluster = predict::known_cluster("h100");
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{},
        {"parallelism.tensor=2"},
        {"parallelism.pipeline=4"},
        {"parallelism.pipeline=2", "parallelism.pipeline_schedule=dualpipev", "parallelism.virtual_stages=2"},
        {"parallelism.data=4", "parallelism.lanes=4"},
        {"parallelism.data=4", "parallelism.lanes=4", "parallelism.zero_stage=3"},
        {"parallelism.tensor=2", "parallelism.pipeline=2", "parallelism.data=2", "parallelism.lanes=2"}}) {
    std::vector<std::string> settings = mesh;
    settings.push_back("batch.global_sequences=32");
    const JobSpec job = timed_job(kSmall, settings);
    const StepTime time = time_of(job, cluster);
    double sum = 0;
    for (const NamedSeconds& part : named(time.parts)) {
      CAPTURE(part.name);
      CHECK(part.seconds >= 0);
      sum += part.seconds;
    }
    CHECK(sum == Approx(time.step_s));
    CHECK((time.low_s < time.step_s && time.step_s < time.high_s));
    CHECK((time.parts.tensor > 0) == (job.parallelism.tensor > 1));
    CHECK((time.parts.data > 0) == (job.parallelism.data > 1));
    CHECK((time.bubble_fraction > 0.01) == (job.parallelism.pipeline > 1));
  }
}

TEST_CASE("the passes of 1F1B take its closed form where messages are free") {
  predict::ClusterModel cluster = predict::known_cluster("h100");
  cluster.node = cluster.fabric = {.bytes_per_s = 1e18, .latency_s = 0};
  // Embedding and head cost next to nothing, so stages are alike.
  const std::string model =
      R"({"family": "llama", "hidden_size": 8192, "num_layers": 8, "num_heads": 64, "num_kv_heads": 64, "ffn_size": 28672,
          "vocab_size": 64, "max_seq_len": 2048, "tie_embeddings": false})";
  for (const int micro_batches : {4, 16, 32}) {
    const JobSpec job = timed_job(model, {"parallelism.pipeline=4", "parallelism.stage_layers=2,2,2,2",
                                          fmt::format("batch.global_sequences={}", micro_batches)});
    const double closed = 3.0 / micro_batches;  // over the ideal time
    CHECK(time_of(job, cluster).bubble_fraction ==
          Approx(closed / (1 + closed)).epsilon(test::tolerance::kStagesAlmostAlike));
  }
}

TEST_CASE("the timeline takes what the passes of a predicted step take") {
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{},
        {"parallelism.tensor=2", "parallelism.pipeline=2"},
        {"parallelism.pipeline=4"},
        {"parallelism.pipeline=4", "parallelism.pipeline_schedule=zb-h1"},
        {"parallelism.pipeline=2", "parallelism.pipeline_schedule=interleaved",
         "parallelism.virtual_stages=2"},
        {"parallelism.pipeline=2", "parallelism.data=2", "parallelism.lanes=2"}}) {
    std::vector<std::string> settings = mesh;
    settings.push_back("batch.global_sequences=32");
    const JobSpec job = timed_job(kSmall, settings);
    DeviceModel device = device_named("h100", job, DeviceKind::cuda);
    device.ranks_on_node = 8;
    const StepTime time = predict_step(job, make_plan(job, device), device, *device.cluster);
    const PipelinePicture picture = pipeline_picture(job, device);
    CHECK(picture.is_predicted);
    CHECK(picture.timeline.makespan ==
          Approx(time.step_s - time.parts.data - time.parts.optimizer - time.parts.spread));
    CHECK(time.forward_s + time.backward_input_s + time.backward_weight_s == Approx(time.parts.work.sum()));
    // Each computation is as long as it is said to be.
    const InstructionTimes times(job, device, &*device.cluster);
    for (size_t stage = 0; stage < picture.timeline.stages.size(); ++stage)
      for (const parallel::Span& span : picture.timeline.stages[stage])
        CHECK(span.end - span.begin == Approx(times.seconds(int(stage), span.instruction)));
    // Without a cluster, FLOPs at the peak.
    device.cluster.reset();
    const PipelinePicture by_flops = pipeline_picture(job, device);
    CHECK_FALSE(by_flops.is_predicted);
    CHECK(by_flops.timeline.makespan < picture.timeline.makespan);
  }
}

TEST_CASE("slower devices and links, and more work, take longer") {
  const predict::ClusterModel cluster = predict::known_cluster("h100");
  const std::vector<std::string> mesh = {"parallelism.tensor=2", "parallelism.pipeline=2",
                                         "parallelism.data=8", "parallelism.lanes=8",
                                         "batch.global_sequences=64"};
  const JobSpec job = timed_job(kSmall, mesh);
  const double step_s = time_of(job, cluster).step_s;
  const auto slower = [&](auto change) {
    predict::ClusterModel changed = cluster;
    change(changed);
    return time_of(job, changed).step_s;
  };
  CHECK(slower([](auto& c) { c.device.peak_bf16_flops_per_s /= 4; }) > step_s);
  CHECK(slower([](auto& c) { c.device.memory_bytes_per_s /= 4; }) > step_s);
  CHECK(slower([](auto& c) { c.device.launch_s *= 4; }) > step_s);
  CHECK(slower([](auto& c) { c.node.latency_s *= 4; }) > step_s);
  CHECK(slower([](auto& c) { c.fabric.bytes_per_s /= 100; }) > step_s);
  const auto with = [&](const char* setting) {
    std::vector<std::string> settings = mesh;
    settings.push_back(setting);
    return time_of(timed_job(kSmall, settings), cluster).step_s;
  };
  CHECK(with("batch.global_sequences=128") > step_s);
  CHECK(with("model.num_layers=16") > step_s);
  CHECK(with("memory.activation_recompute=full") > step_s);
}

TEST_CASE("biases and GELU cost a pass over what their products have made") {
  predict::ClusterModel cluster = predict::known_cluster("h100");
  cluster.device.op_s = 0;  // bytes alone
  const double layers = 3, hidden = 1024, tokens = 2048, ffn = 4096;
  const std::string model = R"({"family": "gpt2", "hidden_size": 1024, "num_layers": 3, "num_heads": 16,
      "ffn_size": 4096, "vocab_size": 1024, "max_seq_len": 2048})";
  const auto others = [&](std::vector<std::string> settings) {
    settings.push_back("batch.global_sequences=1");
    return time_of(timed_job(model, settings), cluster).parts.work.memory;
  };
  const double rate = cluster.device.memory_bytes_per_s * cluster.device.memory_share;
  const std::vector<std::string> no_biases = {"model.layer.qkv_bias=false", "model.layer.out_bias=false",
                                              "model.layer.mlp_bias=false"};
  const double without = others(no_biases);
  // Gradients of 3, 1 and 1 times the hidden size and of the feed-forward part.
  CHECK(others({}) - without ==
        Approx(layers * tokens * (5 * hidden + ffn) * 2 / rate).epsilon(test::tolerance::kFormula));
  // GELU moves one tensor each way behind its product; SiLU, an op of its own, two forward and three
  // backward.
  CHECK(others({"model.layer.activation=silu"}) - others({}) ==
        Approx(layers * tokens * 3 * ffn * 2 / rate).epsilon(test::tolerance::kFormula));
}

TEST_CASE("gradients of experts that a node shares out leave it over one network card each") {
  predict::ClusterModel cluster = predict::known_cluster("h100");
  cluster.fabric.bytes_per_s = 1e9;  // so slow that nothing hides it
  const std::string model =
      R"({"family": "llama", "hidden_size": 512, "num_layers": 4, "num_heads": 8, "num_kv_heads": 4,
          "ffn_size": 1024, "vocab_size": 1024, "max_seq_len": 256, "tie_embeddings": false,
          "moe": {"num_experts": 8, "top_k": 2, "expert_ffn_size": 4096}})";
  const StepTime time = time_of(timed_job(model, {"parallelism.data=16", "parallelism.lanes=16",
                                                  "batch.global_sequences=16", "parallelism.expert=8"}),
                                cluster);
  // Two ranks have an expert's weights: one sends half of the gradients in f32 and of the weights in bf16.
  // What all ranks have is small, and leaves over eight cards.
  const double weights = 4.0 * 3 * 512 * 4096, sent = weights / 2 * (4 + 2);
  CHECK(time.parts.data > 0.95 * sent / 1e9);
  CHECK(time.parts.data < 1.3 * sent / 1e9);
}

TEST_CASE("only the stage that has experts sends gradients of experts") {
  predict::ClusterModel cluster = predict::known_cluster("h100");
  cluster.fabric.bytes_per_s = 1e9;
  // The first stage has dense layers alone, and most to send.
  const std::string model =
      R"({"family": "llama", "hidden_size": 512, "num_layers": 4, "num_heads": 8, "num_kv_heads": 4,
          "ffn_size": 16384, "vocab_size": 1024, "max_seq_len": 256, "tie_embeddings": false,
          "moe": {"num_experts": 8, "top_k": 2, "expert_ffn_size": 4096, "first_dense_layers": 2}})";
  const StepTime time = time_of(timed_job(model, {"parallelism.data=16", "parallelism.lanes=16",
                                                  "parallelism.pipeline=2", "parallelism.stage_layers=[2,2]",
                                                  "batch.global_sequences=16", "parallelism.expert=8"}),
                                cluster);
  // Fifteen sixteenths of two layers, over eight cards of a node.
  const double weights = 2.0 * (3 * 512 * 16384 + 3 * 512 * 512), sent = weights * 15 / 16 * (4 + 2);
  CHECK(time.parts.data > 0.9 * sent / 8e9);
  CHECK(time.parts.data < 1.3 * sent / 8e9);
}

TEST_CASE("a layer's products stay in FP8 where its width is a rank's part of the vocabulary") {
  predict::ClusterModel cluster = predict::known_cluster("h100");
  cluster.device.multiplies_fp8 = true;
  const auto products = [&](int vocabulary, const char* precision) {
    const std::string model = fmt::format(
        R"({{"family": "llama", "hidden_size": 4096, "num_layers": 4, "num_heads": 32, "num_kv_heads": 8,
             "ffn_size": 14336, "vocab_size": {}, "max_seq_len": 2048, "tie_embeddings": false}})",
        vocabulary);
    const JobSpec job = timed_job(model, {"parallelism.tensor=8", precision});
    return time_of(job, cluster).parts.work.products;
  };
  const char* fp8 = "precision.fp8.recipe=tensor";
  CHECK(products(32768, fp8) == Approx(products(32000, fp8)).epsilon(0.02));
  CHECK(products(32768, fp8) < 0.85 * products(32768, "precision.compute=bf16"));
}

TEST_CASE("experts with more rows multiply them faster, as gradients of each have a depth of their own") {
  // Of one lane, 256 rows of an expert for each sequence of a micro-batch; the ranks that share them are one.
  const auto products = [](int sequences, int layers) {
    const JobSpec job =
        timed_job(R"({"preset": "qwen3-30b-a3b", "num_layers": )" + std::to_string(layers) + "}",
                  {"parallelism.data=4", "parallelism.lanes=4", "parallelism.expert=4", "data.seq_len=4096",
                   fmt::format("batch.micro_sequences={}", sequences), "batch.global_sequences=16"});
    return time_of(job, predict::known_cluster("h100")).parts.work.products;
  };
  const auto of_layers = [&](int sequences) { return products(sequences, 4) - products(sequences, 2); };
  CHECK(of_layers(1) > 1.05 * of_layers(4));
  CHECK(of_layers(2) > of_layers(4));
}

TEST_CASE("the steady state of a long step is extrapolated without loss") {
  const predict::ClusterModel cluster = predict::known_cluster("h100");
  // 2 stages x 100,000 micro-batches are more than are simulated.
  const auto passes = [&](int micro_batches) {
    const JobSpec job = timed_job(
        kSmall, {"parallelism.pipeline=2", fmt::format("batch.global_sequences={}", micro_batches)});
    return InstructionTimes(job, device_named("h100", job, DeviceKind::cuda), &cluster).passes().time_s;
  };
  const double few = passes(1000), more = passes(2000), many = passes(100000);
  CHECK(many == Approx(few + 99 * (more - few)).epsilon(test::tolerance::kExtrapolatedTime));
}

TEST_CASE("time follows from the peak at the assumed share of it") {
  const ParseInput input =
      timed_input(R"({"preset": "llama3-8b"})",
                  {"parallelism.data=8", "batch.global_sequences=64", "parallelism.lanes=8"});
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  const DeviceModel device = device_named("B200", parsed.job, DeviceKind::cuda);
  const JobPlan plan = make_plan(parsed.job, DeviceKind::cuda);
  const auto time = estimate_time(parsed.job, plan, device, 0.5);
  REQUIRE(time);
  CHECK(time->devices == 8);
  CHECK(time->step_s == Approx(plan.flops_per_step_causal / (0.5 * 2250e12 * 8)));
  CHECK(time->run_s == Approx(10 * time->step_s));
  CHECK(time->device_hours == Approx(8 * time->run_s / 3600));
  CHECK(time->tokens == 10.0 * 64 * 8192);
  // Where nothing is known but the peak, the share is assumed.
  DeviceModel unknown = device;
  unknown.cluster.reset();
  CHECK(estimate_time(parsed.job, plan, unknown, std::nullopt)->mfu == kGpuMfu);
  CHECK(estimate_time(parsed.job, plan, device, std::nullopt)->predicted);
  // Bytes alone tell no speed.
  CHECK_FALSE(estimate_time(parsed.job, plan, device_named("80GiB", parsed.job, DeviceKind::cuda), 0.5));
}

TEST_CASE("the report gives the prediction, and an MFU that is given instead") {
  const ParseInput input = timed_input(
      R"({"preset": "llama3-8b"})",
      {"parallelism.data=8", "parallelism.lanes=8", "parallelism.zero_stage=3", "batch.global_sequences=64"});
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  const DeviceModel device = device_named("h100", parsed.job, DeviceKind::cuda);
  const PlanReport predicted = make_report(input, parsed.job, device, {});
  REQUIRE(predicted.time);
  REQUIRE(predicted.time->predicted);
  CHECK(predicted.time->mfu_full > predicted.time->mfu);
  CHECK((predicted.time->mfu > 0.3 && predicted.time->mfu < 0.65));
  CHECK_THAT(render_plan(predicted), Catch::Contains("from cluster h100") && Catch::Contains("products "));
  const OrderedJson time = parse_ordered_json(plan_json(predicted)).at("time");
  CHECK(time.at("predicted").at("cluster").text() == "h100");
  CHECK(time.at("predicted").at("seconds").at("products").get<double>() > 0);
  const PlanReport assumed = make_report(input, parsed.job, device, 0.4);
  CHECK_FALSE(assumed.time->predicted);
  CHECK_THAT(render_plan(assumed), Catch::Contains("an assumed MFU of 40 %"));
}

TEST_CASE("state on disk takes what its disk does not do during the updates") {
  const auto job_with = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"device=cpu", "precision.compute=f32"});
    ParseInput input = timed_input(kSmall, {});
    input.overrides = std::move(settings);
    const ParsedJob parsed = parse_job(input);
    REQUIRE(parsed.ok());
    return parsed.job;
  };
  const JobSpec memory = job_with({}), disk = job_with({"optimizer.offload=disk"});
  DeviceModel device = device_of_kind(disk, DeviceKind::cpu);
  predict::ClusterModel cluster = predict::known_cluster("cpu-core");
  device.cluster = cluster;
  const JobPlan plan = make_plan(disk, device);
  const auto state = double(plan.worst().sharding.state_file);
  REQUIRE(state > 0);
  CHECK(!offload_time(memory, make_plan(memory, device), device));
  const auto assumed = offload_time(disk, plan, device);
  REQUIRE(assumed);
  CHECK((assumed->is_assumed && assumed->bytes_per_s == kAssumedDiskBytesPerS && assumed->bytes == state));

  cluster.disk_bytes_per_s = 2e7;
  const predict::ClusterModel again = predict::parse_cluster(predict::cluster_text(cluster), "again");
  CHECK(again.disk_bytes_per_s == 2e7);
  device.cluster = again;
  const StepTime slow = predict_step(disk, plan, device, again);
  CHECK(slow.parts.disk == Approx(state / 2e7 - slow.parts.optimizer));
  CHECK(slow.parts.sum() == Approx(slow.step_s));
  device.cluster->disk_bytes_per_s = 1e14;  // hidden behind the updates
  const StepTime fast = predict_step(disk, plan, device, *device.cluster);
  CHECK(fast.parts.disk == 0);
  CHECK(fast.step_s == Approx(predict_step(memory, make_plan(memory, device), device, cluster).step_s));

  const JobSpec four = job_with({"optimizer.offload=disk", "parallelism.data=4", "batch.global_sequences=8"});
  const JobPlan of_four = make_plan(four, device);
  const auto each = double(of_four.worst().sharding.state_file);
  CHECK(offload_time(four, of_four, device)->bytes == 4 * each);
  device.ranks_on_node = 2;
  CHECK(offload_time(four, of_four, device)->bytes == 2 * each);
}
