// StateFile: rows of the optimizer's state in a file of this rank, cut into parts that come into memory one
// after another. While one is used, the next is read and the last is written.
//
// Every byte of the state has an address for as long as the object lives, and memory only while its part is
// used: a look at another time ends the process. So what points into the state needs to know nothing of
// files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl::parallel {

/// What is done with state. write: all of it becomes new, and is zero before.
enum class StateAccess : uint8_t { read, write, update };

/// One thread uses it, but for read().
class StateFile {
 public:
  /// begins: of each part, multiples of a page, and the end of the last one. The file needs no content yet.
  /// Error(kIo): no addresses are left.
  StateFile(std::unique_ptr<File> file, std::vector<uint64_t> begins);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  std::byte* address() const { return address_; }
  bool has(const std::byte* at) const { return at >= address_ && at < address_ + begins_.back(); }

  /// Calls use(part) for all parts in order, each while it is in memory. What was written is in the file on
  /// return. Throws what the first read, write or use threw that failed; unless all were reads, the state is
  /// then lost until a visit writes all of it: others fail.
  void visit(StateAccess access, const std::function<void(size_t part)>& use);
  /// Fills `to` with the state from address `at` on, through memory of its own. Any thread, while no visit
  /// writes.
  void read(const std::byte* at, std::span<std::byte> to) const;

 private:
  class Visit;
  std::span<std::byte> part(size_t i) const { return {address_ + begins_[i], begins_[i + 1] - begins_[i]}; }
  void take_memory(size_t part) const;
  void give_back(size_t part) const noexcept;

  const std::unique_ptr<File> file_;
  const std::vector<uint64_t> begins_;
  std::byte* address_ = nullptr;
  bool is_lost_ = false;
};

}  // namespace trainctl::parallel
