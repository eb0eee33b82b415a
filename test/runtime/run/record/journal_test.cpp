// Goal: lines that find no room on the disk are written when there is some, whole and in order; how many wait
//       is limited.
// Method: the system's limit of a file's size stands for a full disk.
#include "runtime/run/record/journal.h"

#include <signal.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
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
