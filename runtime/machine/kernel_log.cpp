#include "runtime/machine/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <sstream>

namespace trainctl {
namespace {

/// A kernel keeps less by default.
constexpr size_t kLongestLog = size_t{16} << 20;

std::string lower_case(std::string text) {
  for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::map<std::string, long long> xids_in(const std::string& log) {
  static constexpr std::string_view kMark = "NVRM: Xid (PCI:", kEnd = "): ";
  static constexpr std::array kOfPrograms = {13, 31, 43, 45};
  std::map<std::string, long long> last;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t mark = line.find(kMark);
    const size_t end = mark == line.npos ? mark : line.find(kEnd, mark);
    if (end == line.npos) continue;
    const int xid = std::atoi(line.c_str() + end + kEnd.size());
    if (xid <= 0 || std::count(kOfPrograms.begin(), kOfPrograms.end(), xid) > 0) continue;
    const std::string bus_id = line.substr(mark + kMark.size(), end - mark - kMark.size());
    // "0000:1b:00", "0000:1b:00.0" or, of a part of a GPU, "0000:1b:00 GPU-I:07".
    last[lower_case(bus_id.substr(0, bus_id.find_first_of(". ")))] = xid;
  }
  return last;
}

std::string kernel_log() {
  const int fd = ::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return "";
  std::string text;
  std::array<char, 8192> record;  // a read returns one record, or EPIPE where the oldest was overwritten
  while (text.size() < kLongestLog) {
    const ssize_t n = ::read(fd, record.data(), record.size());
    if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (n <= 0) break;
    text.append(record.data(), size_t(n));
  }
  ::close(fd);
  return text;
}

kernels::GpuFacts gpu_facts_with_log(int index) {
  kernels::GpuFacts facts = kernels::gpu_facts(index);
  const std::string log = kernel_log();
  if (log.empty()) return facts;
  const std::map<std::string, long long> xids = xids_in(log);
  const auto found = xids.find(lower_case(facts.pci_bus_id.substr(0, facts.pci_bus_id.find('.'))));
  facts.last_xid = found == xids.end() ? 0 : found->second;
  return facts;
}

}  // namespace trainctl
