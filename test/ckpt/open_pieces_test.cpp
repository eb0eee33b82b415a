// Goal: the pieces of one state, on any number of ranks, read back as that state or not at all: a missing,
// damaged, swapped or foreign piece is named, and no flipped bit gets through. Method: random states, cut
// among random numbers of ranks, written by the real writer into files of the memory file system; then
// every kind of harm.
#include <fmt/format.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>

#include "ckpt/open_pieces.h"
#include "runtime/base/error.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;
using ckpt::Pieces;

namespace {

/// A folder on the memory file system.
struct Memory {
  explicit Memory(const std::string& name = "here")
      : folder(fmt::format("/dev/shm/trainctl-test-pieces-{}-{}", name, ::getpid())) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
  }
  ~Memory() { std::filesystem::remove_all(folder); }
  const std::string folder;

  std::string file(int rank, int ranks) const { return folder + "/" + ckpt::piece_file_name(rank, ranks); }
  std::vector<ckpt::FoundPiece> list() const { return ckpt::list_pieces(real_file_system(), folder); }

  /// Each chunk to a rank, by `seed`; `only`: this rank alone, -1: all.
  void keep(const PlainState& state, int ranks, uint64_t seed, int only = -1) const {
    std::mt19937_64 random(seed);
    std::vector<std::vector<ckpt::ChunkData>> chunks(static_cast<size_t>(ranks));
    std::vector<std::vector<std::byte>> held;
    for (size_t t = 0; t < state.tensors.size(); ++t)
      for (const parallel::Box& box : state.grids[t]) {
        held.push_back(cut_out(state, t, box));
        chunks[random() % size_t(ranks)].push_back({int(t), box, held.back().data()});
      }
    for (int rank = 0; rank < ranks; ++rank) {
      if (only >= 0 && rank != only) continue;
      const auto memory = ckpt::shared_memory(file(rank, ranks), ckpt::memory_for_pieces(1 << 16, 300, 12));
      ckpt::PieceWriter writer(*memory, file(rank, ranks), rank, ranks);
      writer.copy(state.info, state.tensors, chunks[size_t(rank)]);
      writer.seal();
    }
  }
  /// Where the bytes of a chunk lie in the file of a piece.
  uint64_t place_of(const std::string& path, const PlainState& state,
                    const ckpt::ShardReceipt::Entry& entry) const {
    size_t tensor = 0;
    while (state.tensors[tensor].name != entry.tensor || state.tensors[tensor].role != entry.role) ++tensor;
    const std::vector<std::byte> chunk = cut_out(state, tensor, entry.box);
    const auto memory = ckpt::shared_memory(path, std::filesystem::file_size(path));
    std::vector<std::byte> all(memory->size());
    memory->read(0, all);
    return uint64_t(std::search(all.begin(), all.end(), chunk.begin(), chunk.end()) - all.begin());
  }
  void flip(const std::string& path, uint64_t offset, int bit) const {
    const auto memory = ckpt::shared_memory(path, std::filesystem::file_size(path));
    std::byte byte;
    memory->read(offset, std::span(&byte, 1));
    byte ^= std::byte(1 << bit);
    memory->write(offset, std::span(&byte, 1));
  }
};

ckpt::PieceSet set_of(const PlainState& state, int ranks) {
  return {.step = state.info.step, .epoch = state.info.epoch, .ranks = ranks};
}

std::string why_not(const Memory& memory, const ckpt::PieceSet& set, Pieces need = Pieces::all) {
  try {
    ckpt::open_pieces(memory.list(), set, need);
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCheckpoint);
    return error.what();
  }
}

}  // namespace

TEST_CASE("pieces of any number of ranks are the state that was kept", "[pieces]") {
  for (const uint64_t seed : test_seeds(20)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    Memory memory;
    const int ranks = 1 + int(seed % 8);
    const PlainState before = make_state(seed, 40), state = make_state(seed, 41);
    memory.keep(before, ranks, seed);
    memory.keep(state, ranks, seed + 1);
    for (const PlainState* each : {&before, &state}) {
      const auto checkpoint = ckpt::open_pieces(memory.list(), set_of(*each, ranks), Pieces::all);
      CHECK(reads_back(*checkpoint, *each));
      CHECK(checkpoint->state().extra_json == each->info.extra_json);
    }
  }
}

TEST_CASE("pieces have the root hash of the same state in a folder", "[pieces]") {
  Memory memory;
  const PlainState state = make_state(3, 17);
  const std::string folder = memory.folder + "/ckpt";
  std::filesystem::create_directory(folder);
  const auto store = ckpt::directory_store(real_file_system(), folder);
  const std::string root = save(*store, state, 5);
  memory.keep(state, 3, 9);
  const auto pieces = ckpt::open_pieces(memory.list(), set_of(state, 3), Pieces::all);
  CHECK(pieces->root_hash() == root);
  CHECK(ckpt::verify(*pieces).findings.empty());
}

