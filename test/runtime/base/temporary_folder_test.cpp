// Goal: a test leaves no folder behind, also when it fails, and keeps its folder on request.
// Method: scopes that end normally, by an exception, and in a forked child; the variable set and unset.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <stdexcept>

#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using trainctl::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

/// Sets TRAINCTL_TEST_KEEP, and restores it at the end.
class Keep {
 public:
  explicit Keep(const char* value) {
    if (const char* const before = std::getenv(kName)) before_ = before;
    value ? ::setenv(kName, value, 1) : ::unsetenv(kName);
  }
  ~Keep() { before_.empty() ? ::unsetenv(kName) : ::setenv(kName, before_.c_str(), 1); }

 private:
  static constexpr const char* kName = "TRAINCTL_TEST_KEEP";
  std::string before_;
};

void fail_with_files(std::string& path) {
  const TemporaryFolder folder("failing");
  path = folder.path();
  fs::create_directories(folder / "a/b");
  fs::create_symlink("/", folder / "a/root");
  throw std::runtime_error("a failed test");
}

}  // namespace

TEST_CASE("a test whose program is not built fails at once, with the target to build") {
  CHECK_NOTHROW(trainctl::test::require_built("/proc/self/exe", "test_base"));
  CHECK_THROWS_WITH(trainctl::test::require_built("/no/such/trainctl", "trainctl"),
                    "/no/such/trainctl is missing; build the target trainctl first");
}

TEST_CASE("a temporary folder is removed when its scope ends, also by an exception") {
  const Keep no(nullptr);
  std::string path;
  CHECK_THROWS_AS(fail_with_files(path), std::runtime_error);
  CHECK(path.find("/trainctl-failing.") != std::string::npos);
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::exists("/tmp"));  // not the target of the link
}

TEST_CASE("a forked child does not remove its parent's folder") {
  const Keep no(nullptr);
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    folder.~TemporaryFolder();
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(fs::is_directory(folder.path()));
}

TEST_CASE("a folder is kept on request") {
  std::string path;
  {
    const Keep yes("1");
    path = TemporaryFolder("kept").path();
  }
  CHECK(fs::is_directory(path));
  fs::remove_all(path);
}
