// Goal: an epoch that cannot be set up on this machine is an error, and nothing of it is left: later orders
//       and epochs are not harmed.
// Method: a start order whose socket cannot be made, because a folder is in its place.
#include "runtime/run/agent/local_machine.h"

#include <catch2/catch.hpp>

#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

TEST_CASE("an epoch that cannot be set up leaves nothing", "[local_machine]") {
  const test::TemporaryFolder run;
  test::HandClock clock;
  std::vector<Message> events;
  LocalMachine machine({.run_directory = run.path(), .host = "here"}, clock,
                       [&](Message&& event) { events.push_back(std::move(event)); });
  const std::string scratch = "trainctl.test" + random_token().substr(0, 12);
  wire::StartOrder order{.mark = scratch, .argv = {"/bin/true"}, .hosts = {"here"}, .ranks = {{0, 1}}};
  order.session_folder = "/tmp/" + scratch;
  order.shared_memory_folder = "/dev/shm/" + scratch;
  const Message start{.kind = Kind::start, .epoch = 4, .payload = order.to_json()};
  real_file_system().make_directories(order.shared_memory_folder + "/ranks");
  CHECK_THROWS_WITH(machine.order(start), Catch::Contains("cannot listen on unix:"));
  CHECK_FALSE(machine.epoch());
  machine.serve();
  CHECK(machine.digests().empty());
  machine.order({.kind = Kind::kill, .epoch = 4});
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Kind::gone);
  CHECK(events[0].epoch == 4);

  machine.order(start);  // the folder went with the epoch that failed
  CHECK(machine.epoch() == 4);
  machine.kill_all();
  CHECK_FALSE(machine.epoch());
  REQUIRE(events.size() == 2);
  CHECK(events[1].kind == Kind::gone);
  CHECK(events[1].number == 0);
}
