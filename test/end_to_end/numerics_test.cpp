// Goal: a run never changes the device it computes on by itself, a resume on another device says which bits
// differ and why, and doctor and plan agree about a GPU.
// Method: the real program on the CPU and its twin on the emulated GPU take turns on one run; a machine
// without GPUs gets a run of GPUs.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/plan/device_model.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;

namespace {

const std::vector<std::string> kNoGpu = {"CUDA_VISIBLE_DEVICES="};

std::string spec() {
  return R"({"version": 1, "name": "numerics",
  "model": {"family": "llama", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "ffn_size": 32, "vocab_size": 256,
            "max_seq_len": 8},
  "data": {"train": [{"path": ")" +
         std::string(TRAINCTL_SOURCE_DIR) + R"(/test/golden/llama-tiny/tokens.bin", "format": "raw", "dtype": "uint16"}]},
  "batch": {"global_sequences": 2}, "schedule": {"total_steps": 20, "lr": 1e-3}})";
}

/// An environment in which the preflight finds a file named like cuBLASLt (the twin brings its own functions), and a GPU whose peak is
/// in the table, so that no rank measures it: the emulation would take minutes.
std::vector<std::string> with_a_library(const std::string& folder) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t at = line.find("/"); at != std::string::npos && line.find("/libc.so") != std::string::npos) {
      std::filesystem::create_symlink(line.substr(at), folder + "/libcublasLt.so.13");
      return {"TRAINCTL_CUDA_LIBRARIES=" + folder, "EMULATED_GPU_NAME=NVIDIA H100 80GB HBM3"};
    }
  FAIL("libc is not mapped");
  return {};
}

Json inspected(const TemporaryFolder& dir) {
  return Json::parse(run_trainctl(dir.path(), {"--json", "inspect-ckpt", "r"}).out);
}

}  // namespace

TEST_CASE("a resume on another device says which bits differ and why; nothing changes the device by itself", "[numerics]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", spec());
  const std::vector<std::string> gpu = with_a_library(dir.path());
  const auto emulated = [&](std::vector<std::string> words) {
    words.insert(words.begin(), emulated_trainctl_path());
    return Child(words, dir.path(), gpu).wait(120);
  };
  const Outcome born = run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=r", "--max-steps", "2"}, 120, kNoGpu);
  INFO(born.err);
  REQUIRE(born.status == 0);
  const std::string cpu = inspected(dir)["numerics"];
  CHECK_THAT(cpu, Catch::StartsWith("cpu v") && Contains("oneDNN"));
  CHECK_THAT(born.err, Contains("✓ numerics " + cpu));
  CHECK(Json::parse(read_file(dir.path() + "/runs/r/run.json"))["numerics"] == cpu);
  CHECK(Json::parse(read_file(dir.path() + "/runs/r/job.json"))["device"] == "cpu");
  CHECK(Json::parse(read_file(dir.path() + "/runs/r/origins.json"))["device"] == "auto, decided at launch");

  // Where there are GPUs it stays a run of the CPU.
  const Outcome stays = emulated({"resume", "r", "--max-steps", "4"});
  INFO(stays.err);
  REQUIRE(stays.status == 0);
  CHECK_THAT(stays.err, Contains("the same bits") && Contains(cpu + ", as in the checkpoint") && Contains("on the CPU"));

  const std::string cuda = "cuda sm_90 3 SMs cuBLASLt emulated";
  const Outcome moved = emulated({"resume", "r", "-s", "device=cuda", "--max-steps", "6"});
  INFO(moved.err);
  REQUIRE(moved.status == 0);
  CHECK_THAT(moved.err, Contains("numerics    from here on the bits differ: " + cpu + " → " + cuda) && !Contains("the same bits"));
  CHECK(inspected(dir)["numerics"] == cuda);
  CHECK(inspected(dir)["lineage"][0]["numerics"] == Json{{"before", cpu}, {"now", cuda}});
  CHECK_THAT(emulated({"resume", "r", "--max-steps", "8"}).err, Contains(cuda + ", as in the checkpoint"));

  const Outcome gone = run_trainctl(dir.path(), {"resume", "r", "--max-steps", "10"}, 120, kNoGpu);
  CHECK(gone.status == 5);
  CHECK_THAT(gone.err, Contains("run r computes on GPUs") && Contains("`trainctl resume r -s device=cpu`"));
  const Outcome back = run_trainctl(dir.path(), {"resume", "r", "-s", "device=cpu", "--max-steps", "10"}, 120, kNoGpu);
  INFO(back.err);
  CHECK(back.status == 0);
  CHECK_THAT(back.err, Contains("from here on the bits differ: " + cuda + " → " + cpu));
}

TEST_CASE("a run that was launched where GPUs are is a run of GPUs", "[numerics]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", spec());
  const Outcome o = Child({emulated_trainctl_path(), "launch", "job.json", "-s", "observability.run_id=r", "--max-steps", "1"}, dir.path(),
                          with_a_library(dir.path())).wait(120);
  INFO(o.err);
  REQUIRE(o.status == 0);
  CHECK(Json::parse(read_file(dir.path() + "/runs/r/job.json"))["device"] == "cuda");
}

TEST_CASE("doctor and plan say the same of a GPU of this machine", "[numerics]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", spec());
  const std::vector<std::string> environment = with_a_library(dir.path());
  const auto said = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {emulated_trainctl_path(), "--json"});
    const Outcome o = Child(words, dir.path(), environment).wait(120);
    INFO(o.err);
    REQUIRE(o.status == 0);
    return Json::parse(o.out);
  };
  const Json gpu = said({"doctor"})["facts"]["cuda"]["gpus"][0];
  const Json plan = said({"plan", "job.json", "-s", "device=cuda", "-s", "precision.compute=bf16"});
  CHECK(gpu["name"] == "NVIDIA H100 80GB HBM3");
  CHECK(plan["verdict"]["device"] == gpu["name"]);
  CHECK(gpu["free_bytes"] > trainctl::kGpuContextBytes);
  CHECK(plan["verdict"]["available_bytes"] == gpu["free_bytes"].get<uint64_t>() - trainctl::kGpuContextBytes);
  CHECK(plan["time"]["peak_flops_per_s"] == gpu["bf16_peak_flops_per_s"]);
}
