// A node agent for the tests: serves PMIx to ranks that it starts, and does what the test says over a Unix
// socket.
//
//   pmix_host SOCKET HOST_NAME RANK_PROGRAM
//
// Messages in both directions: a line, then as many bytes as its last word says. The test says
//   begin EPOCH THIS_HOST LAYOUT MODE [NAME=VALUE] 0       LAYOUT: h0=0,1;h1=2; MODE none: starts no ranks
//   kill RANK 0                               RANK -1: all
//   fence EPOCH SIZE
//   probe MODE 0
//   files 0, end 0
//   break 0                                   kills the process that runs libpmix
//   perish 0                                  kills everything below this process, as a watchdog does
// and the host answers
//   begun 0, ready RANK 0, exit RANK STATUS 0, files COUNT 0 (of epochs, in its folders), probed SIZE, ended
//   0, fence EPOCH SIZE, aborted EPOCH RANK STATUS 0, log SIZE, failed SIZE
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/machine/outer_launcher.h"
#include "runtime/machine/pmix/pmix_probe.h"
#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/process.h"
#include "runtime/machine/session.h"
#include "test/runtime/machine/pmix/messages.h"

namespace trainctl {
namespace {

PmixServer::Epoch parsed_layout(const std::string& text) {
  PmixServer::Epoch epoch;
  std::istringstream hosts(text);
  for (std::string host; std::getline(hosts, host, ';');) {
    epoch.hosts.push_back(host.substr(0, host.find('=')));
    std::istringstream ranks(host.substr(host.find('=') + 1));
    auto& list = epoch.ranks_of_host.emplace_back();
    for (std::string rank; std::getline(ranks, rank, ',');) list.push_back(std::atoi(rank.c_str()));
  }
  return epoch;
}

class Host {
 public:
  Host(const std::string& socket, const std::string& name, const std::string& program)
      : test_(connect_messages(socket)), name_(name), program_(program) {
    PmixServer::Events events;
    events.fence = [this](uint64_t epoch, std::string data) {
      test_.send(fmt::format("fence {}", epoch), data);
    };
    events.aborted = [this](uint64_t epoch, int rank, int status, std::string) {
      test_.send(fmt::format("aborted {} {} {}", epoch, rank, status));
    };
    events.log = [this](std::string text) { test_.send("log", text); };
    server_ = std::make_unique<PmixServer>(
        PmixServer::Options{folders_.session(), folders_.shared_memory(), name, events});
  }

  /// Until the test closes the socket.
  void run() {
    while (true) {
      std::vector<pollfd> fds = {{test_.fd(), POLLIN, 0}};
      for (const auto& [rank, child] : ranks_) {
        fds.push_back({child->exit_fd(), POLLIN, 0});
        if (child->output_fd() >= 0) fds.push_back({child->output_fd(), POLLIN, 0});
      }
      ::poll(fds.data(), fds.size(), -1);
      if (fds[0].revents) {
        auto message = test_.receive(30);
        if (!message) return;
        for (; message; message = test_.next()) obey(*message);
      }
      look_at_ranks();
    }
  }

 private:
  void obey(const Message& message) {
    std::istringstream words(message.line);
    std::string what;
    words >> what;
    try {
      if (what == "begin") {
        begin(words);
      } else if (what == "kill") {
        int victim = 0;
        words >> victim;
        for (const auto& [rank, child] : ranks_)
          if (victim < 0 || rank == victim) child->signal_group(SIGKILL);
      } else if (what == "fence") {
        uint64_t epoch = 0;
        words >> epoch;
        server_->finish_fence(epoch, message.data);
      } else if (what == "break") {
        kill_pmix_service();
      } else if (what == "perish") {
        kill_descendants();
      } else if (what == "probe") {
        std::string mode;
        words >> mode;
        const auto problem = probe_pmix(*server_, {.argv = {program_, mode, "2"},
                                                   .settings = mpi_settings(),
                                                   .host_name = name_,
                                                   .deadline_s = mode == "late" ? 0.5 : 120});
        test_.send("probed", problem.text_or_empty());
      } else if (what == "files") {
        test_.send(
            fmt::format("files {}", files_in(folders_.session()) + files_in(folders_.shared_memory())));
      } else if (what == "end") {
        server_->end();
        test_.send("ended");
      }
    } catch (const Error& error) {
      test_.send("failed", error.what());
    }
  }

  static size_t files_in(const std::string& folder) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().filename().string().starts_with("epoch-"))
        for (const auto& below : std::filesystem::recursive_directory_iterator(entry))
          count += below.exists();
    return count;
  }

  static void kill_pmix_service() {
    for (const pid_t child : children_of(::getpid()))
      for (const pid_t grandchild : children_of(child)) ::kill(grandchild, SIGKILL);  // of the fork server
  }

  void begin(std::istringstream& words) {
    uint64_t number = 0;
    int this_host = 0;
    std::string layout, mode, setting;
    words >> number >> this_host >> layout >> mode >> setting;
    PmixServer::Epoch epoch = parsed_layout(layout);
    epoch.epoch = number;
    epoch.mark = fmt::format("test-{}", ::getppid());
    epoch.this_host = this_host;
    server_->begin(epoch);
    size_t world_size = 0;
    for (const auto& ranks : epoch.ranks_of_host) world_size += ranks.size();
    for (const int rank : epoch.ranks_of_host[size_t(this_host)]) {
      Environment environment = server_->environment_of(rank);
      const size_t equals = setting.find('=');
      const std::string special = setting.substr(0, equals);
      if (!special.empty()) environment.emplace_back(special, setting.substr(equals + 1));
      for (const auto& [name, value] : mpi_settings())
        if (name != special) environment.emplace_back(name, value);
      if (mode == "none") continue;
      ranks_[rank] = std::make_unique<ChildProcess>(
          std::vector<std::string>{program_, mode, fmt::format("{}", world_size)}, environment);
    }
    test_.send("begun");
  }

  void look_at_ranks() {
    for (auto it = ranks_.begin(); it != ranks_.end();) {
      ChildProcess& child = *it->second;
      const auto status = child.reap();  // before its output is read: nothing comes after
      std::string& text = output_[it->first];
      text += child.read_output();
      for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
        const std::string line = text.substr(0, end);
        if (line == "ready") {
          test_.send(fmt::format("ready {}", it->first));
        } else {
          test_.send("log", line);
        }
      }
      if (status) test_.send(fmt::format("exit {} {}", it->first, *status));
      it = status ? ranks_.erase(it) : std::next(it);
    }
  }

  SessionFolders folders_;
  MessageSocket test_;
  const std::string name_, program_;
  std::unique_ptr<PmixServer> server_;
  std::map<int, std::unique_ptr<ChildProcess>> ranks_;  // ended before the server
  std::map<int, std::string> output_;
};

}  // namespace
}  // namespace trainctl

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 4) return 2;
  trainctl::forget_outer_launcher();
  try {
    trainctl::Host(argv[1], argv[2], argv[3]).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
