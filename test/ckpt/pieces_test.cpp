// Goal: a piece in the memory of a node is the shard of a checkpoint, byte for byte; it outlives its
// writer; the newest sealed piece, or the one that is to be kept, is never touched; what is damaged is found
// and said. Method: states in plain arrays, dealt out to three ranks; real files in /dev/shm; a writer that
// is killed while it copies.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <random>

#include "ckpt/counting_file_system.h"
#include "ckpt/pieces.h"
#include "ckpt/shard_layout.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// The chunks of a state, dealt out to `ranks` ranks; the last rank owns nothing.
struct Dealt {
  Dealt(const PlainState& plain, int ranks) : state(plain), chunks(size_t(ranks)) {
    std::mt19937_64 random(7);
    for (size_t t = 0; t < state.tensors.size(); ++t)
      for (const parallel::Box& box : state.grids[t]) {
        held.push_back(cut_out(state, t, box));
        chunks[random() % size_t(ranks - 1)].push_back({int(t), box, held.back().data()});
      }
  }
  uint64_t bytes(int rank) const {
    uint64_t sum = 0;
    for (const ckpt::ChunkData& c : chunks[size_t(rank)]) sum += uint64_t(c.box.count()) * sizeof(float);
    return sum;
  }
  PlainState state;
  std::vector<std::vector<std::byte>> held;
  std::vector<std::vector<ckpt::ChunkData>> chunks;
};

constexpr int kRanks = 3;

/// One rank's slots in a folder of the memory file system.
struct Slots {
  Slots(const std::string& folder, const Dealt& dealt, int rank)
      : path(folder + "/" + ckpt::piece_file_name(rank, kRanks)),
        memory(ckpt::shared_memory(
            path, ckpt::memory_for_pieces(dealt.bytes(rank), dealt.chunks[size_t(rank)].size(),
                                          dealt.state.tensors.size()))),
        writer(*memory, path, rank, kRanks) {}
  std::string path;
  std::unique_ptr<ckpt::NodeMemory> memory;
  ckpt::PieceWriter writer;
};

void copy(Slots& slots, const Dealt& dealt, int rank, ckpt::ChunkSource& source = ckpt::host_chunks()) {
  slots.writer.copy(dealt.state.info, dealt.state.tensors, dealt.chunks[size_t(rank)], source);
}

std::vector<int64_t> steps_of(const std::vector<ckpt::FoundPiece>& pieces, int rank) {
  std::vector<int64_t> steps;
  for (const auto& piece : pieces)
    if (piece.rank == rank && piece.piece) steps.push_back(piece.step);
  return steps;
}

/// Calls `at_end` when all chunks have been read.
class Watched final : public ckpt::ChunkSource {
 public:
  Watched(std::function<void()> at_end, size_t stop_after)
      : at_end_(std::move(at_end)), stop_after_(stop_after) {}
  void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i == stop_after_) at_end_();
      take(i, chunks[i]);
    }
  }

 private:
  std::function<void()> at_end_;
  size_t stop_after_;
};

const auto kReadNow = [](const std::function<void()>& read) { read(); };

}  // namespace

TEST_CASE("the pieces of all ranks are the shards of a checkpoint") {
  const TemporaryFolder memory("pieces", "/dev/shm");
  const TemporaryFolder disk("pieces");
  FileSystem& fs = real_file_system();
  const Dealt dealt(make_state(1, 10), kRanks);
  const std::string dir = disk.path() + "/ckpt";
  ckpt::prepare_saving(fs, dir, dealt.state.info);
  const auto saving = ckpt::directory_store(fs, dir)->saving(dealt.state.info);
  std::vector<ckpt::ShardReceipt> receipts;
  for (int rank = 0; rank < kRanks; ++rank) {
    Slots slots(memory.path(), dealt, rank);
    copy(slots, dealt, rank);
    CHECK(slots.writer.open(10) == nullptr);  // not sealed yet
    const ckpt::Piece piece = slots.writer.seal();
    slots.writer.check();
    CHECK(piece.rank == rank);
    receipts.push_back(ckpt::write_piece(*slots.writer.open(10), piece, *saving, kReadNow));
    CHECK(receipts.back().file.empty() == (rank == kRanks - 1));
  }
  std::erase_if(receipts, [](const auto& receipt) { return receipt.file.empty(); });
  const std::string root = ckpt::publish(fs, dir, dealt.state.info, dealt.state.tensors, receipts);
  const auto checkpoint = ckpt::Checkpoint::open(fs, ckpt::step_directory(dir, 10));
  CHECK(reads_back(*checkpoint, dealt.state));
  CHECK(ckpt::verify(*checkpoint).findings.empty());
  CHECK(root == save(fs, disk.path() + "/other", dealt.state, 2));

  const auto pieces = ckpt::list_pieces(fs, memory.path());
  REQUIRE(pieces.size() == kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    const ckpt::FoundPiece& piece = pieces[size_t(rank)];
    INFO(piece.problem);
    REQUIRE(piece.piece);
    CHECK((piece.rank == rank && piece.step == 10 && piece.ranks == kRanks));
    CHECK(piece.piece->state.extra_json == dealt.state.info.extra_json);
    CHECK(piece.piece->tensors == dealt.state.tensors);
    const std::string file = piece.piece->receipt.file;
    if (file.empty()) continue;
    CHECK(piece.open()->read_text(file) == fs.read_text(ckpt::step_directory(dir, 10) + "/" + file));
  }
  CHECK(ckpt::list_pieces(fs, memory.path() + "/absent").empty());
}

