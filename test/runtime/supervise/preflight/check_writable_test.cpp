// Goal: whether runs can be written to a folder is known before a run is made, and the look leaves nothing
// there. Method: folders that are missing and that refuse; a file system that looks whenever the file there
// is written.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/supervise/preflight/preflight.h"
#include "test/support/forwarding_file_system.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

TEST_CASE("a folder that cannot be written to is a failed preflight") {
  CHECK_THROWS_WITH(check_writable(real_file_system(), "/proc/trainctl-runs"),
                    Catch::StartsWith("/proc/trainctl-runs cannot be written to: "));
  TemporaryFolder folder;
  check_writable(real_file_system(), folder / "a/b");
  CHECK(real_file_system().list(folder / "a/b").empty());
}

TEST_CASE("a process that ends while it checks a folder leaves no file there") {
  /// Looks at the folder whenever the file there is written.
  struct Looking : test::ForwardingFileSystem {
    using ForwardingFileSystem::ForwardingFileSystem;
    struct Watched : test::ForwardingFile {
      Watched(Looking& f, std::unique_ptr<File> below, std::string d)
          : ForwardingFile(std::move(below)), looking(f), directory(std::move(d)) {}
      void write_at(uint64_t offset, std::span<const std::byte> data) override {
        looking.look(directory);
        ForwardingFile::write_at(offset, data);
      }
      void sync() override {
        looking.look(directory);
        ForwardingFile::sync();
      }
      Looking& looking;
      const std::string directory;
    };
    std::unique_ptr<File> create(const std::string& path) override {
      return std::make_unique<Watched>(*this, ForwardingFileSystem::create(path),
                                       path.substr(0, path.rfind('/')));
    }
    void look(const std::string& directory) {
      ++looks;
      for (const std::string& name : list(directory)) found += name + " ";
    }
    std::string found;
    int looks = 0;
  } files(real_file_system());
  TemporaryFolder folder;
  check_writable(files, folder / "runs");
  CHECK(files.looks == 2);
  CHECK(files.found == "");
}

TEST_CASE("a file system that does not write what has no name can hold runs") {
  struct Named : test::ForwardingFileSystem {
    using ForwardingFileSystem::ForwardingFileSystem;
    struct Stale : test::ForwardingFile {
      Stale(Named& f, std::unique_ptr<File> below, std::string p)
          : ForwardingFile(std::move(below)), files(f), path(std::move(p)) {}
      void write_at(uint64_t offset, std::span<const std::byte> data) override {
        if (!files.exists(path)) throw Error(ErrorCode::kIo, path + ": stale file handle");
        ForwardingFile::write_at(offset, data);
      }
      Named& files;
      const std::string path;
    };
    std::unique_ptr<File> create(const std::string& path) override {
      return std::make_unique<Stale>(*this, ForwardingFileSystem::create(path), path);
    }
  } files(real_file_system());
  TemporaryFolder folder;
  check_writable(files, folder / "runs");
  CHECK(files.list(folder / "runs").empty());
}
