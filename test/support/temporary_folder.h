// The folder for the files that a test makes.
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace trainctl::test {

/// A fresh folder, removed with all that is in it when the object is destroyed: also when the test fails.
///
/// The environment variable TRAINCTL_TEST_KEEP=1 keeps every folder and prints its path to stderr. Only the process that
/// made the folder removes it: a forked child that destroys its copy does not. Errors: std::system_error.
class TemporaryFolder {
 public:
  /// The folder is BELOW/trainctl-NAME.XXXXXX, with mode 0700; below "": the system's folder for temporary files.
  explicit TemporaryFolder(const std::string& name = "test", const std::string& below = "")
      : path_(make(name, below)) {}
  ~TemporaryFolder() {
    if (::getpid() != owner_) return;
    if (const char* const keep = std::getenv("TRAINCTL_TEST_KEEP"); keep && *keep && *keep != '0') {
      std::fprintf(stderr, "kept: %s\n", path_.c_str());
      return;
    }
    std::error_code failed;
    std::filesystem::remove_all(path_, failed);
    if (failed) std::fprintf(stderr, "cannot remove %s: %s\n", path_.c_str(), failed.message().c_str());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// Absolute, without symbolic links.
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// Makes such a folder for a program that removes it itself, and returns its path.
  static std::string make(const std::string& name, const std::string& below = "") {
    namespace fs = std::filesystem;
    const fs::path parent = fs::canonical(below.empty() ? fs::temp_directory_path() : fs::path(below));
    std::string pattern = (parent / ("trainctl-" + name + ".XXXXXX")).string();
    if (!::mkdtemp(pattern.data()))
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + pattern);
    return pattern;
  }

 private:
  const pid_t owner_ = ::getpid();
  const std::string path_;
};

}  // namespace trainctl::test
