// Goal: many boxes read at once are those read one by one, whatever lies between them in the files, and from
// whichever store; damage and failing reads are found and said. Method: a state of some megabytes whose chunks
// begin nowhere near a page, on a real disk; all boxes in random order, some of them twice, shared, or cut
// across chunks. The blocks that are read are checked against their definition with random ranges.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <set>

#include "ckpt/chunk_stream.h"
#include "ckpt/read_ahead.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/error_text.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/seed.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using ckpt::FileRange;

namespace {

constexpr int64_t kRows = 5000, kCols = 999;

/// Two tensors of 20 MB in chunks of 1 row to 4 MB.
PlainState large_state() {
  PlainState state;
  state.info = {.run_id = "large", .epoch = 1, .step = 5};
  std::mt19937_64 random(3);
  for (const char* name : {"a", "b"}) {
    state.tensors.push_back({.name = name, .shape = {kRows, kCols}});
    std::vector<std::byte> values(size_t(kRows * kCols) * sizeof(float));
    for (std::byte& value : values) value = std::byte(random());
    state.values.push_back(std::move(values));
    auto& grid = state.grids.emplace_back();
    for (int64_t row = 0; row < kRows; row = grid.back().row_end)
      grid.push_back({row, std::min(kRows, row + 1 + int64_t(random() % 1000)), 0, kCols});
  }
  return state;
}

struct Wanted {
  size_t tensor;
  parallel::Box box;
  std::vector<std::byte> out;
};

std::vector<ckpt::BoxRead> reads_of(const PlainState& state, std::vector<Wanted>& wanted, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<ckpt::BoxRead> reads;
  for (Wanted& one : wanted) {
    one.out.assign(size_t(one.box.count()) * sizeof(float), std::byte{});
    reads.push_back({.name = state.tensors[one.tensor].name,
                     .box = one.box,
                     .out = one.out.data(),
                     .is_shared = random() % 4 == 0});
  }
  std::shuffle(reads.begin(), reads.end(), random);
  return reads;
}

std::vector<Wanted> all_chunks(const PlainState& state) {
  std::vector<Wanted> wanted;
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const parallel::Box& box : state.grids[t]) wanted.push_back({t, box, {}});
  return wanted;
}

}  // namespace

TEST_CASE("many boxes at once are read as one by one") {
  const PlainState state = large_state();
  const TemporaryFolder disk("read-all");
  PowerLossFileSystem memory;
  save(real_file_system(), disk.path(), state, 2);
  save(memory, "/ckpt", state, 2);
  for (const uint64_t seed : test_seeds(4)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<Wanted> wanted = all_chunks(state);
    std::erase_if(wanted, [&](const Wanted&) { return random() % 3 == 0; });  // leaves holes in the files
    wanted.push_back(wanted[random() % wanted.size()]);
    wanted.push_back({0, {100, 3000, 0, kCols}, {}});
    wanted.push_back({1, {7, 2100, 3, 500}, {}});
    uint64_t bytes = 0;
    for (const Wanted& one : wanted) bytes += uint64_t(one.box.count()) * sizeof(float);
    for (const bool is_real : {true, false}) {
      const auto reads = reads_of(state, wanted, seed);
      const auto checkpoint =
          is_real ? ckpt::Checkpoint::open(real_file_system(), ckpt::step_directory(disk.path(), 5))
                  : ckpt::Checkpoint::open(memory, "/ckpt/step-00000005");
      uint64_t got = 0;
      checkpoint->read_all(reads, [&](uint64_t more) { got += more; });
      CHECK(got == bytes);
      for (const Wanted& one : wanted) {
        INFO(fmt::format("tensor {}, rows {} to {}", one.tensor, one.box.row_begin, one.box.row_end));
        REQUIRE(one.out == cut_out(state, one.tensor, one.box));
      }
    }
  }
}

TEST_CASE("of many boxes at once the damaged one is named") {
  const PlainState state = large_state();
  const TemporaryFolder disk("read-all");
  save(real_file_system(), disk.path(), state, 1);
  const std::string folder = ckpt::step_directory(disk.path(), 5);
  const std::string shard = folder + "/" + ckpt::shard_file_name(0, 1);
  std::vector<Wanted> wanted = all_chunks(state);
  const auto entries = ckpt::Checkpoint::open(real_file_system(), folder)->files().front().entries;
  for (const size_t i : {size_t(0), entries.size() / 2, entries.size() - 1})
    for (const uint64_t at : {entries[i].offset, entries[i].offset + entries[i].bytes - 1}) {
      const auto flip = [&] {
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(int64_t(at));
        const char value = char(file.get());
        file.seekp(int64_t(at));
        file.put(char(value ^ 16));
      };
      flip();
      const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), folder);
      CHECK_THAT(error_text(ErrorCode::kCheckpoint, [&] { checkpoint->read_all(reads_of(state, wanted, i), [](uint64_t) {}); }),
                 Catch::Contains(fmt::format("is damaged: the hash of {} [{}:{}", entries[i].tensor,
                                             entries[i].box.row_begin, entries[i].box.row_end)) ||
                     Catch::Contains(fmt::format("at byte {} differs", entries[i].offset)));
      flip();
    }
  const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), folder);
  std::filesystem::resize_file(shard, entries.back().offset + 5);
  CHECK_THAT(error_text(ErrorCode::kCheckpoint, [&] { checkpoint->read_all(reads_of(state, wanted, 1), [](uint64_t) {}); }),
             Catch::Contains(shard + " ends at byte"));
}

