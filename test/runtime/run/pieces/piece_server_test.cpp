// Goal: a rank reads the pieces in another node's memory as if they were in its own, and nobody else gets a
// byte of them. Method: a real server and its clients in one process, over the loopback.
#include "runtime/run/pieces/piece_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/run/pieces/held_pieces.h"
#include "runtime/run/pieces/piece_protocol.h"
#include "runtime/run/pieces/remote_memory.h"
#include "runtime/run/wire/stream.h"

using namespace trainctl;
using Catch::Matchers::Contains;

namespace {

constexpr double kLimitS = 600;  ///< of what ends at once

/// A folder on the memory file system with the pieces of rank 2 of 4 after the steps 7 and 8.
struct NodeWithPieces {
  NodeWithPieces() : folder(fmt::format("/dev/shm/trainctl-test-server-{}", ::getpid())) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    const uint64_t bytes = ckpt::memory_for_pieces(1 << 16, 10, 1);
    const auto memory = ckpt::shared_memory(folder + "/" + ckpt::piece_file_name(2, 4), bytes);
    ckpt::PieceWriter writer(*memory, "rank 2", 2, 4);
    const std::vector<ckpt::Tensor> tensors{
        {.name = "w", .role = ckpt::Role::master, .dtype = DType::f32, .shape = {64, 8}}};
    for (const int64_t step : {7, 8}) {
      values.assign(512, float(step));
      const std::vector<ckpt::ChunkData> chunks{
          {0, {0, 64, 0, 8}, reinterpret_cast<std::byte*>(values.data())}};
      writer.copy({.run_id = "r", .epoch = 1, .step = step}, tensors, chunks);
      writer.seal();
    }
  }
  ~NodeWithPieces() { std::filesystem::remove_all(folder); }
  const std::string folder;
  std::vector<float> values;
};

std::string why_not(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kIo);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("pieces of another node read back as in its own memory", "[piece_server]") {
  const NodeWithPieces node;
  PieceServer server("127.0.0.1");
  server.set_folder(node.folder);
  const auto here = ckpt::list_pieces(real_file_system(), node.folder);
  const auto there =
      ckpt::pieces_in(remote_memory(server.address(), 2, 4, kLimitS), "rank 2 elsewhere", 2, 4);
  REQUIRE(here.size() == 2);
  REQUIRE(there.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    INFO(there[i].problem);
    REQUIRE(there[i].piece);
    CHECK(there[i].step == here[i].step);
    CHECK(there[i].piece->receipt.entries.at(0).hash == here[i].piece->receipt.entries.at(0).hash);
    const std::string& shard = here[i].piece->receipt.file;
    CHECK(there[i].open()->read_text(shard) == here[i].open()->read_text(shard));
  }
}

TEST_CASE("what a server does not have, or should not give, is refused with a sentence", "[piece_server]") {
  const NodeWithPieces node;
  PieceServer server("127.0.0.1");
  const auto open = [&](const wire::PieceServerAddress& address, int rank, int ranks) {
    return why_not([&] { remote_memory(address, rank, ranks, kLimitS); });
  };
  CHECK_THAT(open(server.address(), 2, 4), Contains("no pieces of the run"));
  server.set_folder(node.folder);
  CHECK_THAT(open(server.address(), 3, 4), Contains("rank 3") && Contains("No such file"));
  CHECK_THAT(open(server.address(), 2, 8), Contains("No such file"));
  CHECK_THAT(open(server.address(), -1, 4), Contains("no pieces of the run"));
  wire::PieceServerAddress forged = server.address();
  forged.token.back() = forged.token.back() == '0' ? '1' : '0';
  CHECK_THAT(open(forged, 2, 4), Contains("token"));
  forged.token = "";
  CHECK_THAT(open(forged, 2, 4), Contains("token"));
  CHECK(open(server.address(), 2, 4).empty());
}

