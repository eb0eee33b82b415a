// Which cores ranks are bound to.
//
// Goal: ranks of a machine get disjoint, even parts of the cores that this process may use, and none where there are too few.
// Method: hwloc on this machine, its answers read back as sets of CPUs and compared with the affinity of this process.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <sstream>

#include "runtime/machine/binding.h"

using namespace trainctl;

namespace {

std::set<int> cpus_of(const std::string& list) {
  std::set<int> cpus;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    for (int cpu = first; cpu <= (read == 2 ? last : first); ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::set<int> allowed() {
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  std::set<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  return cpus;
}

}  // namespace

TEST_CASE("ranks get disjoint parts of the cores that this process may use") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const std::vector<std::string> lists = cores_for(ranks, 1);
    if (lists.empty()) continue;  // fewer cores than ranks
    REQUIRE(int(lists.size()) == ranks);
    std::set<int> seen;
    for (const std::string& list : lists) {
      const std::set<int> cpus = cpus_of(list);
      INFO(ranks << " ranks: " << list);
      CHECK_FALSE(cpus.empty());
      for (const int cpu : cpus) {
        CHECK(allowed().count(cpu) == 1);
        CHECK(seen.insert(cpu).second);
      }
    }
  }
  CHECK_FALSE(cores_for(1, 1).empty());
}

TEST_CASE("where cores are too few for all ranks nobody is bound") {
  CHECK(cores_for(100000, 1).empty());
  CHECK(cores_for(1, 100000).empty());
  CHECK(cores_for(0, 1).empty());
  CHECK(bind_rank(0, 100000, 1).empty());
  CHECK(bind_rank(7, 1, 1).empty());
}

TEST_CASE("a bound process runs on its cores alone") {
  if (cores_for(2, 1).empty()) {
    WARN("one core: nothing to divide");
    return;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const std::set<int> cpus = cpus_of(bind_rank(1, 2, 1));
    ::_exit(cpus == allowed() && !cpus.empty() ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
