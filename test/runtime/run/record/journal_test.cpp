// Goal: lines that find no room on the disk are written when there is some, whole and in order; how many wait
//       is limited. The last line of a kind is found without reading what lies before it.
// Method: the system's limit of a file's size is a full disk; files with the line at each place, and a file
//         system that counts what is read.
#include "runtime/run/record/journal.h"

#include <signal.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
#include "test/support/forwarding_file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

/// No file of this process grows beyond that, while it lives.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    before_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, before_handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_{};
  sighandler_t before_handler_ = SIG_DFL;
};

/// Counts the bytes that are read.
class CountingFiles : public test::ForwardingFileSystem {
 public:
  CountingFiles() : ForwardingFileSystem(real_file_system()) {}
  std::unique_ptr<File> open_read(const std::string& path) override {
    return std::make_unique<Counted>(ForwardingFileSystem::open_read(path), bytes);
  }
  uint64_t bytes = 0;

 private:
  struct Counted : test::ForwardingFile {
    Counted(std::unique_ptr<File> below, uint64_t& count) : ForwardingFile(std::move(below)), bytes(count) {}
    void read_at(uint64_t offset, std::span<std::byte> data) override {
      ForwardingFile::read_at(offset, data);
      bytes += data.size();
    }
    uint64_t& bytes;
  };
};

std::vector<std::string> lines_in(const std::string& path) { return lines_of(real_file_system(), path); }

}  // namespace

TEST_CASE("lines that found no room are written when there is some", "[journal]") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Journal journal(path);
  journal.append("first");
  {
    const SmallDisk disk(10);  // a part of the second line fits
    for (const char* line : {"second", "third", "fourth"}) journal.append(line);
    CHECK(lines_in(path) == std::vector<std::string>{"first"});
    CHECK(journal.waiting_bytes() == std::string("second\nthird\nfourth\n").size() - 4);
    CHECK(journal.error().exists());
    journal.sync();
    CHECK(lines_in(path).size() == 1);
  }
  SECTION("with the next line") {
    journal.append("fifth");
    CHECK(lines_in(path) == std::vector<std::string>{"first", "second", "third", "fourth", "fifth"});
  }
  SECTION("with the next sync") {
    journal.sync();
    CHECK(lines_in(path) == std::vector<std::string>{"first", "second", "third", "fourth"});
  }
  CHECK(journal.waiting_bytes() == 0);
}

TEST_CASE("of more lines than are kept the oldest go, and the one that is in the file in part is finished",
          "[journal]") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Journal journal(path);
  const size_t line_bytes = size_t(1) << 20;
  {
    const SmallDisk disk(100);
    for (char c = 'a'; c < 'a' + 20; ++c) journal.append(std::string(line_bytes, c));
    CHECK(journal.waiting_bytes() <= Journal::kMostWaitingBytes);
  }
  journal.sync();
  const std::vector<std::string> lines = lines_in(path);
  REQUIRE(lines.size() >= 15);
  CHECK(lines.front() == std::string(line_bytes, 'a'));
  for (size_t i = 1; i < lines.size(); ++i)
    CHECK(lines[i] == std::string(line_bytes, char('a' + 20 - int(lines.size()) + int(i))));
}

TEST_CASE("the last line that is meant is found from the end of the file", "[journal]") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  CountingFiles files;
  const auto marked = [](const std::string& line) { return line.starts_with("x"); };
  CHECK_FALSE(last_line_that(files, path, marked));
  for (const size_t width : {size_t(0), size_t(6), size_t(1000), size_t(kReadBytes) - 1, size_t(kReadBytes),
                             size_t(kReadBytes) * 2 + 17}) {
    const int count = width < 100 ? 40000 : width < 10000 ? 300 : 5;
    for (const int at : {-1, 0, 1, count / 2, count - 2, count - 1})
      for (const bool is_torn : {false, true}) {
        CAPTURE(width, count, at, is_torn);
        std::string text;
        for (int i = 0; i < count; ++i)
          text += (i == at || i == at / 2 ? "x" + std::to_string(i) : "") + std::string(width, '.') + "\n";
        if (at == -1) std::erase(text, 'x');
        if (is_torn) text += "x torn";
        if (real_file_system().exists(path)) real_file_system().remove_file(path);
        real_file_system().write_new_text(path, text);
        files.bytes = 0;
        const auto line = last_line_that(files, path, marked);
        REQUIRE(line.has_value() == (at >= 0));
        if (line) CHECK(*line == "x" + std::to_string(at) + std::string(width, '.'));
        const size_t behind = at < 0 ? text.size() : text.size() - text.rfind("x" + std::to_string(at));
        CHECK(files.bytes <= behind + kReadBytes);
      }
  }
  real_file_system().remove_file(path);
  real_file_system().write_new_text(path, "");
  CHECK_FALSE(last_line_that(files, path, marked));
}