TEST_CASE("a server that is asked for bytes beyond the file, or for nonsense, goes on with the others",
          "[piece_server]") {
  using namespace pieces;
  const NodeWithPieces node;
  PieceServer server("127.0.0.1");
  server.set_folder(node.folder);
  const auto good = remote_memory(server.address(), 2, 4, kLimitS);
  const auto ask = [&](const Request& request) {
    const int fd = connect_to(server.address().address, kLimitS);
    Request open{.op = Op::open, .rank = 2, .ranks = 4};
    server.address().token.copy(open.token, sizeof open.token);
    send_all(fd, bytes_of(open), kLimitS);
    REQUIRE(receive<Answer>(fd, kLimitS).ok == 1);
    send_all(fd, bytes_of(request), kLimitS);
    const auto answer = receive<Answer>(fd, kLimitS);
    CHECK(answer.ok == 0);
    CHECK(answer.bytes > 0);
    ::close(fd);
  };
  ask({.op = Op::read, .offset = good->size(), .bytes = 1});
  ask({.op = Op::read, .offset = UINT64_MAX, .bytes = 2});
  ask({.op = Op::read, .offset = 0, .bytes = kMostBytes + 1});
  ask({.op = Op(77), .offset = 0, .bytes = 1});
  ask({.magic = 1, .op = Op::read, .offset = 0, .bytes = 1});
  std::vector<std::byte> bytes(64);
  good->read(0, bytes);
  CHECK(std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte(0); }));
}

TEST_CASE("a server that ends cuts its readers off, with a sentence", "[piece_server]") {
  const NodeWithPieces node;
  std::optional<PieceServer> server("127.0.0.1");
  server->set_folder(node.folder);
  const wire::PieceServerAddress address = server->address();
  const auto memory = remote_memory(address, 2, 4, kLimitS);
  server.reset();
  std::vector<std::byte> bytes(64);
  CHECK_THAT(why_not([&] { memory->read(0, bytes); }), Contains(address.address));
  CHECK_THAT(why_not([&] { remote_memory(address, 2, 4, kLimitS); }), Contains("cannot reach"));
}

TEST_CASE("ranks learn from their node where the pieces of other nodes are", "[piece_server]") {
  const NodeWithPieces node;
  PieceServer server("127.0.0.1");
  server.set_folder(node.folder);
  const std::string other = node.folder + "-other";
  std::filesystem::create_directory(other);
  real_file_system().replace_text(
      other + "/other-memories.json",
      wire::OtherMemories{.holders = {{.server = server.address(), .ranks = {{0, 1}, {2, 1}}},
                                      {.server = {.address = "127.0.0.1:1"}, .ranks = {{2, 1}}},
                                      {.server = server.address(), .ranks = {{2, 1}}}},
                          .partner = server.address()}
          .to_json());
  const auto elsewhere = pieces_elsewhere(real_file_system(), other, 4, kLimitS);
  const auto partner =
      partner_memory(real_file_system(), other, {.rank = 3, .ranks = 4, .epoch = 1}, kLimitS);
  std::filesystem::remove_all(other);
  CHECK_THAT(why_not([&] { partner(4096); }), Contains("holds no copies of rank 3 in attempt 1"));
  server.begin_epoch(1, {3, 1});
  CHECK(partner(4096)->size() == 4096);
  const auto found = elsewhere(2, 0);
  REQUIRE(found.size() == 2);
  CHECK(found[0].step == 8);
  CHECK(found[0].piece);
  CHECK_THAT(why_not([&] { elsewhere(1, 0); }), Contains("no node holds the piece of rank 1"));
  CHECK_THAT(why_not([&] { elsewhere(0, 0); }), Contains("No such file"));
  CHECK_THAT(why_not([&] { elsewhere(2, 1); }), Contains("127.0.0.1:1"));
  CHECK(elsewhere(2, 2).size() == 2);
  CHECK(elsewhere(2, 3).empty());
}

namespace {

std::vector<std::byte> all_of(ckpt::NodeMemory& memory) {
  std::vector<std::byte> bytes(memory.size());
  memory.read(0, bytes);
  return bytes;
}

}  // namespace

