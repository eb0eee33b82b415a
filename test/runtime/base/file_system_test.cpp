// Goal: every file system of ours keeps the contract of its header: what fails names the path and the reason, nothing is replaced that
// must not be, and a file system that refuses a call gets the next best.
// Method: one list of checks on the machine's file system and on the one in memory, plain and with calls refused. Exit statuses
// against the documented table.
#include <sys/stat.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "test/support/power_loss_file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;
using Catch::Contains;

namespace {

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kIo);
    return error.what();
  }
  return "nothing was thrown";
}

void check_files(FileSystem& fs, const std::string& dir) {
  const std::string path = dir + "/file";
  fs.write_new_text(path, "hello");
  CHECK(fs.read_text(path) == "hello");
  CHECK_THAT(message_of([&] { fs.create(path); }), Contains(path) && Contains("File exists"));
  CHECK_THAT(message_of([&] { fs.write_new_text(path, "other"); }), Contains(path));
  CHECK_THAT(message_of([&] { fs.open_read(dir + "/none"); }), Contains(dir + "/none") && Contains("No such file"));
  {
    const auto file = fs.open_read(path);
    CHECK(file->size() == 5);
    std::string text(3, ' ');
    file->read_at(2, std::as_writable_bytes(std::span(text)));
    CHECK(text == "llo");
    CHECK_THAT(message_of([&] { file->read_at(3, std::as_writable_bytes(std::span(text))); }), Contains(path));
  }
  fs.replace_text(path, "new");
  fs.replace_text(dir + "/second", "new, too");
  CHECK(fs.read_text(path) == "new");
  {
    const auto file = fs.create(dir + "/a-third");
    file->write_at(4, bytes("efgh"));
    file->write_at(0, bytes("abcd"));
    file->sync();
  }
  CHECK(fs.read_text(dir + "/a-third") == "abcdefgh");
  CHECK(fs.list(dir) == std::vector<std::string>{"a-third", "file", "second"});
  fs.remove_file(path);
  CHECK_FALSE(fs.exists(path));
  CHECK_THAT(message_of([&] { fs.remove_file(path); }), Contains(path));
}

void check_folders(FileSystem& fs, const std::string& dir) {
  fs.make_directories(dir + "/a/b/c");
  fs.make_directories(dir + "/a/b/c");
  fs.make_directory(dir + "/a/b");
  CHECK(fs.is_directory(dir + "/a/b/c"));
  fs.write_new_text(dir + "/a/b/file", "x");
  CHECK_FALSE(fs.is_directory(dir + "/a/b/file"));
  CHECK_THAT(message_of([&] { fs.make_directory(dir + "/a/b/file"); }), Contains("/a/b/file"));
  CHECK_THAT(message_of([&] { fs.remove_directory(dir + "/a/b"); }), Contains("/a/b"));
  CHECK_THAT(message_of([&] { fs.list(dir + "/none"); }), Contains("/none"));
  fs.sync_directory(dir + "/a");
  CHECK_THAT(message_of([&] { fs.sync_directory(dir + "/none"); }), Contains("/none"));
  fs.remove_tree(dir + "/none");
  fs.remove_tree(dir + "/a");
  CHECK_FALSE(fs.exists(dir + "/a"));
}

void check_renames(FileSystem& fs, const std::string& dir) {
  fs.make_directories(dir + "/from/inner");
  fs.write_new_text(dir + "/from/inner/file", "one");
  fs.rename_no_replace(dir + "/from", dir + "/to");
  CHECK(fs.read_text(dir + "/to/inner/file") == "one");
  CHECK_FALSE(fs.exists(dir + "/from"));
  fs.make_directory(dir + "/from");
  CHECK_THAT(message_of([&] { fs.rename_no_replace(dir + "/from", dir + "/to"); }),
             Contains(dir + "/to") && Contains("File exists"));
  CHECK_THAT(message_of([&] { fs.rename_no_replace(dir + "/none", dir + "/new"); }), Contains("No such file"));
  CHECK_FALSE(fs.exists(dir + "/new"));
  fs.write_new_text(dir + "/x", "x");
  fs.write_new_text(dir + "/y", "y");
  CHECK_THAT(message_of([&] { fs.rename_no_replace(dir + "/x", dir + "/y"); }), Contains("File exists"));
  CHECK(fs.read_text(dir + "/y") == "y");
  CHECK(fs.read_text(dir + "/x") == "x");
}

}  // namespace

TEST_CASE("the machine's file system keeps the contract") {
  const TemporaryFolder folder;
  FileSystem& fs = real_file_system();
  for (const char* part : {"/files", "/folders", "/renames"}) fs.make_directory(folder.path() + part);
  check_files(fs, folder / "files");
  check_folders(fs, folder / "folders");
  check_renames(fs, folder / "renames");
  REQUIRE(fs.free_bytes(folder.path()));
  CHECK_FALSE(fs.free_bytes(folder / "none"));
}

