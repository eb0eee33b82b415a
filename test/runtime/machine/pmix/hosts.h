// Hosts of test/runtime/machine/pmix/host.cpp, and the part of the supervisor in their epochs: exchanges the fences, collects
// what happens.
#pragma once
#include <sys/syscall.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "runtime/machine/process.h"
#include "runtime/machine/session.h"
#include "test/runtime/machine/pmix/messages.h"
#include "test/support/temporary_folder.h"

namespace trainctl {

class Hosts {
 public:
  /// `ranks_of_host`: host i is called "hi"; only the first `played` have a process.
  Hosts(const std::string& host_program, const std::string& rank_program,
        std::vector<std::vector<int>> ranks_of_host, size_t played)
      : ranks_of_host_(std::move(ranks_of_host)) {
    const std::string path = folder_ / "socket";
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = unix_address(path);
    REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener, 8) == 0);
    for (size_t i = 0; i < played; ++i) {
      processes_.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{host_program, path, fmt::format("h{}", i), rank_program},
          Environment{{"TRAINCTL_PMIX_TEST", folder_.path()}}));
      pollfd fd = {listener, POLLIN, 0};
      REQUIRE(::poll(&fd, 1, 30000) == 1);
      sockets_.push_back(
          std::make_unique<MessageSocket>(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)));
    }
    ::close(listener);
  }
  ~Hosts() {
    sockets_.clear();  // a host ends when its test is gone, and removes its folders
    for (const auto& process : processes_) {
      pollfd ended = {process->exit_fd(), POLLIN, 0};
      ::poll(&ended, 1, 10000);
    }
    processes_.clear();
  }

  /// Starts every rank in `mode` of test/runtime/machine/pmix/rank.cpp.
  void begin(uint64_t epoch, const std::string& mode, const std::string& setting = "") {
    epoch_ = epoch;
    ready_.clear();
    statuses_.clear();
    aborted_.clear();
    shares_.clear();
    begun_ = ended_ = 0;
    std::string layout;
    for (size_t host = 0; host < ranks_of_host_.size(); ++host) {
      layout += fmt::format("{}h{}=", host ? ";" : "", host);
      for (size_t i = 0; i < ranks_of_host_[host].size(); ++i)
        layout += fmt::format("{}{}", i ? "," : "", ranks_of_host_[host][i]);
    }
    for (size_t host = 0; host < sockets_.size(); ++host)
      sockets_[host]->send(fmt::format("begin {} {} {} {} {}", epoch, host, layout, mode, setting));
  }
  /// What a host says that cannot begin.
  std::string failure_of_begin() {
    failure_expected_ = true;
    failure_.reset();
    begin(1, "none");
    until([&] { return failure_.has_value(); });
    failure_expected_ = false;
    return *failure_;
  }
  void wait_begun() {
    until([&] { return begun_ == sockets_.size(); });
  }

  /// Until so many ranks have said `ready`.
  void wait_ready(size_t ranks) {
    until([&] { return ready_.size() >= ranks; });
  }
  void wait_log(const std::string& text) {
    until([&] { return log_.find(text) != std::string::npos; });
  }
  /// Kills the first host alone, and waits until everything that it has started is gone. How many that were.
  size_t crash() {
    std::vector<pid_t> below = {processes_[0]->pid()};
    for (size_t i = 0; i < below.size(); ++i)
      for (const pid_t child : children_of(below[i])) below.push_back(child);
    std::vector<int> open;
    for (const pid_t pid : below) open.push_back(int(::syscall(SYS_pidfd_open, pid, 0)));
    ::kill(below[0], SIGKILL);
    for (size_t i = 0; i < open.size(); ++i) {
      pollfd gone = {open[i], POLLIN, 0};
      INFO("process " << below[i] << " outlives its host " << below[0]);
      CHECK(::poll(&gone, 1, 10000) == 1);
      ::close(open[i]);
    }
    SessionFolders::sweep();  // the host's folders: nobody holds their lock any more
    return below.size() - 1;
  }
  /// How many processes have the hosts' mark in their environment.
  size_t marked() const { return processes_marked("TRAINCTL_PMIX_TEST", folder_.path()).size(); }
  void wait_aborted() {
    until([&] { return !aborted_.empty(); });
  }
  void wait_exits() { wait_exits(world_size()); }
  void wait_exits(size_t ranks) {
    until([&] { return statuses_.size() >= ranks; });
  }
  /// -1: all.
  void kill(int rank) {
    for (const auto& socket : sockets_) socket->send(fmt::format("kill {}", rank));
  }
  /// Kills each host's process that runs libpmix.
  void break_servers() {
    for (const auto& socket : sockets_) socket->send("break");
  }
  /// Kills everything below each host.
  void kill_descendants() {
    for (const auto& socket : sockets_) socket->send("perish");
  }
  /// What the first host's probe says.
  std::string probe(const std::string& mode) {
    probed_.reset();
    sockets_[0]->send(fmt::format("probe {}", mode));
    until([&] { return probed_.has_value(); });
    return *probed_;
  }
  /// How many files of epochs lie in all hosts' folders.
  int files() {
    files_ = 0;
    files_known_ = 0;
    for (const auto& socket : sockets_) socket->send("files");
    until([&] { return files_known_ == sockets_.size(); });
    return files_;
  }
  void end() {
    for (const auto& socket : sockets_) socket->send("end");
    until([&] { return ended_ == sockets_.size(); });
  }
  /// A whole epoch of ranks that add something up and exit with 0.
  void sum(uint64_t epoch) {
    begin(epoch, "sum");
    wait_exits();
    for (const auto& [rank, status] : statuses_) {
      CAPTURE(rank, log_);
      CHECK(status == 0);
    }
    end();
  }

  size_t world_size() const {
    size_t count = 0;
    for (const auto& ranks : ranks_of_host_) count += ranks.size();
    return count;
  }
  const std::map<int, int>& statuses() const { return statuses_; }
  const std::map<int, int>& aborted() const { return aborted_; }
  const std::string& log() const { return log_; }
  int fences() const { return fences_; }
  /// From now on each fence is first answered with nonsense of the epoch before, as a late message would be.
  void send_old_answers_first() { old_answers_ = true; }

 private:
  void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    while (!condition()) {
      std::vector<pollfd> fds;
      for (const auto& socket : sockets_) fds.push_back({socket->fd(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), 1000);
      for (size_t host = 0; host < fds.size(); ++host) {
        if (!fds[host].revents) continue;
        auto message = sockets_[host]->receive(600);
        if (!message) FAIL("host " << host << " is gone: " << processes_[host]->read_output() << log_);
        for (; message; message = sockets_[host]->next()) take(host, *message);
      }
      if (std::chrono::steady_clock::now() > deadline) {
        std::string outputs;
        for (const auto& process : processes_) outputs += process->read_output();
        FAIL("not within 10 min; ready " << ready_.size() << ", exited " << statuses_.size() << ", log "
                                         << log_ << outputs);
      }
    }
  }

  void take(size_t host, const Message& message) {
    std::istringstream words(message.line);
    std::string what;
    uint64_t epoch = 0;
    int rank = 0, status = 0;
    words >> what;
    if (what == "ready") {
      words >> rank;
      ready_.insert(rank);
    } else if (what == "exit") {
      words >> rank >> status;
      statuses_[rank] = status;
    } else if (what == "aborted") {
      words >> epoch >> rank >> status;
      CHECK(epoch == epoch_);
      aborted_[rank] = status;
    } else if (what == "begun") {
      ++begun_;
    } else if (what == "probed") {
      probed_ = message.data;
    } else if (what == "files") {
      words >> status;
      files_ += status;
      ++files_known_;
    } else if (what == "ended") {
      ++ended_;
    } else if (what == "fence") {
      words >> epoch;
      if (epoch != epoch_) return;
      shares_[host] = message.data;
      if (shares_.size() < sockets_.size()) return;
      std::string all;
      for (const auto& [of, share] : shares_) all += share;
      shares_.clear();
      ++fences_;
      for (const auto& socket : sockets_)
        if (old_answers_) socket->send(fmt::format("fence {}", epoch - 1), "old");
      for (const auto& socket : sockets_) socket->send(fmt::format("fence {}", epoch), all);
    } else if (what == "log") {
      log_ += message.data;
    } else if (what == "failed" && failure_expected_) {
      failure_ = message.data;
    } else if (what == "failed") {
      FAIL("host " << host << ": " << message.data);
    }
  }

  const std::vector<std::vector<int>> ranks_of_host_;
  test::TemporaryFolder folder_{"pmix"};
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  std::vector<std::unique_ptr<MessageSocket>> sockets_;
  uint64_t epoch_ = 0;
  std::set<int> ready_;
  std::map<int, int> statuses_;  ///< by rank, as of waitpid
  std::map<int, int> aborted_;   ///< by rank
  std::map<size_t, std::string> shares_;
  std::string log_;
  std::optional<std::string> probed_, failure_;
  bool failure_expected_ = false, old_answers_ = false;
  size_t begun_ = 0, ended_ = 0;
  int fences_ = 0, files_ = 0;
  size_t files_known_ = 0;
};

}  // namespace trainctl
