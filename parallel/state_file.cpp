#include "parallel/state_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

constexpr size_t kDiskBlock = 4096;
/// So much goes through memory of its own at a time (StateFile::read).
constexpr size_t kReadBytes = size_t{1} << 20;

[[noreturn]] void fail_memory(const char* what, size_t bytes) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {} bytes of memory for the optimizer's state in a file: {}", what, bytes,
                          std::strerror(errno)));
}

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

StateFile::StateFile(std::unique_ptr<File> file, std::vector<uint64_t> begins)
    : file_(std::move(file)), begins_(std::move(begins)) {
  ENSURE(begins_.size() >= 2 && begins_.front() == 0, "{} places of parts", begins_.size());
  for (const uint64_t begin : begins_) ENSURE(begin % kDiskBlock == 0, "a part at {}", begin);
  void* const range =
      ::mmap(nullptr, begins_.back(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) fail_memory("reserve", begins_.back());
  address_ = static_cast<std::byte*>(range);
}

StateFile::~StateFile() { ::munmap(address_, begins_.back()); }

void StateFile::take_memory(size_t i) const {
  if (::mprotect(part(i).data(), part(i).size(), PROT_READ | PROT_WRITE) != 0)
    fail_memory("take", part(i).size());
}

void StateFile::give_back(size_t i) const noexcept {
  // New pages in place of the old ones, whose memory is free at once.
  ::mmap(part(i).data(), part(i).size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
}

/// Of its parts, those that are in memory are [first_, read_): written, used, being read. Its end waits for
/// what is under way and gives all memory back.
class StateFile::Visit {
 public:
  Visit(StateFile& file, StateAccess access) : file_(file), access_(access) {}
  ~Visit() {
    for (std::future<void>* under_way : {&reading_, &writing_})
      if (under_way->valid()) under_way->wait();
    while (first_ < read_) file_.give_back(first_++);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  void run(const std::function<void(size_t)>& use) {
    const size_t parts = file_.begins_.size() - 1;
    begin_read();
    for (size_t i = 0; i < parts; ++i) {
      reading_.get();
      // Three parts are in memory at most: the one before this one may still be on its way.
      if (i + 1 < parts) begin_read();
      use(i);
      finish_write();
      if (access_ == StateAccess::read)
        file_.give_back(first_++);
      else
        begin_write(i);
    }
    finish_write();
  }

 private:
  void begin_read() {
    const size_t part = read_;
    file_.take_memory(part);
    ++read_;
    if (access_ == StateAccess::write) {
      std::promise<void> there;
      there.set_value();
      reading_ = there.get_future();
      return;
    }
    reading_ = std::async(std::launch::async,
                          [this, part] { file_.file_->read_at(file_.begins_[part], file_.part(part)); });
  }
  void begin_write(size_t part) {
    writing_ = std::async(std::launch::async,
                          [this, part] { file_.file_->write_at(file_.begins_[part], file_.part(part)); });
  }
  void finish_write() {
    if (!writing_.valid()) return;
    writing_.get();
    file_.give_back(first_++);
  }

  StateFile& file_;
  const StateAccess access_;
  size_t first_ = 0, read_ = 0;
  std::future<void> reading_, writing_;
};

void StateFile::visit(StateAccess access, const std::function<void(size_t)>& use) {
  if (is_lost_ && access != StateAccess::write)
    throw Error(ErrorCode::kIo, "the optimizer's state is lost: a read or a write of its file failed before");
  is_lost_ = is_lost_ || access != StateAccess::read;
  Visit(*this, access).run(use);
  is_lost_ = false;
}

void StateFile::read(const std::byte* at, std::span<std::byte> to) const {
  ENSURE(has(at) && to.size() <= size_t(address_ + begins_.back() - at), "{} bytes of no state", to.size());
  const std::unique_ptr<void, FreeMemory> room(std::aligned_alloc(kDiskBlock, kReadBytes));
  if (!room) fail_memory("take", kReadBytes);
  for (uint64_t begin = uint64_t(at - address_); !to.empty();) {
    // A disk reads whole blocks.
    const uint64_t block = begin / kDiskBlock * kDiskBlock, skipped = begin - block;
    const size_t bytes = std::min<size_t>(to.size(), kReadBytes - skipped);
    const size_t blocks = (skipped + bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
    const std::span<std::byte> whole(static_cast<std::byte*>(room.get()), blocks);
    file_->read_at(block, whole);
    std::memcpy(to.data(), whole.data() + skipped, bytes);
    to = to.subspan(bytes), begin += bytes;
  }
}

}  // namespace trainctl::parallel
