// Goal: plan --device takes the spellings of drivers and shops, and none whose memory is another.
// Method: names with the size that each known GPU has, and with sizes of others.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/device_model.h"

using namespace trainctl;

TEST_CASE("a device's name may have its memory, and no other") {
  const JobSpec job;
  const auto named = [&](const std::string& text) { return device_named(text, job, DeviceKind::cuda).name; };
  for (const std::string& name : device_names()) {
    const uint64_t bytes = device_named(name, job, DeviceKind::cuda).memory_bytes;
    INFO(name);
    CHECK(named(fmt::format("{} {:.0f}GB", name, double(bytes) / double(1u << 30))) == name);
    CHECK_THROWS_AS(named(name + " 7GB"), Error);
    CHECK_THROWS_AS(named("7GB " + name), Error);
  }
  const std::pair<const char*, const char*> usual[] = {{"NVIDIA H100 80GB HBM3", "h100"},
                                                       {"A100-SXM4-40GB", "a100-40"},
                                                       {"NVIDIA A100-SXM4-80GB", "a100-80"},
                                                       {"40GB A100", "a100-40"},
                                                       {"NVIDIA A800-SXM4-80GB", "a800"},
                                                       {"H200 141GB", "h200"},
                                                       {"NVIDIA GH200 480GB", "gh200"},
                                                       {"B200", "b200"},
                                                       {"B200 180GB", "b200"},
                                                       {"B200 192GB", "b200"},
                                                       {"GB200 NVL72", "gb200"},
                                                       {"NVIDIA H100 NVL 94GB", "h100-nvl"},
                                                       {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                                       {"8 x H100 80GB", "h100"},
                                                       {"AMD Instinct MI300X 192GB", "mi300x"},
                                                       {"a10040", "a100-40"}};
  for (const auto& [text, name] : usual) CHECK(named(text) == name);
  for (const char* text : {"A800 40GB", "A100 64GB", "GH200 144G HBM3e", "H100 64GB", "64GB H100",
                           "H20 141GB", "H100 80GB 94GB", "H100 99999999999999999999GB"})
    CHECK_THROWS_WITH(named(text), Catch::Contains("no such device is known; use a10"));
}
