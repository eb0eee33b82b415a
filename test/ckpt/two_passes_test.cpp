// Goal: a shard that is hashed and written at the same time holds the state of one moment, or its save is
// void; its bytes and receipt are those of one pass after the other; errors end both passes. Method: the
// state changes as a whole before each piece in turn that either pass reads, several times each, because the
// threads run freely; then failing writes and a failing source.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cstring>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "ckpt/shard_layout.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kPassCols = 1024, kPassRows = 3072;  // 12 MiB
static_assert(kPassRows * kPassCols * sizeof(float) > ckpt::kShardWriterBytes);
constexpr size_t kPieceBytes = size_t(1) << 20;
constexpr int kPieces = 2 * 12;  // of both passes
constexpr int kRounds = 2;
const ckpt::StateInfo kInfo{.run_id = "r", .step = 1};
const std::vector<ckpt::Tensor> kTensors{{"w", ckpt::Role::master, DType::f32, {kPassRows, kPassCols}}};

/// Every value is the number of changes so far.
class Values {
 public:
  explicit Values(int chunks) : chunks_(chunks), values_(kPassRows * kPassCols) {}
  std::vector<ckpt::ChunkData> chunks() const {
    std::vector<ckpt::ChunkData> list;
    const int64_t rows = kPassRows / chunks_;
    for (int64_t i = 0; i < chunks_; ++i)
      list.push_back({0, {i * rows, (i + 1) * rows, 0, kPassCols}, values_.data() + i * rows * kPassCols});
    return list;
  }
  void change() {
    const std::unique_lock lock(mutex_);
    for (float& value : values_) value += 1;
  }
  auto unchanged() { return std::shared_lock(mutex_); }

 private:
  const int chunks_;
  std::vector<float> values_;
  std::shared_mutex mutex_;
};

/// Reads in pieces, and does something before one of them: it is done before any later piece is read.
class ReadInPieces final : public ckpt::ChunkSource {
 public:
  ReadInPieces(Values& values, int at, std::function<void()> then)
      : values_(values), at_(at), then_(std::move(then)) {}
  void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
    for (size_t i = 0; i < chunks.size(); ++i)
      for (size_t done = 0; done < chunks[i].size(); done += kPieceBytes) {
        {
          const std::lock_guard one_at_a_time(mutex_);
          if (count_++ == at_) then_();
        }
        const auto lock = values_.unchanged();
        take(i, chunks[i].subspan(done, kPieceBytes));
      }
  }
  bool is_for_threads() const override { return true; }

 private:
  Values& values_;
  const int at_;
  const std::function<void()> then_;
  std::mutex mutex_;
  int count_ = 0;
};

ckpt::ShardReceipt write_values(FileSystem& fs, const Values& values, ckpt::ChunkSource& source) {
  ckpt::prepare_saving(fs, "/c", kInfo);
  return ckpt::write_shard(fs, ckpt::saving_directory("/c", kInfo), "s.safetensors", kInfo, kTensors,
                           values.chunks(), source);
}

/// The different values in the file of a receipt.
std::set<float> values_in(const PowerLossFileSystem& fs, const ckpt::ShardReceipt& receipt) {
  const std::string file = fs.files().at(ckpt::saving_directory("/c", kInfo) + "/" + receipt.file);
  std::set<float> found;
  for (const auto& entry : receipt.entries)
    for (uint64_t at = entry.offset; at < entry.offset + entry.bytes; at += sizeof(float)) {
      float value;
      std::memcpy(&value, file.data() + at, sizeof value);
      if (found.empty() || *found.rbegin() != value) found.insert(value);
    }
  return found;
}

}  // namespace

TEST_CASE("a state that changes while it is hashed and written is saved as of one moment or not at all") {
  for (const int chunks : {1, 6}) {
    int whole = 0, changed = 0;
    for (int round = 0; round < kRounds; ++round)
      for (int at = 0; at <= kPieces; ++at) {
        INFO(fmt::format("{} chunks, a change before piece {}, round {}", chunks, at, round));
        Values values(chunks);
        ReadInPieces source(values, at, [&] { values.change(); });
        PowerLossFileSystem fs;
        try {
          const ckpt::ShardReceipt receipt = write_values(fs, values, source);
          CHECK(values_in(fs, receipt).size() == 1);
          ++whole;
        } catch (const Error& error) {
          CHECK_THAT(error.what(), Catch::Contains("w changed in memory while it was being saved") ||
                                       Catch::Contains("] changed in memory while it was being saved"));
          ++changed;
        }
      }
    CHECK(whole >= 2 * kRounds);  // before all, after all
    CHECK(changed > 0);
  }
}

TEST_CASE("a shard that is hashed and written at once is that of one pass after the other") {
  struct OneAfterTheOther final : ckpt::ChunkSource {
    void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
      ckpt::host_chunks().read(chunks, take);
    }
  } one_after_the_other;
  const Values values(6);
  PowerLossFileSystem fs, expected_fs;
  const std::string expected = write_values(expected_fs, values, one_after_the_other).to_json();
  CHECK(write_values(fs, values, ckpt::host_chunks()).to_json() == expected);
  CHECK(fs.files() == expected_fs.files());
}

TEST_CASE("an error ends the pass that hashes and the pass that writes") {
  Values values(6);
  SECTION("of a write: the file is written once more under another name") {
    PowerLossFileSystem fs;
    ckpt::prepare_saving(fs, "/c", kInfo);
    fs.fail_at(4, Fault::io_error_once);  // create, write, write, write
    const auto receipt = ckpt::write_shard(fs, ckpt::saving_directory("/c", kInfo), "s.safetensors", kInfo,
                                           kTensors, values.chunks());
    CHECK(receipt.file == "s.retry.safetensors");
    CHECK(values_in(fs, receipt).size() == 1);
    CHECK(receipt.entries.size() == 6);
  }
  SECTION("of every write") {
    PowerLossFileSystem fs;
    ckpt::prepare_saving(fs, "/c", kInfo);
    fs.fail_at(4, Fault::io_error_from_here);
    CHECK_THROWS_WITH(ckpt::write_shard(fs, ckpt::saving_directory("/c", kInfo), "s.safetensors", kInfo,
                                        kTensors, values.chunks()),
                      Catch::Contains("Input/output error"));
  }
  SECTION("of the source, in either pass") {
    for (int at = 0; at < kPieces; ++at) {
      ReadInPieces source(values, at, [] { throw Error(ErrorCode::kPeerLost, "the device is lost"); });
      PowerLossFileSystem fs;
      CHECK_THROWS_WITH(write_values(fs, values, source), Catch::Contains("the device is lost"));
    }
  }
}
