#include "runtime/machine/pmix/pmix_probe.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

constexpr int kRanks = 2;  // a single one could not tell a world of PMIx from one of its own

struct ProbeRank {
  std::unique_ptr<ChildProcess> process;
  std::string output;
  std::optional<int> status;
};

/// `over` wins where both have a variable.
Environment merged(Environment base, const Environment& over) {
  for (const auto& [name, value] : over) {
    std::erase_if(base, [&](const auto& variable) { return variable.first == name; });
    base.emplace_back(name, value);
  }
  return base;
}

/// Reads the ranks' output until all have ended. False if the deadline came first.
bool wait_for(std::vector<ProbeRank>& ranks, double deadline_s) {
  const double end_s = real_clock().monotonic_s() + deadline_s;
  while (true) {
    std::vector<pollfd> fds;
    for (ProbeRank& rank : ranks) {
      if (!rank.status) rank.status = rank.process->reap();
      rank.output += rank.process->read_output();
      if (!rank.status) fds.push_back({rank.process->exit_fd(), POLLIN, 0});
      if (!rank.status && rank.process->output_fd() >= 0)
        fds.push_back({rank.process->output_fd(), POLLIN, 0});
    }
    if (fds.empty()) return true;
    const double left_s = end_s - real_clock().monotonic_s();
    if (left_s <= 0) return false;
    ::poll(fds.data(), fds.size(), int(left_s * 1000) + 1);
  }
}

std::string last_line(std::string text) {
  while (!text.empty() && std::strchr("\n\r\t -", text.back())) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// What was wrong with a rank.
Problem problem_of_probe(const ProbeRank& rank) {
  const int status = *rank.status;
  if (WIFSIGNALED(status))
    return Problem(
        fmt::format("was ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status))));
  if (WEXITSTATUS(status) != 0)
    return Problem(fmt::format("exited with {}: {}", WEXITSTATUS(status), last_line(rank.output)));
  if (("\n" + rank.output).find(fmt::format("\nworld_size {}\n", kRanks)) == std::string::npos)
    return Problem(fmt::format("did not see the other one: {}", last_line(rank.output)));
  return Problem::none();
}

Problem run(PmixServer& server, const PmixProbe& probe) {
  PmixServer::Epoch epoch;
  epoch.mark = fmt::format("probe-{}", ::getpid());
  epoch.hosts = {probe.host_name};
  epoch.ranks_of_host.resize(1);
  for (int rank = 0; rank < kRanks; ++rank) epoch.ranks_of_host[0].push_back(rank);
  server.begin(epoch);
  std::vector<ProbeRank> ranks(kRanks);  // ended when this function is left
  for (int rank = 0; rank < kRanks; ++rank)
    ranks[size_t(rank)].process =
        std::make_unique<ChildProcess>(probe.argv, merged(server.environment_of(rank), probe.settings));
  if (!wait_for(ranks, probe.deadline_s))
    return Problem(fmt::format("ranks started through PMIx did not get through MPI_Init within {} s",
                       probe.deadline_s));
  for (const ProbeRank& rank : ranks)
    if (const Problem problem = problem_of_probe(rank); problem.exists())
      return Problem("a rank started through PMIx " + problem.text());
  return Problem::none();
}

}  // namespace

Problem probe_pmix(PmixServer& server, const PmixProbe& probe) {
  try {
    const Problem problem = run(server, probe);
    server.end();
    return problem;
  } catch (const Error& error) {
    return Problem(error.what());
  }
}

}  // namespace trainctl
