// Goal: a run whose state is on disk survives the kill of a rank, leaves nothing on the disk, and goes on in
// memory and back with the bits of the undisturbed run; a folder that is no local disk ends it with one
// sentence. Method: the real program, as in fault_test.cpp.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/fault_bench.h"

using namespace trainctl::test;

namespace {

/// Of a process, a path to its file without a name in `folder`; "": it has none.
std::string scratch_file_of(pid_t pid, const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().starts_with(folder + "/"))
      return entry.path().string();
  }
  return "";
}

}  // namespace

TEST_CASE("a rank with its state on disk is killed: nothing is left, and the bits are kept",
          "[fault][offload]") {
  FaultBench bench;
  const TemporaryFolder scratch("offload", ".");  // not in /tmp, which may be memory
  const std::string folder = "optimizer.offload_directory=" + scratch.path();
  const auto held = bench.hold("disk", 7, {"-s", "device=cpu", "-s", "optimizer.offload=disk", "-s", folder});
  for (const pid_t rank : held.ranks) CHECK(!scratch_file_of(rank, scratch.path()).empty());
  REQUIRE(::kill(held.ranks[1], SIGKILL) == 0);
  const Outcome o = held.child->wait(120);
  INFO(o.err);
  CHECK(o.status != 0);
  bench.require_nothing_left(held.run);
  CHECK(std::filesystem::is_empty(scratch.path()));
  bench.resume_and_compare(held.run, {"optimizer.offload=none", "parallelism.data=4",
                                      "parallelism.pipeline=1", "parallelism.zero_stage=3"});
}

TEST_CASE("a disk that loses what was written fails the rank by name, and no checkpoint is lost",
          "[fault][offload]") {
  FaultBench bench;
  const TemporaryFolder scratch("offload", ".");
  const auto held = bench.hold("lost", 7,
                               {"-s", "device=cpu", "-s", "optimizer.offload=disk", "-s",
                                "optimizer.offload_directory=" + scratch.path()});
  REQUIRE(::truncate(scratch_file_of(held.ranks[2], scratch.path()).c_str(), 0) == 0);
  held.go_on();
  const Outcome o = held.child->wait(120);
  INFO(o.err);
  CHECK(o.status == 5);
  CHECK_THAT(o.err, Catch::Contains("root cause  rank 2") && Catch::Contains("ends at byte 0 of") &&
                        Catch::Contains("optimizer.offload_directory"));
  bench.require_nothing_left(held.run);
  bench.resume_and_compare(held.run, {"optimizer.offload=disk"});
}

TEST_CASE("a run that lost a rank goes on with its state on disk", "[fault][offload]") {
  FaultBench bench;
  const auto held = bench.hold("memory", 7);
  REQUIRE(::kill(held.ranks[1], SIGKILL) == 0);
  CHECK(held.child->wait(120).status != 0);
  const TemporaryFolder scratch("offload", ".");
  bench.resume_and_compare(held.run,
                           {"optimizer.offload=disk", "optimizer.offload_directory=" + scratch.path(),
                            "parallelism.data=3", "parallelism.pipeline=1"});
}

TEST_CASE("a folder for state on disk that is in memory or missing ends the run with a sentence",
          "[input][offload]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  for (const auto& [folder, text] :
       {std::pair<std::string, std::string>{"/dev/shm",
                                            "/dev/shm is on memory (tmpfs), not on a local disk; name"},
        {dir.path() + "/none", dir.path() + "/none does not exist on this node; make it"}}) {
    const Outcome o =
        run_trainctl(dir.path(), {"launch", "job.json", "-s", "device=cpu", "-s", "optimizer.offload=disk",
                                  "-s", "optimizer.offload_directory=" + folder});
    INFO(o.err);
    CHECK(o.status == 5);
    CHECK_THAT(o.err, Catch::Contains("optimizer.offload_directory " + text));
  }
}
