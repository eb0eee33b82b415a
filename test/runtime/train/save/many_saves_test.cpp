// Goal: a run that saves for months takes no more of its machine after the thousandth save than after
// the twentieth: memory, open files, threads, mappings, /dev/shm and the disk stay as they are.
// Method: the Savers of two ranks with their slots in shared memory, the collector and retention on the
// real file system; a census of this process and its folders after each save of a warm-up and of the
// last saves.
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <compare>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "ckpt/pieces.h"
#include "runtime/base/process_memory.h"
#include "runtime/train/save/saver.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_control.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int kRanks = 2;
/// More than half of ckpt::kShardWriterBytes, so that a thread of its own writes.
constexpr int64_t kRows = 2200, kCols = 512;
constexpr int64_t kWarmUp = 20;
/// What the heap may keep of one save and not of another: less than 1 KiB a save over a thousand of them.
constexpr int64_t kMostGrowth = int64_t(1) << 20;
/// Stacks that the C library keeps of threads that have ended, two mappings each: as many as ran at one time,
/// which may be more than in the warm-up.
constexpr size_t kMoreMappings = 16;

size_t entries_of(const std::string& folder) {
  return size_t(std::distance(std::filesystem::directory_iterator(folder), {}));
}

size_t lines_of(const std::string& path) {
  std::ifstream file(path);
  return size_t(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

struct Tree {
  size_t files = 0;
  uint64_t bytes = 0;
  explicit Tree(const std::string& folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      ++files;
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
  }
};

struct Census {
  size_t open_files, threads, disk_files, memory_files;
  uint64_t disk_bytes, memory_bytes;
  size_t mappings;
  /// Whether all is as it was `before`. A thread that has ended, with its files, leaves the system's lists a
  /// moment later, so that there may have been more of them.
  bool is_as(const Census& before) const {
    return open_files <= before.open_files && threads <= before.threads && disk_files == before.disk_files &&
           memory_files == before.memory_files && disk_bytes == before.disk_bytes &&
           memory_bytes == before.memory_bytes && mappings <= before.mappings + kMoreMappings;
  }
  auto operator<=>(const Census&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Census& c) {
  return out << fmt::format(
             "{} open files, {} threads, {} mappings; {} files with {} bytes on disk, {} with {} in memory",
             c.open_files, c.threads, c.mappings, c.disk_files, c.disk_bytes, c.memory_files, c.memory_bytes);
}

class Ranks {
 public:
  Ranks()
      : controls_(test::make_thread_control(kRanks, real_file_system(), dir(), 2, nullptr,
                                      [this](EventKind kind, const std::string&) {
                                        (kind == EventKind::checkpoint ? saved_ : failed_) += 1;
                                      })) {
    for (int rank = 0; rank < kRanks; ++rank) {
      values_.emplace_back(size_t(kRows * kCols));
      const uint64_t bytes = values_.back().size() * sizeof(float);
      savers_.push_back(std::make_unique<Saver>(
          Saver::Options{.rank = rank, .ranks = kRanks, .checkpoint_dir = dir()},
          Saver::State{.tensors = {{.name = "w", .shape = {kRanks * kRows, kCols}}},
                       .chunks =
                           [this, rank] {
                             const float* const values = values_[size_t(rank)].data();
                             const int64_t row = rank * kRows, half = kRows / 2;
                             return std::vector<ckpt::ChunkData>{
                                 {0, {row, row + half, 0, kCols}, values},
                                 {0, {row + half, row + kRows, 0, kCols}, values + half * kCols}};
                           },
                       .source = &ckpt::host_chunks()},
          *controls_[size_t(rank)], real_file_system(),
          ckpt::shared_memory(memory_.path() + "/" + ckpt::piece_file_name(rank, kRanks),
                              ckpt::memory_for_pieces(bytes, 2, 1))));
    }
  }

  /// A step of every rank, saved to the memory of the node and to the disk.
  void save(int64_t step) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      savers_[rank]->fence();
      savers_[rank]->state_changes();
      std::fill(values_[rank].begin(), values_[rank].end(), float(step));
      savers_[rank]->stage({.run_id = "many", .epoch = 1, .step = step}, {.memory = true, .directory = true},
                           {});
    }
    for (const auto& saver : savers_) REQUIRE(saver->finish(600));
  }

  Census census() const {
    const Tree disk(disk_.path()), memory(memory_.path());
    return {entries_of("/proc/self/fd"),
            entries_of("/proc/self/task"),
            disk.files,
            memory.files,
            disk.bytes,
            memory.bytes,
            lines_of("/proc/self/maps")};
  }
  int saved() const { return saved_; }
  int failed() const { return failed_; }
  std::string dir() const { return disk_.path() + "/ckpt"; }

 private:
  const TemporaryFolder disk_{"saves"}, memory_{"saves", "/dev/shm"};
  int saved_ = 0, failed_ = 0;  // changed under the controls' lock, read after finish()
  std::vector<std::unique_ptr<Control>> controls_;
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<Saver>> savers_;
};

/// Without what the heap keeps of memory that was given back: how much that is depends on which threads met.
int64_t resident_bytes_now() {
  ::malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * int64_t(::sysconf(_SC_PAGESIZE));
}

/// Saves `count` times in a row.
void save_often(int64_t count) {
  limit_heaps(2);  // as ranks do
  Ranks ranks;
  std::set<Census> usual;
  int64_t most_resident = 0;
  for (int64_t step = 1; step <= kWarmUp; ++step) {
    // The numbers of the later steps have as many digits, so texts as long.
    ranks.save(10000 + step);
    if (step > kWarmUp / 2) usual.insert(ranks.census());
    most_resident = std::max(most_resident, resident_bytes_now());
  }
  for (int64_t step = kWarmUp + 1; step <= count; ++step) ranks.save(10000 + step);
  CHECK(ranks.saved() == count);
  CHECK(ranks.failed() == 0);
  CHECK(ckpt::list_steps(real_file_system(), ranks.dir()) ==
        std::vector<int64_t>{10000 + count, 10000 + count - 1});
  Census last = ranks.census();
  const auto is_usual = [&] {
    return std::any_of(usual.begin(), usual.end(), [&](const Census& before) { return last.is_as(before); });
  };
  eventually(600, [&] { return last = ranks.census(), is_usual(); });
  const int64_t growth = resident_bytes_now() - most_resident;
  INFO("after the warm-up: " << *usual.rbegin());
  INFO("after " << count << " saves: " << last);
  CHECK(is_usual());
  CHECK(growth <= kMostGrowth);
  WARN(count << " saves: " << last << "; resident memory grew by " << growth / 1024 << " KiB");
}

}  // namespace

TEST_CASE("a hundred saves in a row leave nothing behind", "[saver]") { save_often(100); }
TEST_CASE("a thousand saves in a row leave nothing behind", "[.][soak]") { save_often(1000); }
