// Names of address ranges, for the handler of a crash: which mapped file an access failed in.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

namespace trainctl {

/// Names the bytes [begin, begin + bytes) while it lives. Move-only. The entries are a few words each and are
/// never freed, because a handler may look at them at any time.
class NamedRange {
 public:
  NamedRange() = default;
  NamedRange(const void* begin, size_t bytes, std::string name);
  ~NamedRange();
  NamedRange(NamedRange&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  NamedRange& operator=(NamedRange&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }

  struct Entry;

 private:
  Entry* entry_ = nullptr;
};

/// A named range that holds an address. `name` null: there is none.
struct NamedAddress {
  const char* name = nullptr;
  size_t bytes = 0;  ///< of the range
};
/// Async-signal-safe. The name stays valid.
NamedAddress named_address(const void* address);

}  // namespace trainctl
