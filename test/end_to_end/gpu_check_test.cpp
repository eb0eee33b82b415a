// Goal: scripts/gpu_check.sh, which a GPU is needed for, is right about everything else: its job specs are valid, a machine without a GPU
// is told apart from one where a check fails, a part that fails stops no other, and both reports hold what the parts left.
// Method: the script with a made-up GPU (an nvidia-smi of our own) and a made-up bundle whose programs say what a part should find.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/json.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
using namespace trainctl::test;
namespace fs = std::filesystem;

namespace {

const std::string kScript = std::string(TRAINCTL_SOURCE_DIR) + "/scripts/gpu_check.sh";

void write_program(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  write_file(path, "#!/bin/bash\n" + text);
  fs::permissions(path, fs::perms::owner_all);
}

/// A bundle and an nvidia-smi below `folder`. Its trainctl knows doctor alone: each launch fails.
void make_up_a_gpu(const std::string& folder, const std::string& test_gpu) {
  write_program(folder + "/path/nvidia-smi", R"sh(case "$1" in
  -L) echo "GPU 0: Imaginary (UUID: x)" ;;
  --query*) echo '0, Imaginary "9000" | X, 580.1, 1 MiB, 10 MHz, 5 W' ;;
esac
)sh");
  const std::string bundle = folder + "/a bundle";
  write_program(bundle + "/bin/trainctl", R"([ "$1" = doctor ] || exit 10
[ "$2" = --json ] && printf '{"v": 1,\n "gpu_runs": true}\n' || echo well
)");
  write_program(bundle + "/bin/test_gpu", test_gpu);
  write_program(bundle + "/bin/bench_cuda_kernels", R"(echo '{"device":"x","copy_gb_per_s":3}'
echo '{"model":"gpt2","op":"linear","shape":[1,2],"us":12.50,"tflops":3.20,"of_product":0.750}'
echo '{"model":"gpt2","op":"norm","shape":[1,2],"us":1e-1,"gb_per_s":3.2,"of_copy":0.5}'
)");
  write_program(bundle + "/bin/bench_gpu_streams", R"(echo '{"part":"queues","streams":40,"queues":32}'
)");
  for (const char* part : {"test/golden", "scripts/jobs"}) {
    fs::create_directories(bundle + "/" + part);
    fs::copy(std::string(TRAINCTL_SOURCE_DIR) + "/" + part, bundle + "/" + part, fs::copy_options::recursive);
  }
}

/// `times`: its limits as multiples of those of a machine with nothing else to do.
Outcome check(const std::string& folder, std::vector<std::string> words,
              const std::string& times = fmt::format("GPU_CHECK_TIMES={}", int(kSlowMachine))) {
  words.insert(words.begin(), kScript);
  return Child(words, folder, {"PATH=" + folder + "/path:/usr/bin:/bin", times}).wait(120);
}

const Json& part(const Json& report, const std::string& name) {
  for (const Json& p : report["parts"])
    if (p["name"] == name) return p;
  FAIL("no part " << name);
  return report;
}

}  // namespace

TEST_CASE("job specs for a GPU are valid", "[input]") {
  const TemporaryFolder dir;
  int specs = 0;
  for (const auto& entry : fs::directory_iterator(std::string(TRAINCTL_SOURCE_DIR) + "/scripts/jobs/gpu")) {
    const Outcome o = run_trainctl(dir.path(), {"validate", entry.path().string(), "--no-data", "-s", "device=cpu"});
    INFO(entry.path() << "\n" << o.err);
    CHECK(o.status == 0);
    ++specs;
  }
  CHECK(specs >= 10);
}

TEST_CASE("gpu_check says that there is no GPU, and its plan needs none", "[input]") {
  const TemporaryFolder dir;
  write_program(dir.path() + "/path/nvidia-smi", "exit 9\n");
  const Outcome none = check(dir.path(), {"--out", "report"});
  CHECK(none.status == 77);
  CHECK(none.out.find("there is no NVIDIA GPU here") != std::string::npos);
  CHECK_FALSE(fs::exists(dir.path() + "/report"));
  const Outcome plan = check(dir.path(), {"--plan"}, "GPU_CHECK_TIMES=1");
  CHECK(plan.status == 0);
  for (const char* name : {"facts", "tests", "golden", "bits", "steps", "streams", "kernels", "sanitizer",
                           "peer", "whole       540 s"})
    CHECK(plan.out.find(name) != std::string::npos);
  CHECK(check(dir.path(), {"--unknown"}).status == 2);
}

TEST_CASE("gpu_check goes on after a part that fails and reports all of them", "[input]") {
  const TemporaryFolder dir;
  make_up_a_gpu(dir.path(), "case \"$*\" in *list-test-names*) exit 0 ;; esac\necho 'All tests passed (12 assertions in 3 test cases)'\n");
  const Outcome o = check(dir.path(), {"--bundle", "a bundle", "--out", "report", "--quick"});
  INFO(o.out << o.err);
  CHECK(o.status == 1);
  const Json report = Json::parse(read_file(dir.path() + "/report/gpu-check.json"));
  CHECK(report["gpu"] == "Imaginary \"9000\" | X");
  CHECK(report["ok"] == false);
  CHECK(report["doctor"]["gpu_runs"] == true);
  CHECK(report["parts"].size() == 9);
  CHECK(part(report, "facts")["status"] == "passed");
  CHECK(part(report, "tests")["status"] == "passed");
  CHECK(part(report, "tests")["rows"][0]["result"] == "All tests passed (12 assertions in 3 test cases)");
  CHECK(part(report, "golden")["status"] == "failed");
  CHECK(part(report, "golden")["rows"].size() == 8);
  CHECK(part(report, "golden")["rows"][0]["worst"] == "none");
  CHECK(part(report, "bits")["status"] == "failed");
  CHECK(part(report, "bits")["rows"][0]["bits"] == "failed");
  CHECK(part(report, "steps")["status"] == "failed");
  CHECK(part(report, "kernels")["status"] == "passed");
  CHECK(part(report, "kernels")["rows"].size() == 2);
  CHECK(part(report, "kernels")["rows"][1] ==
        Json::parse(R"({"label": "gpt2 norm", "us": 0.1, "gb_per_s": 3.2, "of_copy": 0.5})"));
  CHECK(part(report, "streams")["rows"] ==
        Json::parse(R"([{"label": "queues", "streams": 40, "queues": 32}])"));
  CHECK(part(report, "peer")["status"] == "skipped");
  const std::string table = read_file(dir.path() + "/report/gpu-check.md");
  CHECK(table.find("# Imaginary \"9000\" | X\n") == 0);
  CHECK(table.find("| gpu 0 | Imaginary \"9000\" \\| X | 580.1 |") != std::string::npos);
  CHECK(table.find("|  | us | tflops | of_product |\n|---|---|---|---|\n| gpt2 linear | 12.50 | 3.20 | 0.750 |") != std::string::npos);
}

TEST_CASE("a test program that fails fails the check", "[input]") {
  const TemporaryFolder dir;
  make_up_a_gpu(dir.path(), "echo 'test cases: 3 | 1 failed'\nexit 1\n");
  check(dir.path(), {"--bundle", "a bundle", "--out", "report", "--quick"});
  const Json report = Json::parse(read_file(dir.path() + "/report/gpu-check.json"));
  CHECK(part(report, "tests")["status"] == "failed");
  CHECK(part(report, "tests")["rows"][0]["result"] == "test cases: 3 | 1 failed");
}
