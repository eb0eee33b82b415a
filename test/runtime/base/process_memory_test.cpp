// Goal: the machine's memory is what the kernel's table says.
// Method: chosen texts of that table, with and without the line.
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
