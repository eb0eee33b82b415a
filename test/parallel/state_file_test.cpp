// Goal: state in a file comes into memory part by part, at most three at a time, while the disk reads and
// writes others; nothing is lost or mixed up; the first call that fails is what the visit fails with.
// Method: a file in memory that counts, fails at its n-th call for every n, or makes a write wait for a
// later read; places of random layouts by their rules.
#include "parallel/state_file.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "parallel/sharding_plan.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::parallel;

namespace {

constexpr uint64_t kPage = 4096;

/// What a file twin knows and does; it outlives the file.
struct Disk {
  std::vector<std::byte> content;
  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0, reads = 0, writes = 0;
  int fails_at = -1;             ///< number of the call, from 0
  bool waits_for_reads = false;  ///< a write waits until the part two behind it is being read
  uint64_t reading = 0;          ///< the end of what was read or is being read
  bool met = true;
};

class TwinFile final : public File {
 public:
  explicit TwinFile(Disk& disk) : disk_(disk) {}
  void write_at(uint64_t offset, std::span<const std::byte> data) override {
    std::unique_lock lock(disk_.mutex);
    ++disk_.writes;
    count("write");
    const uint64_t wanted = std::min<uint64_t>(offset + 2 * data.size() + 1, disk_.content.size());
    if (disk_.waits_for_reads)
      disk_.met &=
          disk_.changed.wait_for(lock, std::chrono::minutes(5), [&] { return disk_.reading >= wanted; });
    std::memcpy(disk_.content.data() + offset, data.data(), data.size());
  }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.reads;
    count("read");
    disk_.reading = offset + data.size();
    disk_.changed.notify_all();
    std::memcpy(data.data(), disk_.content.data() + offset, data.size());
  }
  uint64_t size() override { return disk_.content.size(); }
  void sync() override {}

 private:
  void count(const char* what) {
    if (disk_.calls++ == disk_.fails_at)
      throw Error(ErrorCode::kIo, fmt::format("{} {} fails", what, disk_.fails_at));
  }
  Disk& disk_;
};

constexpr size_t kParts = 5;

/// Five parts of different sizes.
std::vector<uint64_t> begins_of_parts() {
  std::vector<uint64_t> begins = {0};
  for (const uint64_t pages : {2, 1, 3, 1, 2}) begins.push_back(begins.back() + pages * kPage);
  return begins;
}

struct Rig {
  std::vector<uint64_t> begins = begins_of_parts();
  Disk disk;
  StateFile file;
  Rig()
      : disk{.content = std::vector<std::byte>(begins.back(), std::byte{0xee})},
        file(std::make_unique<TwinFile>(disk), begins) {}
  std::span<uint32_t> numbers(size_t part) {
    return {reinterpret_cast<uint32_t*>(file.address() + begins[part]),
            (begins[part + 1] - begins[part]) / 4};
  }
  void fill(uint32_t with) {
    file.visit(StateAccess::write, [&](size_t part) {
      for (uint32_t& n : numbers(part)) {
        REQUIRE(n == 0);
        n = with + uint32_t(part);
      }
    });
  }
  void add(uint32_t more) {
    file.visit(StateAccess::update, [&](size_t part) {
      for (uint32_t& n : numbers(part)) n += more;
    });
  }
  bool holds(uint32_t with) {
    bool all = true;
    size_t next = 0;
    file.visit(StateAccess::read, [&](size_t part) {
      all &= part == next++;
      for (const uint32_t n : numbers(part)) all &= n == with + uint32_t(part);
    });
    return all && next == kParts;
  }
};

}  // namespace

TEST_CASE("state in a file is what was written last, part by part", "[offload]") {
  Rig rig;
  rig.fill(100);
  CHECK(rig.disk.reads == 0);
  CHECK(rig.disk.writes == int(kParts));
  CHECK(rig.holds(100));
  for (uint32_t step = 1; step <= 3; ++step) {
    rig.add(10);
    CHECK(rig.holds(100 + 10 * step));
  }
  CHECK(rig.disk.writes == int(4 * kParts));  // a visit that reads writes nothing
  rig.fill(7);
  CHECK(rig.holds(7));
}

TEST_CASE("state in a file is read at any place and length without its memory", "[offload]") {
  Rig rig;
  rig.fill(1);
  rig.file.visit(StateAccess::update, [&](size_t part) {
    for (size_t i = 0; i < rig.numbers(part).size(); ++i) rig.numbers(part)[i] = uint32_t(part * 100000 + i);
  });
  for (const auto& [from, bytes] : {std::pair<size_t, size_t>{0, 1},
                                    {1, 4096},
                                    {4095, 2},
                                    {8192, 4096},
                                    {12, 30000},
                                    {0, 36864},
                                    {36863, 1}}) {
    std::vector<std::byte> got(bytes);
    rig.file.read(rig.file.address() + from, got);
    CHECK(std::memcmp(got.data(), rig.disk.content.data() + from, bytes) == 0);
  }
  CHECK(rig.file.has(rig.file.address()));
  CHECK(!rig.file.has(rig.file.address() + rig.begins.back()));
  CHECK(!rig.file.has(nullptr));
}

