#include "cmd/serve.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/signals.h"
#include "runtime/observe/live/live_server.h"
#include "runtime/run/wire/stream.h"

namespace trainctl::cmd {
namespace {

/// The signals that end the page, blocked in all threads from now on.
sigset_t end_signals() {
  const sigset_t set = heeded({SIGINT, SIGTERM, SIGHUP});
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return set;
}

}  // namespace

int serve_status(const RunDirectory& run, const std::string& address_text, const Context& context) {
  live::LiveAddress address;
  if (const Problem problem = live::parse_address(address_text, address); problem.exists())
    throw Error(ErrorCode::kUsage, "--serve: " + problem.text());
  const sigset_t signals = end_signals();
  const std::string token = address.is_loopback() ? "" : random_token();
  live::LiveContent content(real_file_system(), real_clock(), run, [run] {
    return supervisor_state(real_file_system(), run) != SupervisorState::none;
  });
  live::LiveServer server(content, address, token);
  char machine[256] = "localhost";
  ::gethostname(machine, sizeof machine - 1);
  const std::string url = server.address().url(machine, token);
  if (context.json)
    print_json("serve", {{"url", url}, {"pid", ::getpid()}}, -1);
  else
    fmt::print("{} · live page of {}; Ctrl-C ends it\n", url, folder_name(run));
  std::fflush(stdout);
  std::thread answers([&] { server.run(); });
  int received = 0;
  ::sigwait(&signals, &received);
  server.stop();
  answers.join();
  return kExitDone;
}

}  // namespace trainctl::cmd
