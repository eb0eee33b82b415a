// Goal: the machine's memory is what the kernel's table says, and a process has no more of it than its
// control groups allow.
// Method: chosen texts of that table and of the groups' files, of both versions, with and without the lines.
#include "runtime/base/process_memory.h"

#include <catch2/catch.hpp>

using namespace trainctl;

TEST_CASE("memory is read from the kernel's table", "[memory]") {
  const SystemMemory memory = system_memory_of("MemTotal:  100 kB\nMemFree: 5 kB\nMemAvailable:     50 kB\n");
  CHECK(memory.total_bytes == 100 * 1024);
  CHECK(memory.available_bytes == 50 * 1024);
  CHECK(system_memory_of("MemTotal: 100 kB\n").available_bytes == 0);
  CHECK(system_memory_of("").total_bytes == 0);
}

TEST_CASE("the groups above a process's own limit it, too", "[memory]") {
  using Folders = std::vector<std::string>;
  CHECK(control_groups_of("0::/a/b\n", "") ==
        Folders{"/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"});
  const std::string first = "9:name=systemd:/x\n4:memory:/job_7\n1:cpu:/y\n0::/\n";
  CHECK(control_groups_of(first, "memory") ==
        Folders{"/sys/fs/cgroup/memory/job_7", "/sys/fs/cgroup/memory"});
  CHECK(control_groups_of(first, "") == Folders{"/sys/fs/cgroup"});
  for (const std::string text : {"", "nonsense\n", "0:\n", ":\n", "0::\n", "0::a\n"})
    CHECK(control_groups_of(text, "") == Folders{"/sys/fs/cgroup"});
}

TEST_CASE("cached files of a control group do not count as used", "[memory]") {
  const GroupMemory second =
      group_memory_of("1000\n", "700\n", "anon 300\nfile 400\ninactive_file 150\nactive_file 50\n");
  CHECK(second.limit_bytes == 1000);
  CHECK(second.used_bytes == 500);
  const GroupMemory first = group_memory_of(
      "1000\n", "700\n", "inactive_file 1\nactive_file 2\ntotal_inactive_file 100\ntotal_active_file 200\n");
  CHECK(first.used_bytes == 400);
  CHECK(group_memory_of("max\n", "700\n", "").limit_bytes == 0);
  CHECK(group_memory_of("1000\n", "700\n", "").used_bytes == 700);
  CHECK(group_memory_of("1000\n", "700\n", "inactive_file 900\n").used_bytes == 0);
  CHECK(group_memory_of("", "", "").limit_bytes == 0);
}

TEST_CASE("the least that any control group leaves is what a process may use", "[memory]") {
  const SystemMemory machine{.total_bytes = 1000, .available_bytes = 600};
  const auto check = [&](const std::vector<GroupMemory>& groups, uint64_t total, uint64_t available) {
    const SystemMemory memory = within_groups(machine, groups);
    CHECK(memory.total_bytes == total);
    CHECK(memory.available_bytes == available);
  };
  check({}, 1000, 600);
  check({{.limit_bytes = 9223372036854771712u, .used_bytes = 900}}, 1000, 600);  // version 1 without a limit
  check({{.limit_bytes = 0, .used_bytes = 900}}, 1000, 600);
  check({{.limit_bytes = 500, .used_bytes = 100}}, 500, 400);
  check({{.limit_bytes = 900, .used_bytes = 100}}, 900, 600);  // the machine has less left
  // The group above is larger, but others have filled it.
  check({{.limit_bytes = 500, .used_bytes = 100}, {.limit_bytes = 800, .used_bytes = 750}}, 500, 50);
  check({{.limit_bytes = 500, .used_bytes = 600}}, 500, 1);  // none is left; 0 would say that it is not known
}
