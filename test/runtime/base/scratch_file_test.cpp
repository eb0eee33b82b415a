// Goal: a scratch file is room on a local disk that leaves nothing behind; a folder that is none is refused
// with one sentence, and so is a file that is shorter than what was written. Method: real folders, among them
// one in memory; the numbers of file systems for those that are not here; a file cut behind its owner's back.
#include "runtime/base/scratch_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/base/error.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Matchers::Contains;

namespace {

std::string refusal_of(const std::string& directory, uint64_t bytes) {
  try {
    create_scratch_file({.directory = directory, .field = "optimizer.offload_directory", .bytes = bytes});
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kPreflight);
    return error.what();
  }
  return "";
}

/// Descriptors of this process of files without a name in `folder`.
std::vector<std::string> open_scratch_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(folder + "/")) found.push_back(entry.path().string());
  }
  return found;
}

}  // namespace

TEST_CASE("a scratch file holds what is written, in whole blocks and in others, and has no name", "[file]") {
  const TemporaryFolder dir("scratch", ".");
  constexpr size_t kBytes = size_t{1} << 20;
  {
    const auto file = create_scratch_file({.directory = dir.path(), .field = "f", .bytes = 4 * kBytes});
    CHECK(file->size() == 4 * kBytes);
    CHECK(std::filesystem::is_empty(dir.path()));
    CHECK(!open_scratch_files(dir.path()).empty());
    std::byte* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, 2 * kBytes));
    const std::span<std::byte> written(memory, kBytes), got(memory + kBytes, kBytes);
    for (size_t i = 0; i < kBytes; ++i) written[i] = std::byte(i * 7 >> 3);
    file->write_at(kBytes, written);
    file->read_at(kBytes, got);
    CHECK(std::memcmp(written.data(), got.data(), kBytes) == 0);
    file->write_at(kBytes + 5, written.subspan(1, 1000));
    file->read_at(kBytes + 3, got.subspan(7, 900));
    CHECK(std::memcmp(got.data() + 9, written.data() + 1, 898) == 0);
    file->read_at(kBytes, got);
    CHECK(std::memcmp(got.data() + 1005, written.data() + 1005, kBytes - 1005) == 0);
    std::free(memory);
  }
  CHECK(open_scratch_files(dir.path()).empty());
}

TEST_CASE("a folder that is no local disk, missing or too small is refused by name", "[file]") {
  const TemporaryFolder dir("scratch", ".");
  CHECK_THAT(refusal_of(dir.path() + "/none", 1), Contains("optimizer.offload_directory " + dir.path() +
                                                           "/none does not exist on this node; make it"));
  std::filesystem::create_directory(dir.path() + "/in");
  const auto file = real_file_system().create(dir.path() + "/file");
  CHECK_THAT(refusal_of(dir.path() + "/file", 1), Contains("is no folder on this node"));
  CHECK_THAT(refusal_of(dir.path() + "/file/below", 1), Contains("is no folder on this node"));
  CHECK_THAT(refusal_of("/dev/shm", 1),
             Contains("/dev/shm is on memory (tmpfs), not on a local disk; name a folder on a disk"));
  CHECK_THAT(refusal_of("/proc", 1), Contains("/proc"));
  CHECK_THAT(refusal_of(dir.path(), uint64_t{1} << 60),
             Contains("has room for") && Contains("takes 1048576.00 TiB") && Contains("zero_stage"));
  CHECK(refusal_of(dir.path(), 4096).empty());
  CHECK(std::string(no_local_disk(0x6969)) == "NFS");
  CHECK(std::string(no_local_disk(0x0bd00bd0)) == "Lustre");
  CHECK(no_local_disk(0xef53) == nullptr);      // ext4
  CHECK(no_local_disk(0x58465342) == nullptr);  // XFS
}

TEST_CASE("a scratch file that has become shorter fails a read with what to do", "[file]") {
  const TemporaryFolder dir("scratch", ".");
  const auto file = create_scratch_file({.directory = dir.path(), .field = "the.field", .bytes = 16384});
  for (const std::string& descriptor : open_scratch_files(dir.path()))
    REQUIRE(::truncate(descriptor.c_str(), 8192) == 0);
  std::vector<std::byte> got(9000);
  CHECK_NOTHROW(file->read_at(0, std::span(got).first(8192)));
  CHECK_THROWS_WITH(file->read_at(0, got),
                    Contains("the file in " + dir.path() + " (the.field) ends at byte 8192 of 16384") &&
                        Contains("resume from the last checkpoint"));
}
