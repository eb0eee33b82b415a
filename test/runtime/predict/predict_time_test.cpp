// Goal: predicted times of ops and exchanges follow from what limits them.
// Method: products against the roofline and measured ones of an H100; seeded shapes for monotonicity;
// collectives against the closed form of a ring; broken cluster files, each with the sentence it must get.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/base/error.h"
#include "runtime/predict/cluster.h"
#include "runtime/predict/collective_time.h"
#include "runtime/predict/op_time.h"
#include "test/support/seed.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::predict;

namespace {

double product(const DeviceSpeed& device, double m, double n, double k) {
  return product_seconds(device, m, n, k, 2 * (m * k + n * k + m * n), false);
}

std::string refusal_of(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  try {
    parse_cluster(text, "mine.json");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every known cluster is a legal file with a source for its numbers") {
  CHECK(cluster_names().size() >= 8);
  for (const std::string& name : cluster_names()) {
    const ClusterModel cluster = known_cluster(name);
    CHECK(cluster.name == name);
    CHECK_FALSE(cluster.device_source.empty());
  }
  CHECK(known_cluster_text("z80").empty());
}

TEST_CASE("a GPU is known by what tables and drivers call it") {
  const std::pair<const char*, const char*> names[] = {{"NVIDIA H100 80GB HBM3", "h100"},
                                                       {"H100-SXM5-80GB", "h100"},
                                                       {"DGX-H100", "h100"},
                                                       {"8xH200", "h200"},
                                                       {"8x H100", "h100"},
                                                       {"8 x NVIDIA H100 80GB", "h100"},
                                                       {"A100 40GB", "a100-40"},
                                                       {"40GB A100", "a100-40"},
                                                       {"A800 40GB", "a800-40gb"},
                                                       {"GH200 144G HBM3e", "gh200-144g"},
                                                       {"H100 64GB", "h100-64gb"},
                                                       {"A100-SXM4-80GB", "a100-80"},
                                                       {"a100", "a100-80"},
                                                       {"GB200 NVL72", "gb200"},
                                                       {"DGX-GB300", "gb300"},
                                                       {"AMD Instinct MI300X", "mi300x"},
                                                       {"H100 NVL", "h100-nvl"},
                                                       {"h100-2048", "h100-2048"},
                                                       {"", ""}};
  for (const auto& [text, name] : names) CHECK(short_gpu_name(text) == name);
  CHECK(sized_cluster("NVIDIA H100 80GB HBM3")->name == "h100");
  CHECK(sized_cluster("DGX H100-64")->devices == 64);
  CHECK(sized_cluster("A100 40GB-64")->name == "a100-40");
  CHECK(sized_cluster("8 x H100")->name == "h100");
  for (const char* text :
       {"h100--8", "-8", "./h100", "clusters/h100-8", "h100/", "h100-64x", "H100 64GB", "A100-64GB"})
    CHECK_FALSE(sized_cluster(text));
}

TEST_CASE("energy is the power of boards, hosts and the data center over the hours of devices") {
  ClusterModel cluster = known_cluster("h100");
  CHECK(energy_kwh(cluster, 1000) == Approx(1000 * 0.7 * (1 + kHostShare) * kPowerUsageEffectiveness));
  CHECK(energy_kwh(cluster, 2000) == Approx(2 * energy_kwh(cluster, 1000)));
  cluster.host_share = 0.25, cluster.pue = 1;
  const ClusterModel read = parse_cluster(cluster_text(cluster), "again.json");
  CHECK(energy_kwh(read, 1000) == Approx(875));
  cluster.device.board_w = 0;
  CHECK(energy_kwh(parse_cluster(cluster_text(cluster), "again.json"), 1000) == 0);
  const std::string text(known_cluster_text("h100"));
  CHECK_THAT(refusal_of(text, "\"board_w\": 700", "\"board_kw\": 0.7"),
             Catch::Contains("device.board_kw is not known: give it in the unit of board_w"));
  CHECK_THAT(refusal_of(text, "\"latency_us\": 20", "\"latency_us\": 20, \"pue\": 0.9"),
             Catch::Contains("node.pue = 0.9 is impossible"));
  for (const std::string& name : cluster_names())
    if (name != "cpu-core") CHECK(known_cluster(name).device.board_w >= 300);
}

TEST_CASE("a cluster file can be written again") {
  for (const std::string& name : cluster_names()) {
    CAPTURE(name);
    ClusterModel cluster = known_cluster(name);
    cluster.device.attention[0].backward_f32_flops_per_s = 12e9;
    cluster.device.ops = {{"gated_forward", 3e9, 2.5e9, 1e-6}, {"adamw", 17e9, 16e9, 0}};
    const std::string text = cluster_text(cluster);
    const ClusterModel read = parse_cluster(text, "again.json");
    CHECK(cluster_text(read) == text);
    CHECK(read.device.peak_bf16_flops_per_s ==
          Approx(cluster.device.peak_bf16_flops_per_s).epsilon(test::tolerance::kFormula));
    CHECK(read.device.ops.size() == 2);
    CHECK(read.device.rate_of("adamw")->bf16_bytes_per_s == Approx(16e9));
    CHECK_FALSE(read.device.rate_of("copy"));
    CHECK(read.node_source == cluster.node_source);
    CHECK(read.devices_of_node == cluster.devices_of_node);
  }
}

TEST_CASE("a broken cluster file is refused with its place") {
  const std::string text(known_cluster_text("h100"));
  const auto contains = [](const char* part) { return Catch::Contains(part); };
  CHECK(refusal_of(text, "\"version\": 1", "\"version\": 1 ") == "");
  CHECK_THAT(refusal_of(text, "\"memory_gb_per_s\": 3350", "\"memory_gb_per_s\": 3.35e12"),
             contains("mine.json: device.memory_gb_per_s = 3.35e+12 is impossible in its unit; use 1 to"));
  CHECK_THAT(refusal_of(text, "\"memory_gb_per_s\": 3350,", ""),
             contains("mine.json: device.memory_gb_per_s is missing"));
  CHECK_THAT(refusal_of(text, "\"launch_us\"", "\"launch_ms\""), contains("device.launch_us is missing"));
  CHECK_THAT(refusal_of(text, "\"processors\": 132", "\"processors\": 0"), contains("device.processors = 0"));
  CHECK_THAT(refusal_of(text, "\"product_share\"", "\"colour\": 3, \"product_share\""),
             contains("device.colour is not known"));
  CHECK_THAT(refusal_of(text, "\"forward_tflops\": 6", "\"forward_tflops\": 16"), contains("is faster than"));
  CHECK_THAT(refusal_of(text, "\"fp8_tflops\": 1", "\"fp8_tflops\": 2"),
             contains("device.fp8_tflops = 2283 is above twice device.peak_bf16_tflops"));
  CHECK(refusal_of(text, "\"fp8_tflops\": 1283,", "") == "");
  CHECK_THAT(refusal_of(text, "\"device_gb_per_s\": 46", "\"device_gb_per_s\": 3680"),
             contains("fabric.device_gb_per_s = 3680 is above node.link_gb_per_s"));
  CHECK_THAT(refusal_of(text, "\"fabric\"", "\"network\""), contains("network is not known"));
  CHECK_THAT(refusal_of(text, "\"op_us\"",
                        "\"ops\": [{\"op\": \"adamw\", \"f32_gb_per_s\": 0, \"bf16_gb_per_s\": 1, "
                        "\"call_us\": 0}], \"op_us\""),
             contains("device.ops[0].f32_gb_per_s = 0 is impossible"));
  CHECK_THAT(refusal_of(text, "\"op_us\"", "\"ops\": [{\"gb_per_s\": 1}], \"op_us\""),
             contains("device.ops[0].op is missing"));
  // Each of several, and the unit that a number is wanted in.
  const std::string all =
      refusal_of(text, "\"launch_us\": 4,\n    \"spread\": 0.0125", "\"launch_ms\": 4, \"spread\": 7");
  CHECK_THAT(all, contains("launch_us is missing") &&
                      contains("mine.json: device.spread = 7 is impossible") &&
                      contains("device.launch_ms is not known: give it in the unit of launch_us"));
  CHECK(std::count(all.begin(), all.end(), '\n') == 2);
  CHECK_THAT(refusal_of(text, "\"version\": 1,", "\"version\": 1,,"), contains("mine.json: "));
  CHECK_THAT(refusal_of(text, "\"version\": 1,", "\"version\": 1, \"version\": 1,"),
             contains("mine.json: the key \"version\" occurs twice"));
}

TEST_CASE("a core has no tiles: a row more takes a row's time") {
  DeviceSpeed core = known_cluster("cpu-core").device;
  core.op_s = 0;
  CHECK(product(core, 129, 700, 512) == Approx(129.0 / 128 * product(core, 128, 700, 512)));
  core.processors = 2;
  CHECK(product(core, 129, 700, 512) > 1.1 * product(core, 128, 700, 512));
}

TEST_CASE("products of an H100 take what was measured") {
  // scripts/bench/results/gpu-h100-h200.md, TFLOP/s.
  struct Measured {
    double m, n, k, tera;
  };
  const DeviceSpeed device = known_cluster("h100").device;
  std::vector<double> errors;
  for (const Measured& p : {Measured{8192, 6144, 4096, 687},
                            {8192, 4096, 4096, 709},
                            {8192, 28672, 4096, 680},
                            {8192, 4096, 28672, 728},
                            {28672, 4096, 8192, 681},
                            {8192, 4096, 14336, 692},
                            {8192, 128256, 4096, 757},
                            {32768, 768, 768, 582},
                            {32768, 3072, 768, 593},
                            {32768, 768, 3072, 676}})
    errors.push_back(std::abs(2 * p.m * p.n * p.k / product(device, p.m, p.n, p.k) / 1e12 / p.tera - 1));
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 0.05);
  CHECK(errors.back() < 0.12);
}

TEST_CASE("products wait for what their activation or the gradient of a bias moves") {
  // scripts/bench/results/gpu-h100-h200.md: 32,768 x 3,072 numbers of GELU, and products without it.
  struct Measured {
    double with_us, without_us;
  };
  const DeviceSpeed device = known_cluster("h100").device;
  const double bytes = 2.0 * 32768 * 3072;
  kernels::OpCount count{.calls = 1, .flops = 2.0 * 32768 * 3072 * 768, .bytes = 1};
  const TimeParts plain = op_seconds(device, {"linear_gelu_forward", 32768, 3072, 768}, count, {});
  count.apart_bytes = bytes;
  const TimeParts with = op_seconds(device, {"linear_gelu_forward", 32768, 3072, 768}, count, {});
  CHECK(with.products == plain.products);
  for (const Measured& m : {Measured{319, 261}, {335, 267}})
    CHECK(with.memory == Approx(1e-6 * (m.with_us - m.without_us)).epsilon(0.2));
  CHECK(op_seconds(device, {"linear_gelu_forward", 32768, 3072, 768}, count, {.passes = 2}).memory ==
        Approx(2 * with.memory));
  // Rates of a core contain it.
  CHECK(op_seconds(known_cluster("cpu-core").device, {"linear_gelu_forward", 32768, 3072, 768}, count, {})
            .memory == 0);
}

TEST_CASE("products of 8-bit numbers take what was measured, and the head's stay in bf16") {
  // DeepGEMM on an H800, February 2025, TFLOP/s; over minutes 0.915 of it, as the cluster file says.
  struct Measured {
    double m, n, k, tera;
  };
  DeviceSpeed device = known_cluster("h800").device;
  std::vector<double> errors;
  for (const Measured& p : {Measured{4096, 2112, 7168, 1058},
                            {4096, 24576, 1536, 990},
                            {4096, 32768, 512, 590},
                            {4096, 7168, 16384, 1358},
                            {4096, 4096, 7168, 1304},
                            {4096, 7168, 2048, 1025}})
    errors.push_back(std::abs(
        2 * p.m * p.n * p.k / fp8_product_seconds(device, p.m, p.n, p.k, 1) / 1e12 / (0.915 * p.tera) - 1));
  std::sort(errors.begin(), errors.end());
  CHECK((errors[2] + errors[3]) / 2 < 0.05);
  CHECK(errors.back() < 0.08);

  const kernels::OpCount count{.calls = 1, .flops = 2.0 * 8192 * 4096 * 4096, .bytes = 1};
  const kernels::OpShape layer{"linear_forward", 8192, 4096, 4096},
      head{"linear_forward", 8192, 128256, 4096};
  const WorkKind fp8{.fp8_head_rows = 128256, .fp8_head_columns = 4096};
  // This program multiplies in bf16.
  CHECK(op_seconds(device, layer, count, fp8).sum() == op_seconds(device, layer, count, {}).sum());
  device.multiplies_fp8 = true;
  CHECK(op_seconds(device, layer, count, fp8).sum() < 0.75 * op_seconds(device, layer, count, {}).sum());
  CHECK(op_seconds(device, layer, count, {}).sum() ==
        Approx(product_seconds(device, 8192, 4096, 4096, 1, false)));
  for (const kernels::OpShape& of_head : {head,
                                          kernels::OpShape{"linear_backward_input", 8192, 4096, 128256},
                                          {"linear_backward_weight", 128256, 4096, 8192}})
    CHECK(op_seconds(device, of_head, count, fp8).sum() == op_seconds(device, of_head, count, {}).sum());
  // A part of the vocabulary may be as large as a side of a layer's weight, or the number of rows.
  for (const WorkKind& alike : {WorkKind{.fp8_head_rows = 4096, .fp8_head_columns = 512},
                                {.fp8_head_rows = 8192, .fp8_head_columns = 4096}})
    CHECK(op_seconds(device, layer, count, alike).sum() == op_seconds(device, layer, count, fp8).sum());
  DeviceSpeed unknown = known_cluster("a100-80").device;
  unknown.multiplies_fp8 = true;
  CHECK(op_seconds(unknown, layer, count, fp8).sum() == op_seconds(unknown, layer, count, {}).sum());
}

TEST_CASE("more work never takes less time, and no product beats the device") {
  const uint64_t seed = test::test_seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> exponent(0, 60);
  const auto fp8_product = [](const DeviceSpeed& device, double m, double n, double k) {
    return fp8_product_seconds(device, m, n, k, m * k + n * k + 2 * m * n);
  };
  for (const std::string& name : cluster_names()) {
    const DeviceSpeed device = known_cluster(name).device;
    for (int i = 0; i < 200; ++i) {
      const auto size = [&] { return std::floor(64 * std::exp2(double(exponent(random)) / 6)); };
      const double m = size(), n = size(), k = size();
      const double time = product(device, m, n, k);
      CAPTURE(name, m, n, k);
      CHECK(time >= 2 * m * n * k / (device.product_share * device.peak_bf16_flops_per_s));
      CHECK(time >= 2 * (m * k + n * k + m * n) / device.memory_bytes_per_s);
      CHECK(product(device, 2 * m, n, k) >= time);
      CHECK(product(device, m, 2 * n, k) >= time);
      CHECK(product(device, m, n, 2 * k) >= time);
      CHECK(product(device, m, n, k) == Approx(product(device, n, m, k)));
      if (device.fp8_flops_per_s == 0) continue;
      const double fp8_time = fp8_product(device, m, n, k);
      CHECK(fp8_time >= 2 * m * n * k / device.fp8_flops_per_s);
      CHECK(fp8_product(device, 2 * m, n, k) >= fp8_time);
      CHECK(fp8_product(device, m, 2 * n, k) >= fp8_time);
      CHECK(fp8_product(device, m, n, 2 * k) >= fp8_time);
    }
  }
}

TEST_CASE("products of experts have tiles and depths of their own") {
  using kernels::OpShape;
  DeviceSpeed device = known_cluster("h100").device;
  device.op_s = 0;
  device.memory_bytes_per_s = 1e18;  // so that none waits for its bytes
  const auto grouped = [&](const OpShape& shape, int64_t experts, bool fp8 = false) {
    return grouped_seconds(device, shape, experts, 0, false, fp8);
  };
  const double share = device.grouped_share;
  // Experts of whole tiles are one product of all their rows, and gradients one of all experts' outputs.
  const OpShape forward{"grouped_forward", 8192, 4096, 2048},
      gradient{"grouped_backward_weight", 4096, 2048, 8192};
  CHECK(grouped(forward, 1) == Approx(product_seconds(device, 8192, 4096, 2048, 0, false) / share));
  CHECK(grouped(forward, 16) == Approx(grouped(forward, 1)));
  CHECK(grouped(gradient, 16) == Approx(product_seconds(device, 16 * 4096, 2048, 512, 0, false) / share));
  CHECK(grouped(gradient, 16, true) == Approx(fp8_product_seconds(device, 16 * 4096, 2048, 512, 0) / share));
  // A tile costs as much as so much depth, whatever its own is.
  CHECK(grouped(gradient, 64) / grouped(gradient, 16) ==
        Approx(4 * (128 + device.depth_cost) / (512 + device.depth_cost)).epsilon(0.03));
  for (const OpShape& shape : {forward, gradient, OpShape{"grouped_backward_input", 8192, 2048, 4096}})
    for (const bool fp8 : {false, true}) {
      CAPTURE(shape.op, fp8);
      for (int64_t experts = 1; experts < 512; experts *= 2)
        CHECK(grouped(shape, 2 * experts, fp8) >= grouped(shape, experts, fp8));
      // Rows that fill no tile take the time of one that they fill.
      CHECK(grouped(shape, 512, fp8) > 1.5 * grouped(shape, 16, fp8));
    }
  // Where few rows multiply, the bytes of all experts' weights are the time.
  device.memory_bytes_per_s = known_cluster("h100").device.memory_bytes_per_s;
  CHECK(grouped_seconds(device, {"grouped_forward", 64, 4096, 2048}, 64, 1e9, false, false) ==
        Approx(1e9 / (device.memory_bytes_per_s * device.memory_share)));
  // Ops have them from the job.
  const kernels::OpCount count{.calls = 3, .flops = 3 * 2 * gradient.volume(), .bytes = 3};
  CHECK(op_seconds(device, gradient, count, {.experts = 64}).products == Approx(3 * grouped(gradient, 64)));
}

TEST_CASE("a collective takes a ring's time on the links between its ranks") {
  ClusterModel cluster = known_cluster("h100");
  cluster.node = {.bytes_per_s = 400e9, .latency_s = 0};
  cluster.fabric = {.bytes_per_s = 50e9, .latency_s = 0};
  const double bytes = 1e9;
  for (const int ranks : {2, 3, 4, 8}) {
    const GroupPlace place = place_of_group(cluster, ranks, 1, 8);
    CHECK(place.together == ranks);
    const double sent = bytes * (ranks - 1) / ranks;  // of a reduce-scatter
    CHECK(collective_seconds(cluster, place, 1, sent) == Approx(sent / 400e9));
  }
  // Eight neighbours on each node share its eight cards; ranks of their own nodes have one each.
  CHECK(group_bytes_per_s(cluster, place_of_group(cluster, 64, 1, 8)) == Approx(400e9));
  CHECK(group_bytes_per_s(cluster, place_of_group(cluster, 64, 4, 8)) == Approx(100e9));
  CHECK(group_bytes_per_s(cluster, place_of_group(cluster, 64, 8, 8)) == Approx(50e9));
  // Seven of eight parts leave the node of a group of 64 that sends to all others.
  const GroupPlace wide = place_of_group(cluster, 64, 1, 8);
  CHECK(all_to_all_seconds(cluster, wide, 1, bytes) == Approx(bytes * 56 / 63 / 50e9));
  CHECK(message_seconds(cluster, 1, 8, bytes) == Approx(bytes / 400e9));
  CHECK(message_seconds(cluster, 8, 8, bytes) == Approx(bytes / 50e9));
  CHECK(collective_seconds(cluster, {1, 1}, 3, bytes) == 0);
}

TEST_CASE("a ring has a latency for each of its ranks") {
  ClusterModel cluster = known_cluster("h100");
  cluster.in_rings = true;
  // 8.4 us, 3.4 for each step within a node, 14 for each to another one.
  CHECK(collective_seconds(cluster, {8, 8}, 1, 0) == Approx(8.4e-6 + 7 * 3.4e-6));
  CHECK(collective_seconds(cluster, {512, 8}, 1, 0) == Approx(8.4e-6 + 448 * 3.4e-6 + 63 * 14e-6));
  CHECK(collective_seconds(cluster, {16, 1}, 3, 0) == Approx(3 * (8.4e-6 + 15 * 14e-6)));
}

TEST_CASE("latency counts for each call, and slower links never make an exchange faster") {
  const ClusterModel cluster = known_cluster("a100-80");
  for (const int ranks : {2, 4, 8, 16, 128, 1024})
    for (const int stride : {1, 2, 8}) {
      const GroupPlace place = place_of_group(cluster, ranks, stride, 8);
      const double one = collective_seconds(cluster, place, 1, 1e6);
      CHECK(collective_seconds(cluster, place, 10, 1e7) == Approx(10 * one));
      CHECK(collective_seconds(cluster, place, 1, 2e6) > one);
      ClusterModel slower = cluster;
      slower.fabric.bytes_per_s /= 2;
      CHECK(collective_seconds(slower, place, 1, 1e6) >= one);
      CHECK(all_to_all_seconds(cluster, place, 1, 1e6) > 0);
    }
}

TEST_CASE("a host that enqueues slowly is what a step of many small ops takes") {
  DeviceSpeed device = known_cluster("h100").device;
  kernels::WorkTally work;
  work.ops[{"add", 1, 1024}] = {.calls = 1000, .bytes = 1000 * 6144.0};
  device.launch_s = 50e-6;
  const TimeParts parts = work_seconds(device, work, {});
  CHECK(parts.sum() == Approx(1000 * 50e-6));
  CHECK(parts.launches > 0);
  device.launch_s = 0;
  CHECK(work_seconds(device, work, {}).launches == 0);
}
