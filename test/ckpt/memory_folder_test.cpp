// Goal: a folder in the memory of a node has at most one owner, and a sweep never takes it from one.
// Method: an owner that takes and leaves its folder again and again while another thread sweeps; the run that
// it belongs to does not exist, so that a sweep may remove it whenever it has no owner. Other processes of
// this machine sweep, too, and a sweep that is stopped keeps the lock of a folder without an owner: what it
// refuses meanwhile is asked for again.
#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <thread>

#include "ckpt/memory_folder.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// Owns the folder, as soon as no sweep looks at it.
std::unique_ptr<ckpt::MemoryFolder> take_folder(const std::string& run) {
  std::unique_ptr<ckpt::MemoryFolder> owner;
  const auto is_taken = [&] {
    try {
      owner = ckpt::MemoryFolder::take(run, "node0");
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  REQUIRE(eventually(600, is_taken));
  return owner;
}

}  // namespace

TEST_CASE("a folder in memory has one owner, and is swept when it has none") {
  const TemporaryFolder dir;
  const std::string run = dir.path() + "/no-such-run";
  auto owner = take_folder(run);
  const std::string path = owner->path();
  CHECK_THROWS_WITH(ckpt::MemoryFolder::take(run, "node0"), Catch::Contains("another agent of this run"));
  ckpt::sweep_memory(real_clock().unix_s());
  CHECK(std::filesystem::exists(path + "/run"));
  owner.reset();
  const auto is_swept = [&] {
    ckpt::sweep_memory(real_clock().unix_s());
    return !std::filesystem::exists(path);
  };
  CHECK(eventually(600, is_swept));
}

TEST_CASE("a sweep at any moment does not remove a folder that has an owner") {
  const TemporaryFolder dir;
  std::atomic<bool> ends = false;
  std::thread sweeper([&] {
    while (!ends) ckpt::sweep_memory(real_clock().unix_s());
  });
  int missing = 0;
  for (int i = 0; i < 300; ++i) {
    const auto owner = take_folder(dir.path() + "/no-such-run");
    std::this_thread::yield();
    missing += !std::filesystem::exists(owner->path() + "/run");
  }
  ends = true;
  sweeper.join();
  ckpt::sweep_memory(real_clock().unix_s());
  CHECK(missing == 0);
}

// No sweep: with another time it would take what other tests keep.
TEST_CASE("a jump of the system's clock does not make memory old that is not", "[memory_folder]") {
  const TemporaryFolder dir;
  const std::string run = dir.path() + "/run";
  std::filesystem::create_directory(run);
  real_file_system().write_new_text(run + "/status.json", "{}");
  const double now_s = real_clock().unix_s(), year_s = 365 * 86400.0;
  auto owner = take_folder(run);
  const std::string path = owner->path();
  owner->note_alive();
  owner->note_alive();
  owner.reset();
  const auto idle_at = [&](double unix_s) {
    std::optional<double> idle_s;
    const auto is_found = [&] {
      for (const ckpt::StrayMemory& stray : ckpt::stray_memory(unix_s))
        if (stray.path == path) idle_s = stray.idle_s;
      return idle_s.has_value();
    };
    REQUIRE(eventually(600, is_found));
    return *idle_s;
  };
  // The owner died a moment ago, whatever the clock says now.
  CHECK(idle_at(now_s + year_s) < 600);
  CHECK(idle_at(now_s - year_s) < 600);
  // Its sign of life is old, too.
  const double alive_s = real_clock().monotonic_s() - 2 * ckpt::kStrayMemoryKeptS;
  const auto leave = [&](const std::string& text) {
    std::filesystem::remove(path + "/alive");
    real_file_system().write_new_text(path + "/alive", text);
  };
  if (alive_s > 0) {
    leave(std::to_string(alive_s));
    CHECK(idle_at(now_s) < 600);  // the run itself lives
    CHECK(idle_at(now_s + year_s) == Approx(2 * ckpt::kStrayMemoryKeptS).margin(600));
  }
  // One that is none, or of before the last start of the machine, does not count.
  for (const char* text : {"", "nonsense", "1e300", "-5"}) {
    leave(text);
    CHECK(idle_at(now_s + year_s) > year_s / 2);
  }
  take_folder(run)->remove();
}
