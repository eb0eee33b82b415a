// Goal: each remote shell of mpirun gets a number, its request is reported once, and it alone hears of the
//       end of what it asked for.
// Method: connections of this program as remote shells.
#include "runtime/run/agent/remote_starts.h"

#include <catch2/catch.hpp>
#include <memory>

#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::Peer;
using wire::Kind;
using wire::Message;

TEST_CASE("requests of remote shells are numbered, and answered one by one", "[remote_starts]") {
  const test::TemporaryFolder folder;
  const std::string address = "unix:" + folder / "remote";
  RemoteStarts starts(address);
  std::vector<RemoteStarts::Request> requests;
  const auto requested = [&](size_t count) {
    return test::eventually([&] {
      for (RemoteStarts::Request& request : starts.serve()) requests.push_back(std::move(request));
      return requests.size() >= count;
    });
  };
  auto first = std::make_unique<Peer>(connect_to(address, 5));
  first->send(Message{.kind = Kind::remote, .text = "n1", .payload = "orted 1"});
  REQUIRE(requested(1));
  Peer second(connect_to(address, 5));
  second.send(Message{.kind = Kind::beat});  // is no request
  second.send(Message{.kind = Kind::remote, .text = "n2", .payload = "orted 2"});
  REQUIRE(requested(2));
  CHECK(requests[0].number == 1);
  CHECK(requests[0].host == "n1");
  CHECK(requests[0].command == "orted 1");
  CHECK(requests[1].number == 2);
  CHECK(requests[1].host == "n2");
  std::vector<pollfd> fds;
  starts.add_to(fds);
  CHECK(fds.size() == 3);  // the listener and both shells

  starts.ended({.kind = Kind::remote_ended, .number = 2, .text = "256"});
  REQUIRE(test::eventually([&] { return second.read(), second.count(Kind::remote_ended) == 1; }));
  CHECK(second.last(Kind::remote_ended)->text == "256");
  first->read();
  CHECK(first->got.empty());
  // A shell that is gone is forgotten, and the end of what it asked for harms nothing.
  first.reset();
  CHECK(test::eventually([&] {
    starts.serve();
    fds.clear();
    starts.add_to(fds);
    return fds.size() == 2;
  }));
  starts.ended({.kind = Kind::remote_ended, .number = 1, .text = "0"});
  CHECK(requests.size() == 2);
}