TEST_CASE("a writer that is killed while it copies leaves the newest sealed piece") {
  const TemporaryFolder memory("pieces", "/dev/shm");
  const Dealt first(make_state(1, 10), kRanks), second(make_state(1, 11), kRanks),
      third(make_state(1, 12), kRanks);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Slots slots(memory.path(), first, 0);
    for (const Dealt* dealt : {&first, &second}) {
      copy(slots, *dealt, 0);
      slots.writer.seal();
    }
    Watched killed([] { ::kill(::getpid(), SIGKILL); }, 2);
    copy(slots, third, 0, killed);
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  CHECK(steps_of(ckpt::list_pieces(real_file_system(), memory.path()), 0) == std::vector<int64_t>{11});
  // The next process of the rank goes on with the same file.
  Slots again(memory.path(), first, 0);
  copy(again, third, 0);
  again.writer.drop();
  CHECK(steps_of(ckpt::list_pieces(real_file_system(), memory.path()), 0) == std::vector<int64_t>{11});
  copy(again, third, 0);
  again.writer.seal();
  CHECK(steps_of(ckpt::list_pieces(real_file_system(), memory.path()), 0) == std::vector<int64_t>{12, 11});
}

TEST_CASE("a copy that differs from its source is found and removed") {
  const TemporaryFolder memory("pieces", "/dev/shm");
  const Dealt first(make_state(1, 10), kRanks), second(make_state(1, 11), kRanks);
  Slots slots(memory.path(), first, 0);
  copy(slots, first, 0);
  slots.writer.seal();
  copy(slots, second, 0);
  const ckpt::Piece piece = slots.writer.seal();
  // One bit of the last chunk, in the second slot.
  const uint64_t at = slots.memory->size() / 2 + 64 + piece.receipt.entries.back().offset;
  std::byte byte;
  slots.memory->read(at, {&byte, 1});
  byte ^= std::byte(4);
  slots.memory->write(at, {&byte, 1});
  const TemporaryFolder disk("pieces");
  const auto saving = ckpt::directory_store(real_file_system(), disk.path())->saving(second.state.info);
  saving->begin();
  CHECK_THROWS_WITH(ckpt::write_piece(*slots.writer.open(11), piece, *saving, kReadNow),
                    Catch::Contains("changed in memory while it was being saved"));
  CHECK_THROWS_WITH(slots.writer.check(), Catch::Contains("changed in memory while it was being saved"));
  CHECK(steps_of(ckpt::list_pieces(real_file_system(), memory.path()), 0) == std::vector<int64_t>{10});
}

TEST_CASE("a shard is written from where it lies in memory, unless its slot may be overwritten meanwhile") {
  const TemporaryFolder memory("pieces", "/dev/shm");
  constexpr int64_t kRows = 2300, kCols = 1001;  // two writes
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  const ckpt::StateInfo info{.run_id = "r", .epoch = 1, .step = 10};
  const std::vector<ckpt::Tensor> tensors{{.name = "w", .shape = {kRows, kCols}}};
  const std::vector<ckpt::ChunkData> chunks{{0, {0, 2, 0, kCols}, values.data()},
                                            {0, {2, 2200, 0, kCols}, values.data() + 2 * kCols},
                                            {0, {2200, kRows, 0, kCols}, values.data() + 2200 * kCols}};
  const std::string path = memory.path() + "/" + ckpt::piece_file_name(0, 1);
  const auto slots =
      ckpt::shared_memory(path, ckpt::memory_for_pieces(values.size() * sizeof(float), chunks.size(), 1));
  ckpt::PieceWriter writer(*slots, path, 0, 1);
  writer.copy(info, tensors, chunks);
  const ckpt::Piece piece = writer.seal();
  const auto files = writer.open(10);
  const auto content = files->in_memory(piece.receipt.file);
  REQUIRE(content.size() == piece.receipt.file_bytes);
  CHECK(reinterpret_cast<uintptr_t>(content.data()) % 4096 == 0);
  const std::string folder = ckpt::saving_directory("/c", info);
  int calls = 0;
  std::mutex mutex;
  PowerLossFileSystem fs;
  const auto write = [&](int refuse_from) {
    ckpt::prepare_saving(fs, "/c", info);
    calls = 0;
    return ckpt::write_piece(*files, piece, *ckpt::directory_store(fs, "/c")->saving(info),
                             [&](const std::function<void()>& read) {
                               const std::lock_guard lock(mutex);
                               if (++calls >= refuse_from) throw std::runtime_error("given up");
                               read();
                             });
  };
  const ckpt::ShardReceipt receipt = write(1'000'000);
  CHECK(fs.files().at(folder + "/" + receipt.file) == files->read_text(piece.receipt.file));
  const int all = calls;
  SECTION("at every read") {
    for (int refuse_from = 1; refuse_from <= all; ++refuse_from)
      CHECK_THROWS_WITH(write(refuse_from), "given up");
    CHECK_NOTHROW(write(all + 1));
  }
  SECTION("during the last write") {
    bool is_synced = false;
    std::atomic<bool> refuses = false;
    ckpt::CountingFileSystem counted(fs, {.written = [&](uint64_t bytes) {
                                       is_synced = refuses;
                                       refuses = bytes == content.size();
                                     }});
    ckpt::prepare_saving(fs, "/c", info);
    CHECK_THROWS_WITH(ckpt::write_piece(*files, piece, *ckpt::directory_store(counted, "/c")->saving(info),
                                        [&](const std::function<void()>& read) {
                                          const std::lock_guard lock(mutex);
                                          if (refuses) throw std::runtime_error("given up");
                                          read();
                                        }),
                      "given up");
    CHECK((refuses && !is_synced));
  }
  SECTION("a failed write is made good in another file") {
    ckpt::prepare_saving(fs, "/c", info);
    fs.fail_at(3, Fault::io_error_once);  // create, write, write
    const auto saving = ckpt::directory_store(fs, "/c")->saving(info);
    const auto again = ckpt::write_piece(*files, piece, *saving, kReadNow);
    CHECK(again.file == ckpt::retry_file_name(piece.receipt.file));
    CHECK(fs.files().at(folder + "/" + again.file) == files->read_text(piece.receipt.file));
  }
}