TEST_CASE("the disk reads the next part but one before it has written the last", "[offload]") {
  Disk disk{.content = std::vector<std::byte>(6 * kPage), .waits_for_reads = true};
  StateFile file(std::make_unique<TwinFile>(disk),
                 {0, kPage, 2 * kPage, 3 * kPage, 4 * kPage, 5 * kPage, 6 * kPage});
  for (int step = 0; step < 3; ++step) {
    disk.reading = 0;
    file.visit(StateAccess::update, [&](size_t part) { file.address()[part * kPage] = std::byte(part + 1); });
  }
  CHECK(disk.met);
  for (size_t part = 0; part < 6; ++part) CHECK(disk.content[part * kPage] == std::byte(part + 1));
}

TEST_CASE(
    "each call of the disk may fail: the visit fails with the first, and the state is lost until all of it "
    "is new",
    "[offload]") {
  for (int at = 0;; ++at) {
    Rig rig;
    rig.fill(1);
    rig.disk.calls = 0;
    rig.disk.fails_at = at;
    std::string failure;
    try {
      rig.add(1);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIo);
      failure = error.what();
    }
    if (rig.disk.calls <= at) {
      CHECK(at == int(2 * kParts));  // each part was read and written
      break;
    }
    CHECK_THAT(failure, Catch::Contains(fmt::format("{} fails", at)));
    rig.disk.fails_at = -1;
    CHECK_THROWS_WITH(rig.add(1), Catch::Contains("is lost"));
    CHECK_THROWS_WITH(rig.holds(2), Catch::Contains("is lost"));
    rig.fill(5);
    CHECK(rig.holds(5));
  }
  Rig rig;
  rig.fill(1);
  rig.disk.calls = 0, rig.disk.fails_at = 2;
  CHECK_THROWS_WITH(rig.holds(1), Catch::Contains("read 2 fails"));
  rig.disk.fails_at = -1;
  CHECK(rig.holds(1));  // nothing was to be written
  CHECK_THROWS_WITH(rig.file.visit(StateAccess::update,
                                   [](size_t part) {
                                     if (part == 1) throw Error(ErrorCode::kHardware, "an op");
                                   }),
                    "an op");
}

TEST_CASE("places of state in a file: every row once, in parts of whole chunks, none too large",
          "[offload]") {
  const uint64_t seed = test::test_seed();
  Philox random(seed, RandomPurpose::kTest);
  INFO("TRAINCTL_TEST_SEED=" << seed);
  for (uint64_t variant = 0; variant < 60; ++variant) {
    std::vector<ParamUse> uses;
    std::vector<std::vector<Box>> grids;
    for (int i = 0; i < 9; ++i) {
      const auto below = [&](uint64_t n) {
        return int64_t(random.bits64(variant * 100 + uint64_t(i) * 4 + n % 4) % n);
      };
      ParamUse use;
      use.param = use.part = i;
      use.layout = {.name = std::to_string(i), .rows = 1 + below(60), .cols = 1 + below(9)};
      use.replicated |= axes::tensor;
      use.rule = i % 4 == 3 ? UpdateRule::balance : UpdateRule::adamw;
      use.states =
          rows_of(use.rule, {.moments = kernels::Moments(variant % 3), .averages = variant % 2 == 1});
      grids.push_back(chunk_grid(use.layout, {1}, 1 + below(64)));
      uses.push_back(use);
    }
    for (const int zero : {0, 1, 3}) {
      const sharding::Layout layout =
          sharding::make_layout(uses, grids, {.zero_stage = zero, .lanes = 4, .state_home = StateHome::file},
                                {{axes::data, 2, int(variant % 2), true}, {axes::tensor, 1, 0}});
      const sharding::StatePlaces places = sharding::place_states(layout);
      const auto owned = layout.owned_chunks();
      REQUIRE(places.rows.size() == owned.size());
      size_t next = 0, in_file = 0;
      uint64_t bytes = 0;
      for (const auto& part : places.parts) {
        CHECK((part.begin == next && part.end > part.begin));
        next = part.end;
        const uint64_t begin = part.in_file ? places.begins[in_file] : 0,
                       end = part.in_file ? places.begins[++in_file] : 0;
        uint64_t free_from = begin;
        for (size_t i = part.begin; i < part.end; ++i) {
          const bool balance = uses[size_t(owned[i].chunk.use)].rule == UpdateRule::balance;
          CHECK(balance == !part.in_file);
          CHECK(places.rows[i].size() == (balance ? 0 : layout.group(owned[i].group).key.states.size()));
          for (size_t row = 0; row < places.rows[i].size(); ++row) {
            CHECK(places.rows[i][row] >= free_from);
            CHECK(places.rows[i][row] % 64 == 0);
            const int64_t count = owned[i].chunk.where.global.count();
            const size_t size =
                layout.group(owned[i].group).key.states[row].bytes(count, kernels::moment_blocks(count));
            free_from = places.rows[i][row] + size;
            bytes += size;
          }
        }
        CHECK(free_from <= (part.in_file ? end : 0));
        if (part.in_file) CHECK((begin % kPage == 0 && free_from - begin <= layout.plan.state_part));
      }
      CHECK(next == owned.size());
      CHECK(in_file + 1 == places.begins.size());
      CHECK(bytes == layout.bytes().state_file);
    }
  }
}
