// Which cores ranks are bound to.
//
// Goal: ranks of a machine get disjoint, even parts of the cores that this process may use, near their GPUs,
// and none where there are too few. Method: hwloc on this machine, its answers read back as sets of CPUs and
// compared with the affinity of this process; and on a described machine with GPUs.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/machine/binding.h"
#include "test/support/temporary_folder.h"

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

namespace {

/// A machine as hwloc describes it: two packages of four cores, each with a PCI bridge and GPUs behind it.
std::string machine_with_gpus(const std::vector<std::string> (&gpus)[2]) {
  int number = 0;
  const auto object = [&](const std::string& type, unsigned cpus, int index, const std::string& inside) {
    const unsigned node = cpus <= 15 ? 1 : cpus < 255 ? 2 : 3;
    return fmt::format(R"(<object type="{0}" os_index="{1}" cpuset="{2:#x}" complete_cpuset="{2:#x}" )"
                       R"({5}nodeset="{3:#x}" complete_nodeset="{3:#x}" gp_index="{4}">{6}</object>)",
                       type, index, cpus, node, ++number,
                       type == "Machine" ? R"(allowed_cpuset="0xff" allowed_nodeset="0x3" )" : "", inside);
  };
  std::string packages;
  for (int package = 0; package < 2; ++package) {
    const unsigned cpus = package == 0 ? 0x0f : 0xf0;
    std::string inside = object("NUMANode", cpus, package, "");
    for (int core = 4 * package; core < 4 * package + 4; ++core)
      inside += object("Core", 1u << core, core, object("PU", 1u << core, core, ""));
    inside += fmt::format(
        R"(<object type="Bridge" gp_index="{}" bridge_type="0-1" depth="0" bridge_pci="0000:[{}0-{}f]">)",
        ++number, package + 1, package + 1);
    for (const std::string& gpu : gpus[package])
      inside += fmt::format(R"(<object type="PCIDev" gp_index="{}" pci_busid="{}" )"
                            R"(pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0.0"/>)",
                            ++number, gpu);
    packages += object("Package", cpus, package, inside + "</object>");
  }
  return R"(<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">)" +
         object("Machine", 0xff, 0, packages) + "</topology>";
}

/// While it lives, hwloc sees the described machine.
class DescribedMachine {
 public:
  explicit DescribedMachine(const std::string& xml) {
    std::ofstream(file_) << xml;
    ::setenv("HWLOC_XMLFILE", file_.c_str(), 1);
  }
  ~DescribedMachine() { ::unsetenv("HWLOC_XMLFILE"); }

 private:
  test::TemporaryFolder folder_;
  std::string file_ = folder_.path() + "/machine.xml";
};

}  // namespace

TEST_CASE("a rank has cores of the package that its GPU is attached to") {
  const DescribedMachine machine(machine_with_gpus({{"0000:10:00.0", "0000:11:00.0"}, {"0000:20:00.0"}}));
  const std::vector<std::string> swapped = {"0000:20:00.0", "0000:11:00.0", "0000:10:00.0"};
  CHECK(cores_for(3, 1, swapped) == std::vector<std::string>{"4-7", "0-1", "2-3"});
  // Ranks that share a GPU share its package.
  CHECK(cores_for(2, 1, {"0000:20:00.0", "0000:20:00.0"}) == std::vector<std::string>{"4-5", "6-7"});
  // Without GPUs, with one that hwloc does not know, and where a package has too few cores: evenly.
  const std::vector<std::string> evenly = cores_for(3, 1);
  CHECK(evenly.size() == 3);
  CHECK(cores_for(3, 1, {"0000:20:00.0", "0000:11:00.0", "0000:99:00.0"}) == evenly);
  CHECK(cores_for(2, 3, {"0000:10:00.0", "0000:11:00.0"}) == cores_for(2, 3));
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