TEST_CASE("damaged and foreign files among the pieces are said, and throw nothing") {
  const TemporaryFolder memory("pieces", "/dev/shm");
  FileSystem& fs = real_file_system();
  const Dealt dealt(make_state(1, 10), kRanks);
  Slots slots(memory.path(), dealt, 1);
  copy(slots, dealt, 1);
  const ckpt::Piece piece = slots.writer.seal();
  // A byte of piece.json, which follows the shard.
  const uint64_t at = 64 + (piece.receipt.file_bytes + 63) / 64 * 64 + 40;
  const std::byte bad{'#'};
  slots.memory->write(at, {&bad, 1});
  fs.write_new_text(memory.path() + "/run", "/somewhere\n");
  fs.write_new_text(memory.path() + "/" + ckpt::piece_file_name(0, kRanks), "");
  const auto pieces = ckpt::list_pieces(fs, memory.path());
  REQUIRE(pieces.size() == 2);
  CHECK_THAT(pieces[0].problem, Catch::EndsWith("is empty"));
  CHECK_THAT(pieces[1].problem, Catch::Contains("the SHA-256 of piece.json differs from that in COMMIT"));
  CHECK_FALSE(pieces[1].piece);
}

TEST_CASE("two slots fit into the memory that is said to be enough, however small the chunks are") {
  const TemporaryFolder memory("pieces", "/dev/shm");
  for (const int64_t elements : {1, 40, 1000}) {
    const Dealt dealt(make_state(1, 10, elements), kRanks);
    Slots slots(memory.path(), dealt, 0);
    for (int i = 0; i < 3; ++i) {
      copy(slots, dealt, 0);
      slots.writer.seal();
      slots.writer.check();
    }
  }
  CHECK(ckpt::pieces_folder("/dev/shm", 7, "/run/a", "n1") !=
        ckpt::pieces_folder("/dev/shm", 7, "/run/a", "n2"));
  CHECK_THAT(ckpt::pieces_folder("/dev/shm", 7, "/run/a", "n1"), Catch::StartsWith("/dev/shm/trainctl-7-"));
}

TEST_CASE("a copy takes the place of the newest piece where another one is to be kept") {
  const TemporaryFolder dir("pieces", "/dev/shm");
  const auto dealt_at = [](int64_t step) { return Dealt(make_state(3, step), kRanks); };
  const Dealt first = dealt_at(5);
  Slots slots(dir.path(), first, 0);
  const auto copy_step = [&](int64_t step, std::optional<int64_t> keep_step, bool seals = true) {
    const Dealt dealt = dealt_at(step);
    slots.writer.copy(dealt.state.info, dealt.state.tensors, dealt.chunks[0], ckpt::host_chunks(), keep_step);
    if (seals) slots.writer.seal();
  };
  const auto there = [&] { return steps_of(ckpt::list_pieces(real_file_system(), dir.path()), 0); };
  copy_step(5, 4);  // there is no such piece
  copy_step(6, std::nullopt);
  CHECK(there() == std::vector<int64_t>{6, 5});
  copy_step(7, 5);
  CHECK(there() == std::vector<int64_t>{7, 5});
  copy_step(8, 7);  // the newest one, as always
  CHECK(there() == std::vector<int64_t>{8, 7});
  copy_step(9, 4);  // it is not there: the newest is kept
  CHECK(there() == std::vector<int64_t>{9, 8});
  copy_step(10, 8, false);
  CHECK(there() == std::vector<int64_t>{8});
}
