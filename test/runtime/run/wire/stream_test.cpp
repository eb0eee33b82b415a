// Connections that carry messages of nodes: addresses and buffered streams.
//
// Goal: an address that cannot be is refused with a sentence, every wait has a limit, nothing of a message is
// lost or kept twice, and a peer that does not read costs bounded memory. Method: real sockets in one thread.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include "runtime/base/error.h"
#include "runtime/run/wire/stream.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct Pair {
  std::unique_ptr<Stream> a, b;
  explicit Pair(size_t most_bytes = 512u << 20) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    constexpr int kBufferBytes = 200'000;  // of the socket, whatever the system gives
    for (const int end : ends)
      REQUIRE(::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes) == 0);
    a = std::make_unique<Stream>(ends[0], most_bytes);
    b = std::make_unique<Stream>(ends[1]);
    a->greeted();
    b->greeted();
  }
};

uint64_t heap_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

Message output(int64_t number, size_t bytes) {
  return {.kind = Kind::output, .number = number, .payload = std::string(bytes, 'x')};
}

}  // namespace

TEST_CASE("an address that cannot be is refused with a sentence") {
  const test::TemporaryFolder dir;
  const std::string path = "unix:" + dir.path() + "/socket";
  for (const std::string& address :
       {std::string(), std::string("nonsense"), std::string("127.0.0.1:port"), std::string("no such host:1"),
        std::string("127.0.0.1:1"), path, "unix:/" + std::string(200, 'x')}) {
    INFO(address);
    CHECK_FALSE(error_of([&] { ::close(connect_to(address, 600)); }).empty());
  }
  CHECK(error_of([&] {
          ::close(listen_on("unix:" + dir.path() + "/none/socket"));
        }).find("cannot listen on ") == 0);
  const int listener = listen_on(path);
  CHECK(address_of(listener) == path);
  CHECK(error_of([&] { ::close(listen_on(path)); }).find("Address already in use") != std::string::npos);
  CHECK(accept_from(listener) == -1);
  const int fd = connect_to(address_of(listener), 600);
  const int other = accept_from(listener);
  CHECK(other >= 0);
  CHECK(local_end_of(fd).address.empty());
  for (const int open : {listener, fd, other}) ::close(open);
  const int tcp = listen_on("127.0.0.1:0");
  CHECK(address_of(tcp).starts_with("127.0.0.1:"));
  const int local = connect_to(address_of(tcp), 600);
  CHECK(local_end_of(local).address == "127.0.0.1");
  CHECK(local_end_of(local).network == "127.0.0.0/8");
  CHECK(local_end_of(local).interface == "lo");
  ::close(local);
  ::close(tcp);
}

TEST_CASE("a connection to an address that swallows calls is given up") {
  const int full = listen_on("127.0.0.1:0");
  REQUIRE(::listen(full, 0) == 0);
  std::vector<int> calls;
  std::string error;
  while (error.empty() && calls.size() < 100)
    error = error_of([&] { calls.push_back(connect_to(address_of(full), 0.1)); });
  CHECK(error.find("cannot reach 127.0.0.1:") == 0);
  CHECK(error.find("Connection timed out") != std::string::npos);
  for (const int fd : calls) ::close(fd);
  ::close(full);
}

TEST_CASE("tokens are long, differ, and are compared whole") {
  std::set<std::string> tokens;
  for (int i = 0; i < 1000; ++i) tokens.insert(random_token());
  CHECK(tokens.size() == 1000);
  const std::string token = *tokens.begin();
  CHECK(token.size() == 32);
  CHECK(token.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(same_token(token, std::string(token)));
  for (size_t i = 0; i < token.size(); ++i) {
    std::string other = token;
    other[i] ^= 1;
    CHECK_FALSE(same_token(token, other));
  }
  CHECK_FALSE(same_token(token, ""));
  CHECK_FALSE(same_token("", token));
  CHECK_FALSE(same_token(token, token + "0"));
  CHECK(same_token("", ""));
}

TEST_CASE("what came before the end of a connection counts, and its end has a reason") {
  Pair pair;
  for (int i = 1; i <= 3; ++i) pair.a->send(output(i, 10));
  pair.a.reset();
  const auto got = pair.b->read();
  REQUIRE(got.size() == 3);
  CHECK(got[2].number == 3);
  CHECK_FALSE(pair.b->open());
  CHECK(pair.b->problem() == "the connection was closed");
  pair.b->send(output(1, 10));  // to nobody
  pair.b->flush();
  CHECK(pair.b->read().empty());
  CHECK(pair.b->problem() == "the connection was closed");

  Pair broken;
  broken.a->send(output(1, 10));
  REQUIRE(::send(broken.a->fd(), "{}\n", 3, 0) == 3);
  CHECK(broken.b->read().size() == 1);
  CHECK_FALSE(broken.b->open());
  CHECK(broken.b->problem().find("what is no message") != std::string::npos);
}

TEST_CASE("a peer that does not read ends the stream once too much waits for it") {
  Pair pair(1 << 20);
  int sent = 0;
  while (pair.a->open() && sent < 100) pair.a->send(output(++sent, 100000));
  CHECK(sent > 10);
  CHECK(sent < 20);
  CHECK(pair.a->problem().find("bytes wait for a peer that does not read") != std::string::npos);
}

TEST_CASE("a connection that is never idle keeps no more than what is under way") {
  Pair pair;
  const uint64_t before = heap_bytes();
  uint64_t most = before;
  int64_t sent = 0, got = 0;
  bool ordered = true;
  // The writer is always 2 MB ahead and the reader always in the middle of a message: 1 GB in all.
  for (int round = 0; round < 3000 || got < sent; ++round) {
    while (round < 3000 && pair.a->waiting_bytes() < 2u << 20) {
      ++sent;
      pair.a->send(output(sent, 300000 + size_t(sent % 777)));
    }
    pair.a->flush();
    for (const Message& message : pair.b->read()) ordered = ordered && message.number == ++got;
    if (round % 16 == 0) most = std::max(most, heap_bytes());
    REQUIRE(round < 100000);
  }
  CHECK(sent > 2000);
  CHECK(got == sent);
  CHECK(ordered);
  CHECK(most - before < 16u << 20);
}