TEST_CASE("what does not belong together is no state", "[pieces]") {
  Memory memory;
  const PlainState state = make_state(5, 12);
  memory.keep(state, 4, 1);
  CHECK(why_not(memory, set_of(state, 4)) == "");
  CHECK_THAT(why_not(memory, set_of(state, 3)), Catch::Contains("rank 0 of 3 is missing"));
  CHECK_THAT(why_not(memory, {.step = 13, .epoch = 3, .ranks = 4}),
             Catch::Contains("rank 0 of 4 is missing"));
  CHECK_THAT(why_not(memory, {.step = 12, .epoch = 4, .ranks = 4}),
             Catch::Contains("rank 0 of 4 is missing"));
  SECTION("a piece is missing") {
    std::filesystem::remove(memory.file(2, 4));
    CHECK_THAT(why_not(memory, set_of(state, 4)), Catch::Contains("rank 2 of 4 is missing"));
  }
  SECTION("a rank kept other chunks") {
    memory.keep(state, 4, 2, 1);
    CHECK_THAT(why_not(memory, set_of(state, 4)),
               Catch::Contains("no shard writes") || Catch::Contains("both write"));
  }
  SECTION("a rank kept another run's state") {
    PlainState other = state;
    other.info.run_id = "other-1111";
    memory.keep(other, 4, 1, 3);
    CHECK_THAT(why_not(memory, set_of(state, 4)), Catch::Contains("are of different states"));
  }
  SECTION("a file is cut off") {
    std::filesystem::resize_file(memory.file(1, 4), 100);
    CHECK_THAT(why_not(memory, set_of(state, 4)), Catch::Contains("rank 1"));
  }
  SECTION("a file is empty") {
    std::filesystem::resize_file(memory.file(0, 4), 0);
    CHECK_THAT(why_not(memory, set_of(state, 4)), Catch::Contains("rank 0"));
  }
}

TEST_CASE("no flipped bit of a slot gets through", "[pieces]") {
  Memory memory;
  const PlainState state = make_state(6, 30);
  memory.keep(state, 2, 1);
  std::mt19937_64 random(7);
  const std::string path = memory.file(1, 2);
  constexpr uint64_t kUsed = 8192;  // about so many bytes of the slot are files
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t offset = random() % kUsed;
    const int bit = int(random() % 8);
    memory.flip(path, offset, bit);
    try {
      const auto checkpoint = ckpt::open_pieces(memory.list(), set_of(state, 2), Pieces::all);
      if (!reads_back(*checkpoint, state)) FAIL("a wrong state, byte " << offset << " bit " << bit);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kCheckpoint);
      ++refused;
    }
    memory.flip(path, offset, bit);
  }
  CHECK(refused > 200);  // the rest of the bytes belongs to no file
}

TEST_CASE("a damaged chunk is read from another copy of its piece, if that is the same piece and good",
          "[pieces]") {
  const PlainState state = make_state(6, 30);
  Memory memory, partner("partner"), foreign("foreign");
  memory.keep(state, 2, 1);
  partner.keep(state, 2, 1);
  foreign.keep(make_state(6, 31), 2, 1);
  const auto found = memory.list();
  const auto piece = std::find_if(found.begin(), found.end(), [](const auto& p) { return p.rank == 1; });
  REQUIRE(piece->piece);
  const auto& entries = piece->piece->receipt.entries;
  REQUIRE(entries.size() > 2);
  std::vector<std::pair<int, size_t>> asked;
  const auto others = [&](std::vector<const Memory*> places) {
    asked.clear();
    return [&asked, places](int rank, size_t copy) -> std::vector<ckpt::FoundPiece> {
      asked.emplace_back(rank, copy);
      if (copy >= places.size()) return {};
      if (!places[copy]) throw Error(ErrorCode::kIo, "that node does not answer");
      auto pieces = places[copy]->list();
      std::erase_if(pieces, [&](const auto& p) { return p.rank != rank; });
      return pieces;
    };
  };
  const auto read = [&](const ckpt::OtherPieces& from) {
    return reads_back(*ckpt::open_pieces(memory.list(), set_of(state, 2), Pieces::all, from), state);
  };
  CHECK(read(others({&partner})));
  CHECK(asked.empty());
  for (const size_t chunk : {size_t(0), entries.size() - 1}) {
    CAPTURE(chunk);
    const uint64_t at = memory.place_of(memory.file(1, 2), state, entries[chunk]);
    memory.flip(memory.file(1, 2), at, 3);
    CHECK(read(others({&partner})));
    CHECK(asked == std::vector<std::pair<int, size_t>>{{1, 0}});
    CHECK(
        read(others({&memory, nullptr, &foreign, &partner})));  // the same damage, a dead node, another step
    CHECK(asked.size() == 4);
    CHECK_THROWS_WITH(read(others({&memory, nullptr, &foreign})), Catch::Contains("is damaged"));
    CHECK_THROWS_WITH(read({}), Catch::Contains("is damaged"));
    partner.flip(partner.file(1, 2), at, 5);
    CHECK_THROWS_WITH(read(others({&partner})), Catch::Contains("is damaged"));
    partner.flip(partner.file(1, 2), at, 5);
    memory.flip(memory.file(1, 2), at, 3);
  }
  CHECK(read({}));
}

TEST_CASE("a node that holds some of the pieces reads what they hold and nothing else", "[pieces]") {
  Memory memory;
  const PlainState state = make_state(8, 5);
  memory.keep(state, 4, 3, 1);
  const auto here = ckpt::open_pieces(memory.list(), set_of(state, 4), Pieces::those_here);
  int there = 0, absent = 0;
  for (size_t t = 0; t < state.tensors.size(); ++t)
    for (const parallel::Box& box : state.grids[t]) {
      std::vector<std::byte> out(size_t(box.count()) * sizeof(float));
      try {
        here->read(state.tensors[t].name, state.tensors[t].role, box, out.data());
        CHECK(out == cut_out(state, t, box));
        ++there;
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kCheckpoint);
        CHECK_THAT(error.what(), Catch::Contains("does not hold all of"));
        ++absent;
      }
    }
  CHECK(there > 0);
  CHECK(absent > there);
  CHECK_THAT(why_not(memory, {.step = 6, .epoch = 3, .ranks = 4}, Pieces::those_here),
             Catch::Contains("no piece of it"));
}
