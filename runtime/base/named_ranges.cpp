#include "runtime/base/named_ranges.h"

#include <atomic>
#include <cstdint>

namespace trainctl {

struct NamedRange::Entry {
  uintptr_t begin;
  size_t bytes;
  std::string name;
  std::atomic<bool> is_live = true;
  Entry* next = nullptr;
};

namespace {
std::atomic<NamedRange::Entry*> g_first = nullptr;
}  // namespace

NamedRange::NamedRange(const void* begin, size_t bytes, std::string name)
    : entry_(new Entry{.begin = uintptr_t(begin), .bytes = bytes, .name = std::move(name)}) {
  entry_->next = g_first.load();
  while (!g_first.compare_exchange_weak(entry_->next, entry_)) {
  }
}

NamedRange::~NamedRange() {
  if (entry_) entry_->is_live = false;
}

NamedAddress named_address(const void* address) {
  const auto at = uintptr_t(address);
  for (const NamedRange::Entry* entry = g_first; entry; entry = entry->next)
    if (entry->is_live && at >= entry->begin && at - entry->begin < entry->bytes)
      return {entry->name.c_str(), entry->bytes};
  return {};
}

}  // namespace trainctl