TEST_CASE("a rank's pieces are copied to its partner whole, newest last", "[piece_server]") {
  const NodeWithPieces node;
  const std::string there = node.folder + "-partner";
  std::filesystem::create_directory(there);
  PieceServer server("127.0.0.1");
  server.set_folder(there);
  server.begin_epoch(4, {2, 2});
  const PieceOfRank rank{.rank = 2, .ranks = 4, .epoch = 4};
  const auto here = ckpt::list_pieces(real_file_system(), node.folder);
  const auto read = [](const std::function<void()>& act) { act(); };
  {
    const auto partner = remote_memory_to_write(server.address(), rank, here[0].memory->size(), kLimitS);
    for (const size_t i : {1, 0}) ckpt::copy_piece(*here[i].open(), *here[i].piece, *partner, "a copy", read);
  }
  const auto copies = ckpt::list_pieces(real_file_system(), there);
  REQUIRE(copies.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    INFO(copies[i].problem);
    REQUIRE(copies[i].piece);
    CHECK(copies[i].step == here[i].step);
    const std::string& shard = here[i].piece->receipt.file;
    CHECK(copies[i].open()->read_text(shard) == here[i].open()->read_text(shard));
  }

  // A copy that breaks off leaves the newest one as it is.
  const auto partner = remote_memory_to_write(server.address(), rank, here[0].memory->size(), kLimitS);
  const auto broken = [](const std::function<void()>&) { throw Error(ErrorCode::kIo, "broken off"); };
  CHECK_THAT(why_not([&] { ckpt::copy_piece(*here[1].open(), *here[1].piece, *partner, "a copy", broken); }),
             Contains("broken off"));
  partner->sync();
  const auto left = ckpt::list_pieces(real_file_system(), there);
  REQUIRE(left.size() == 1);
  CHECK((left[0].step == 8 && left[0].piece));
  std::filesystem::remove_all(there);
}

TEST_CASE("what an older epoch writes after the next has begun is refused", "[piece_server]") {
  const NodeWithPieces node;
  PieceServer server("127.0.0.1");
  server.set_folder(node.folder);
  server.begin_epoch(4, {2, 1});
  const uint64_t bytes = ckpt::list_pieces(real_file_system(), node.folder).at(0).memory->size();
  const auto writer =
      remote_memory_to_write(server.address(), {.rank = 2, .ranks = 4, .epoch = 4}, bytes, kLimitS);
  const std::vector<std::byte> ones(64, std::byte(1));
  writer->write(0, ones);
  writer->sync();
  const auto memory = ckpt::open_shared_memory(node.folder + "/" + ckpt::piece_file_name(2, 4));
  const auto before = all_of(*memory);
  CHECK(before[0] == std::byte(1));

  server.begin_epoch(5, {2, 1});
  const std::vector<std::byte> twos(64, std::byte(2));
  CHECK_THAT(why_not([&] {
               writer->write(0, twos);
               writer->sync();
             }),
             Contains("attempt 4 is over, attempt 5 runs"));
  CHECK(all_of(*memory) == before);
  const auto open = [&](int rank, uint64_t epoch, uint64_t size) {
    return why_not([&] {
      remote_memory_to_write(server.address(), {.rank = rank, .ranks = 4, .epoch = epoch}, size, kLimitS);
    });
  };
  CHECK_THAT(open(2, 4, bytes), Contains("holds no copies of rank 2 in attempt 4"));
  CHECK_THAT(open(2, 6, bytes), Contains("attempt 6"));
  CHECK_THAT(open(3, 5, bytes), Contains("rank 3"));
  CHECK_THAT(open(2, 5, uint64_t(1) << 60), Contains("memory there"));
  CHECK_THAT(open(2, 5, 0), Contains("memory there"));
  CHECK(open(2, 5, bytes).empty());
}

TEST_CASE("a reader cannot write", "[piece_server]") {
  using namespace pieces;
  const NodeWithPieces node;
  PieceServer server("127.0.0.1");
  server.set_folder(node.folder);
  server.begin_epoch(1, {2, 1});
  const auto memory = ckpt::open_shared_memory(node.folder + "/" + ckpt::piece_file_name(2, 4));
  const auto before = all_of(*memory);
  const int fd = connect_to(server.address().address, kLimitS);
  Request open{.op = Op::open, .rank = 2, .ranks = 4};
  server.address().token.copy(open.token, sizeof open.token);
  send_all(fd, bytes_of(open), kLimitS);
  REQUIRE(receive<Answer>(fd, kLimitS).ok == 1);
  send_all(fd, bytes_of(Request{.op = Op::write, .offset = 0, .bytes = 8}), kLimitS);
  CHECK(receive<Answer>(fd, kLimitS).ok == 0);
  ::close(fd);
  CHECK(all_of(*memory) == before);
}