TEST_CASE("blocks cover what is wanted of a file, and no page more") {
  constexpr uint64_t kPage = 4096, kMost = 4 * kPage;
  for (const uint64_t seed : test_seeds(300)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<FileRange> ranges;
    std::set<uint64_t> pages;
    uint64_t at = random() % 9000;
    for (uint64_t n = random() % 20; n > 0; --n) {
      ranges.push_back({at, 1 + random() % (random() % 2 ? 100 : 40000)});
      for (uint64_t p = at / kPage; p * kPage < ranges.back().end(); ++p) pages.insert(p);
      at = ranges.back().end() + (random() % 2 ? 0 : random() % 20000);
    }
    const uint64_t file_bytes = at;
    std::set<uint64_t> covered;
    uint64_t end = 0;
    for (const FileRange& block : ckpt::blocks_over(ranges, file_bytes, kMost)) {
      CHECK(block.offset >= end);
      end = block.end();
      CHECK((block.bytes > 0 && block.bytes <= kMost && end <= file_bytes));
      CHECK(block.offset % kPage == 0);
      CHECK((end % kPage == 0 || end == file_bytes));
      for (uint64_t p = block.offset / kPage; p * kPage < end; ++p) covered.insert(p);
    }
    CHECK(covered == pages);
  }
}

TEST_CASE("reading ahead has a bound, and ends with the first error of either side") {
  std::atomic<size_t> reads = 0, uses = 0;
  std::atomic<bool> is_in_order = true;
  size_t most = 0;
  ckpt::read_ahead(
      100, {.most = 3}, [&](size_t i) { is_in_order = is_in_order && i == reads++; },
      [&](size_t i) { is_in_order = is_in_order && i == uses++ && reads > i; });
  CHECK((is_in_order && uses == 100));
  reads = uses = 0;
  ckpt::read_ahead(
      50, {.most = 3}, [&](size_t) { most = std::max(most, ++reads - uses); }, [&](size_t) { ++uses; });
  CHECK(most <= 4);  // the one that is being used counts as read
  reads = uses = 0;
  const auto fails = [](const char* what) { throw Error(ErrorCode::kIo, what); };
  CHECK_THROWS_WITH(ckpt::read_ahead(
                        9, {.most = 2}, [&](size_t i) { i == 4 ? fails("of a read") : void(++reads); },
                        [&](size_t) { ++uses; }),
                    "of a read");
  CHECK((reads == 4 && uses == 4));
  reads = 0;
  CHECK_THROWS_WITH(ckpt::read_ahead(
                        9, {.most = 2}, [&](size_t) { ++reads; },
                        [&](size_t i) {
                          if (i == 4) fails("of a use");
                        }),
                    "of a use");
  CHECK(reads <= 6);
  ckpt::read_ahead(
      0, {}, [&](size_t) { FAIL(); }, [&](size_t) { FAIL(); });
}

TEST_CASE(
    "several readers read each once, within the bound, and the first failure in order is the one thrown") {
  for (const size_t readers : {size_t(2), size_t(4), size_t(9)}) {
    constexpr size_t kCount = 500, kMost = 5;
    std::vector<int> reads(kCount);
    size_t begun = 0, used = 0, most = 0;
    std::mutex counts;
    ckpt::read_ahead(
        kCount, {.most = kMost, .readers = readers},
        [&](size_t i) {
          const std::lock_guard lock(counts);
          ++reads[i];
          most = std::max(most, ++begun - used);
        },
        [&](size_t i) {
          const std::lock_guard lock(counts);
          if (i != used || reads[i] != 1)
            throw Error(ErrorCode::kInternal, fmt::format("{} out of order", i));
          ++used;
        });
    CHECK(used == kCount);
    CHECK(most <= kMost + 1);  // the one that is being used counts
    used = 0;
    CHECK_THROWS_WITH(ckpt::read_ahead(
                          kCount, {.most = kMost, .readers = readers},
                          [&](size_t i) {
                            if (i == 40 || i == 42) throw Error(ErrorCode::kIo, fmt::format("read {}", i));
                          },
                          [&](size_t) { ++used; }),
                      "read 40");
    CHECK(used == 40);
  }
}

TEST_CASE("loading on another mesh takes no more memory than the plan counts") {
  const PlainState state = large_state();  // 40 MB
  const TemporaryFolder disk("read-all");
  save(real_file_system(), disk.path(), state, 16);
  REQUIRE(std::ofstream("/proc/self/clear_refs").good());
  // Halves of all columns: no chunk goes to where it belongs as it is.
  std::vector<Wanted> wanted;
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const int64_t begin : {int64_t(0), kCols / 2})
      wanted.push_back({t, {0, kRows, begin, begin == 0 ? kCols / 2 : kCols}, {}});
  std::vector<ckpt::BoxRead> reads = reads_of(state, wanted, 1);
  for (const bool is_shared : {false, true}) {
    for (ckpt::BoxRead& read : reads) read.is_shared = is_shared;
    const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), ckpt::step_directory(disk.path(), 5));
    checkpoint->read_all(reads, [](uint64_t) {});                 // threads and heaps have what they need
    std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // the peak begins at what is resident now
    const uint64_t before = peak_resident_bytes();
    checkpoint->read_all(reads, [](uint64_t) {});
    CHECK(peak_resident_bytes() - before <= ckpt::kReaderBytes + (size_t(1) << 20));
    for (const Wanted& one : wanted) REQUIRE(one.out == cut_out(state, one.tensor, one.box));
  }
}
