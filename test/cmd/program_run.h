// Runs the program in this process, with stdout and stderr sent to files.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cmd/commands.h"
#include "runtime/base/file_system.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

/// Sends a stream of this process to a file while it lives.
class Redirect {
 public:
  Redirect(std::FILE* stream, const std::string& path) : stream_(stream) {
    std::fflush(stream_);
    saved_ = dup(fileno(stream_));
    std::FILE* file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    dup2(fileno(file), fileno(stream_));
    std::fclose(file);
  }
  ~Redirect() {
    std::fflush(stream_);
    dup2(saved_, fileno(stream_));
    close(saved_);
  }
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

 private:
  std::FILE* stream_;
  int saved_;
};

/// The current folder of this process while it lives.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::string& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~WorkingFolder() {
    std::error_code failed;
    std::filesystem::current_path(before_, failed);
  }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  std::filesystem::path before_;
};

inline Outcome run(std::vector<std::string> words) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  words.insert(words.begin(), "trainctl");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  Outcome outcome;
  {
    Redirect out(stdout, folder + "/out"), err(stderr, folder + "/err");
    outcome.status = cmd::run_program(static_cast<int>(argv.size()), argv.data());
  }
  outcome.out = real_file_system().read_text(folder + "/out");
  outcome.err = real_file_system().read_text(folder + "/err");
  return outcome;
}

/// A spec in a folder of its own, gone with this object.
class SpecFile {
 public:
  explicit SpecFile(const std::string& text) { real_file_system().write_new_text(path(), text); }
  std::string path() const { return folder_ / "job.json"; }

 private:
  TemporaryFolder folder_;
};

}  // namespace trainctl::test
