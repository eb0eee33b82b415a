// Goal: an agent reaches the supervisor that supervisor.json names at that moment, learns that it has
//       ended, and notices that it reads too slowly.
// Method: listening sockets of this program as supervisors.
#include "runtime/run/agent/supervisor_link.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>

#include "runtime/base/error.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::Peer;
using wire::Kind;
using wire::Message;

namespace {

/// A supervisor that listens on a socket in the folder of the run.
struct Supervisor {
  Supervisor(const std::string& run, const std::string& token)
      : listener(listen_on("unix:" + run + "/" + token)), address(address_of(listener)) {
    real_file_system().replace_text(supervisor_file(run), SupervisorFile{address, token}.to_json());
  }
  ~Supervisor() { ::close(listener); }
  std::unique_ptr<Peer> accept() {
    int fd = -1;
    REQUIRE(test::eventually([&] { return (fd = accept_from(listener)) >= 0; }));
    return std::make_unique<Peer>(fd);
  }
  const int listener;
  const std::string address;
};

/// An agent dials again where a file does not answer within half a second.
void dial_until_up(SupervisorLink& link) {
  REQUIRE(test::eventually([&] {
    try {
      link.dial();
    } catch (const Error&) {
    }
    return link.is_up();
  }));
}

}  // namespace

TEST_CASE("a link dials the supervisor of the moment", "[supervisor_link]") {
  const test::TemporaryFolder run;
  FileWorker files;
  SupervisorLink link(run.path(), "", files);
  CHECK_THROWS_AS(link.dial(), Error);  // there is no supervisor.json
  CHECK_FALSE(link.is_up());
  Supervisor first(run.path(), "first");
  dial_until_up(link);
  CHECK(link.is_up());
  CHECK(link.token() == "first");
  const auto peer = first.accept();
  link.send({.kind = Kind::hello, .payload = "x"});
  CHECK(test::eventually([&] { return peer->read(), peer->count(Kind::hello) == 1; }));

  Supervisor second(run.path(), "second");
  link.drop();
  CHECK_FALSE(link.is_up());
  dial_until_up(link);
  CHECK(link.token() == "second");
  second.accept();
}

TEST_CASE("a given address comes before that of supervisor.json, but not its token", "[supervisor_link]") {
  const test::TemporaryFolder run;
  Supervisor relay(run.path(), "relay");
  Supervisor supervisor(run.path(), "supervisor");
  FileWorker files;
  SupervisorLink link(run.path(), relay.address, files);
  dial_until_up(link);
  relay.accept();
  CHECK(link.token() == "supervisor");
}

TEST_CASE("bytes are heard before their message is complete, and the end after the last message",
          "[supervisor_link]") {
  const test::TemporaryFolder run;
  Supervisor supervisor(run.path(), "token");
  FileWorker files;
  SupervisorLink link(run.path(), "", files);
  CHECK_FALSE(link.has_ended());
  CHECK(link.read().messages.empty());
  dial_until_up(link);
  auto peer = supervisor.accept();
  CHECK_FALSE(link.read().is_heard);
  CHECK_FALSE(link.has_ended());

  peer->send(Message{.kind = Kind::beat, .sequence = 5});
  peer.reset();
  std::vector<Message> got;
  bool is_heard = false;
  REQUIRE(test::eventually([&] {
    const SupervisorLink::News news = link.read();
    got.insert(got.end(), news.messages.begin(), news.messages.end());
    is_heard |= news.is_heard;
    return link.has_ended();
  }));
  CHECK(is_heard);
  REQUIRE(got.size() == 1);
  CHECK(got[0].sequence == 5);
  CHECK_FALSE(link.problem().empty());
  link.drop();
  CHECK_FALSE(link.has_ended());
}

TEST_CASE("a supervisor that does not read fills the link", "[supervisor_link]") {
  const test::TemporaryFolder run;
  Supervisor supervisor(run.path(), "token");
  FileWorker files;
  SupervisorLink link(run.path(), "", files);
  CHECK_FALSE(link.is_full());
  dial_until_up(link);
  const auto peer = supervisor.accept();
  const Message megabyte{.kind = Kind::output, .payload = std::string(1 << 20, 'x')};
  for (int i = 0; i < 32; ++i) link.send(megabyte);
  CHECK(link.is_full());
  std::vector<pollfd> fds;
  link.add_to(fds);
  REQUIRE(fds.size() == 1);
  CHECK((fds[0].events & POLLOUT) != 0);
  CHECK(test::eventually([&] {
    link.read();
    peer->read();
    return peer->count(Kind::output) == 32;
  }));
  CHECK_FALSE(link.is_full());
}