TEST_CASE("the file system in memory keeps the contract, whatever it refuses") {
  for (const bool no_replace : {true, false})
    for (const bool folder_sync : {true, false}) {
      test::PowerLossFileSystem fs;
      if (!no_replace) fs.refuse_rename_no_replace();
      if (!folder_sync) fs.refuse_sync_directory();
      CAPTURE(no_replace, folder_sync);
      for (const char* part : {"/files", "/folders", "/renames"}) fs.make_directory(part);
      check_files(fs, "/files");
      check_folders(fs, "/folders");
      check_renames(fs, "/renames");
    }
}

TEST_CASE("what is no regular file is refused at once, a pipe without a writer too") {
  const TemporaryFolder folder;
  FileSystem& fs = real_file_system();
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& path : {folder / "pipe", folder.path(), std::string("/dev/null")})
    for (const auto& open : {&FileSystem::open_read, &FileSystem::open_write}) {
      INFO(path);
      CHECK_THROWS_WITH((fs.*open)(path),
                        Catch::StartsWith(path) || Catch::StartsWith("cannot open " + path));
    }
  CHECK_THROWS_WITH(fs.read_text(folder / "pipe"), Contains("is not a regular file"));
}

TEST_CASE("a rename whose answer was lost is not a failure, one that did not happen is") {
  test::PowerLossFileSystem fs;
  fs.refuse_rename_no_replace();
  fs.lose_answers_of_rename();
  fs.write_new_text("/a", "a");
  fs.rename_no_replace("/a", "/b");
  CHECK(fs.read_text("/b") == "a");
  CHECK_THAT(message_of([&] { fs.rename_no_replace("/none", "/c"); }), Contains("No such file"));
  fs.fail_at(0, test::Fault::io_error_once);
  CHECK_THAT(message_of([&] { fs.rename_no_replace("/b", "/c"); }), Contains("Input/output error"));
  CHECK(fs.exists("/b"));
}

TEST_CASE("removing a tree removes a link in it, never what it points to") {
  const TemporaryFolder folder;
  FileSystem& fs = real_file_system();
  fs.make_directories(folder / "kept");
  fs.write_new_text(folder / "kept/file", "x");
  fs.make_directory(folder / "tree");
  REQUIRE(::symlink((folder / "kept").c_str(), (folder / "tree/link").c_str()) == 0);
  CHECK(fs.is_link(folder / "tree/link"));
  fs.remove_tree(folder / "tree");
  CHECK_FALSE(fs.exists(folder / "tree"));
  CHECK(fs.exists(folder / "kept/file"));
}

TEST_CASE("every kind of error has a name and its documented exit status") {
  const std::vector<std::pair<ErrorCode, int>> table = {
      {ErrorCode::kInternal, 1},  {ErrorCode::kUsage, 2},      {ErrorCode::kSpec, 3},
      {ErrorCode::kPlan, 4},      {ErrorCode::kPreflight, 5},  {ErrorCode::kIo, 5},
      {ErrorCode::kData, 6},      {ErrorCode::kCheckpoint, 7}, {ErrorCode::kDiverged, 8},
      {ErrorCode::kHang, 9},      {ErrorCode::kWorker, 10},    {ErrorCode::kPeerLost, 10},
      {ErrorCode::kHardware, 11}, {ErrorCode::kLauncher, 12},  {ErrorCode::kStopped, 75},
      {ErrorCode::kDevice, 11}};
  std::set<std::string> names;
  for (const auto& [code, status] : table) {
    CHECK(exit_status(code) == status);
    CHECK(names.insert(name_of(code)).second);
  }
  CHECK(Error(ErrorCode::kData, "what").code() == ErrorCode::kData);
}

TEST_CASE("large aligned reads and writes, past the system's cache, are those of any other kind") {
  const TemporaryFolder folder("large");
  constexpr size_t kPage = 4096, kBytes = size_t(3) << 20, kOdd = 1234;
  const auto room = [] {
    struct Free {
      void operator()(std::byte* data) const { std::free(data); }
    };
    return std::unique_ptr<std::byte, Free>(
        static_cast<std::byte*>(std::aligned_alloc(kPage, kBytes + kPage)));
  };
  const auto written = room(), read = room();
  for (size_t i = 0; i < kBytes + kOdd; ++i) written.get()[i] = std::byte(i * 7 + i / 5000);
  const auto check = [&](File& file, uint64_t offset, size_t bytes) {
    std::fill_n(read.get(), bytes, std::byte{});
    file.read_at(offset, {read.get(), bytes});
    CHECK(std::equal(read.get(), read.get() + bytes, written.get() + offset));
  };
  {
    const auto file = real_file_system().create(folder / "x");
    file->write_at(0, {written.get(), kBytes + kOdd});
    check(*file, kPage, kBytes - kPage);
    file->sync();
  }
  const auto file = real_file_system().open_read(folder / "x");
  for (const uint64_t offset : {uint64_t(0), uint64_t(kPage), uint64_t(100)})
    for (const size_t bytes : {kBytes, kBytes - 5 * kPage, kBytes - 777, size_t(10)})
      if (offset + bytes <= kBytes + kOdd) check(*file, offset, bytes);
  check(*file, 0, kBytes + kOdd);
  check(*file, kPage, kBytes + kOdd - kPage);
  CHECK_THAT(message_of([&] { file->read_at(kPage, {read.get(), kBytes}); }),
             Contains("ends at byte") && Contains(folder / "x"));
}
