// Goal: a write or a read that the system interrupts, or does in part, is gone on with; an exhausted quota is
//       an error that names the file; what a slow disk has not taken yet stays bounded.
// Method: this program's own pwrite, pread and sync_file_range in the place of the C library's: they do what
//         a test wants in its own thread.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

/// What the calls of this thread do; every other thread's are untouched.
struct Calls {
  int interrupts = 0;  ///< so many calls fail with EINTR first
  size_t most = 0;     ///< a call moves so many bytes at most; 0: all of them
  int fails = 0;       ///< errno with which each call fails
  bool moves_nothing = false;
  int sync_fails = 0;
  int syncs = 0;  ///< of sync_file_range
};
thread_local Calls* calls = nullptr;

struct WithCalls {
  explicit WithCalls(Calls& what) { calls = &what; }
  ~WithCalls() { calls = nullptr; }
};

/// The number of bytes to move; nullopt: errno is set.
std::optional<size_t> allowed(size_t bytes) {
  if (!calls) return bytes;
  if (calls->interrupts > 0) {
    --calls->interrupts;
    errno = EINTR;
    return std::nullopt;
  }
  if (calls->fails != 0) {
    errno = calls->fails;
    return std::nullopt;
  }
  if (calls->moves_nothing) return 0;
  return calls->most > 0 ? std::min(bytes, calls->most) : bytes;
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const auto now = allowed(bytes);
  return now ? ::syscall(SYS_pwrite64, fd, data, *now, offset) : -1;
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  const auto now = allowed(bytes);
  return now ? ::syscall(SYS_pread64, fd, data, *now, offset) : -1;
}
int sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags) {
  if (calls) ++calls->syncs;
  if (calls && calls->sync_fails != 0) {
    errno = calls->sync_fails;
    return -1;
  }
  return int(::syscall(SYS_sync_file_range, fd, offset, bytes, flags));
}

}  // extern "C"

namespace {

/// Bytes at an address and with a length that suit a write past the system's cache, and one more.
std::vector<std::byte> content_of(size_t bytes) {
  std::vector<std::byte> content(bytes);
  for (size_t i = 0; i < bytes; ++i) content[i] = std::byte(i * 131 >> 3);
  return content;
}

std::span<std::byte> aligned(std::vector<std::byte>& room, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(room.data());
  return std::span(room).subspan((4096 - at % 4096) % 4096, bytes);
}

}  // namespace

TEST_CASE("writes and reads go on after interrupts and short counts", "[interrupted]") {
  const TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  const size_t bytes = GENERATE(100u, (2u << 20) + 5);  // the larger one also past the cache
  std::vector<std::byte> room(bytes + 8192), back_room(bytes + 8192);
  const auto content = aligned(room, bytes), back = aligned(back_room, bytes);
  const std::vector<std::byte> source = content_of(bytes);
  std::copy(source.begin(), source.end(), content.begin());
  int number = 0;
  for (const size_t most : {size_t(0), size_t(7), size_t(4096), size_t(5000)}) {
    if (bytes > 1000 && most == 7) continue;
    INFO(bytes << " bytes, at most " << most << " a call");
    const std::string path = dir.path() + "/" + std::to_string(number++);
    Calls what{.interrupts = 3, .most = most};
    {
      const WithCalls with(what);
      const auto file = fs.create(path);
      file->write_at(0, content);
      what.interrupts = 2;
      file->write_at(bytes, content.first(10));
      file->sync();
    }
    CHECK(what.interrupts == 0);
    what.interrupts = 3;
    {
      const WithCalls with(what);
      const auto file = fs.open_read(path);
      CHECK(file->size() == bytes + 10);
      std::fill(back.begin(), back.end(), std::byte(0));
      file->read_at(0, back);
    }
    CHECK(std::equal(content.begin(), content.end(), back.begin()));
    CHECK(what.interrupts == 0);
  }
}

TEST_CASE("a quota that is exhausted, or a disk that takes nothing, is an error that names the file",
          "[interrupted]") {
  const TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  const std::string path = dir.path() + "/file";
  const auto file = fs.create(path);
  const std::vector<std::byte> content = content_of(100);
  const auto message_of = [&](Calls what) {
    const WithCalls with(what);
    try {
      file->write_at(0, content);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIo);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(message_of({.fails = EDQUOT}) == "cannot write " + path + ": Disk quota exceeded");
  CHECK(message_of({.moves_nothing = true}) == "cannot write " + path + ": No space left on device");
  CHECK(message_of({}) == "nothing was thrown");
}

TEST_CASE("what a slow disk has not taken yet is bounded, and its error is one of the write",
          "[interrupted]") {
  const TemporaryFolder dir;
  FileSystem& fs = real_file_system();
  const std::vector<std::byte> content = content_of(8 << 20);
  Calls what;
  const WithCalls with(what);
  const std::string path = dir.path() + "/file";
  const auto file = fs.create(path);
  // At an odd place, so that it goes through the system's cache.
  for (int i = 0; i < 17; ++i) file->write_at(1 + uint64_t(i) * content.size(), content);
  CHECK(what.syncs == 2);
  what.sync_fails = EINVAL;  // it has no such call
  for (int i = 17; i < 25; ++i) file->write_at(1 + uint64_t(i) * content.size(), content);
  what.sync_fails = EDQUOT;
  const auto write_on = [&] {
    for (int i = 25; i < 34; ++i) file->write_at(1 + uint64_t(i) * content.size(), content);
  };
  CHECK_THROWS_WITH(write_on(), "cannot write " + path + ": Disk quota exceeded");
}
