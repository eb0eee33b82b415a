// The two ends of the control channel, and the scratch folders.
//
// Goal: only our ranks are let in, a rank never waits for a supervisor that does not answer, and no folder is
// left behind. Method: real sockets between threads or forked processes of this program.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/run/wire/channel.h"
#include "runtime/run/rank/control_client.h"
#include "runtime/machine/session.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

ControlServer::Handler silent_handler() {
  return {.hello = [](const protocol::Hello&) {},
          .beat = [](int) {},
          .line = [](int, std::string&&) {},
          .lost = [](int, const std::string&) {}};
}

}  // namespace

TEST_CASE("strangers on the control channel are turned away") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(connect_control("127.0.0.1:1", "token", 0, 1, 10), Error);
  CHECK_THROWS_AS(connect_control("unix:" + folder / "none", "token", 0, 1, 10), Error);
  for (const std::string& address : {"unix:" + folder / "ranks", std::string("127.0.0.1:0")}) {
    int hellos = 0;
    ControlServer::Handler handler = silent_handler();
    handler.hello = [&](const protocol::Hello&) { ++hellos; };
    ControlServer server(address, "secret", 2, handler);
    const auto connect_as = [&](const std::string& token, int rank) {
      std::string error;
      std::atomic<bool> over = false;
      std::thread client([&] {
        try {
          connect_control(server.address(), token, rank, 10, 10)->done();
        } catch (const Error& e) {
          error = e.what();
        }
        over = true;
      });
      while (!over) server.serve();
      client.join();
      return error;
    };
    INFO(server.address());
    CHECK(connect_as("wrong", 0) == "the supervisor did not accept rank 0 on the control channel");
    CHECK(connect_as("secret", 7) == "the supervisor did not accept rank 7 on the control channel");
    CHECK(hellos == 0);
    CHECK(connect_as("secret", 1).empty());
    CHECK(hellos == 1);
  }
}

TEST_CASE("heartbeats stay on the node; every other line goes on as it is, the last one before the loss") {
  const TemporaryFolder folder;
  std::vector<std::string> lines, lost;
  int beats = 0;
  ControlServer server("unix:" + folder / "ranks", "secret", 2,
                       {.hello = [](const protocol::Hello&) {},
                        .beat = [&](int rank) { beats += rank == 1; },
                        .line = [&](int rank, std::string&& line) { lines.push_back(fmt::format("{} {}", rank, line)); },
                        .lost = [&](int rank, const std::string& why) { lost.push_back(fmt::format("{} {}", rank, why)); }});
  std::atomic<bool> over = false;
  std::thread client([&] {
    const auto control = connect_control(server.address(), "secret", 1, 0.01, 10);
    control->report({{.step = 3}, true});
    control->event(EventKind::step_skipped, "{}");
    control->done();
    over = true;
  });
  while (!over || lost.empty()) server.serve();
  client.join();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] ==
        "1 " + protocol::encode({.step = StepReport{{.step = 3}, true}}).substr(0, lines[0].size() - 2));
  CHECK(protocol::decode_up(std::string_view(lines[1]).substr(2)).event->kind == EventKind::step_skipped);
  CHECK(protocol::decode_up(std::string_view(lines[2]).substr(2)).done);
  CHECK(beats >= 1);
  CHECK(lost == std::vector<std::string>{"1 the connection was closed"});
}

TEST_CASE("a rank whose supervisor does not answer (it is stopped, say) ends itself") {
  const TemporaryFolder folder;
  {
    ControlServer server(fmt::format("unix:{}/ranks", folder.path()), "secret", 1, silent_handler());
    const pid_t rank = ::fork();
    if (rank == 0) {
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, STDERR_FILENO);
      const auto control = connect_control(server.address(), "secret", 0, 0.1, 0.3);
      control->hand_in({.number = 0, .state = {.step = 5}});  // waits for nothing
      control->await_saved(0);
      ::_exit(99);
    }
    int status = -1;
    const double limit_s = real_clock().monotonic_s() + 180;
    while (::waitpid(rank, &status, WNOHANG) == 0) {
      server.serve();
      if (real_clock().monotonic_s() > limit_s) ::kill(rank, SIGKILL);
    }
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == exit_status(ErrorCode::kLauncher));
  }
}

TEST_CASE("scratch folders go with their owner, and those of a killed owner with the next sweep") {
  std::string session, shared;
  {
    const SessionFolders folders;
    session = folders.session();
    shared = folders.shared_memory();
    CHECK(std::filesystem::is_directory(session));
    SessionFolders::sweep();  // ours is locked
    CHECK(std::filesystem::is_directory(shared));
  }
  CHECK_FALSE(std::filesystem::exists(session));
  CHECK_FALSE(std::filesystem::exists(shared));
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const SessionFolders folders;
    const std::string text = folders.session() + " " + folders.shared_memory();
    if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(1);
    ::pause();
  }
  char text[256] = "", a[128] = "", b[128] = "";
  REQUIRE(::read(ends[0], text, sizeof text - 1) > 0);
  ::close(ends[0]);
  ::close(ends[1]);
  REQUIRE(std::sscanf(text, "%127s %127s", a, b) == 2);
  SessionFolders::sweep();
  CHECK((std::filesystem::exists(a) && std::filesystem::exists(b)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  SessionFolders::sweep();
  // Other programs sweep, too, and one may be at these.
  CHECK(test::eventually(600, [&] { return !std::filesystem::exists(a) && !std::filesystem::exists(b); }));
}
