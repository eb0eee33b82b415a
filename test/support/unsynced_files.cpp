#include "test/support/unsynced_files.h"

#include "test/support/forwarding_file_system.h"

namespace trainctl::test {
namespace {

class UnsyncedFile final : public ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;
  void sync() override {}
};

class UnsyncedFiles final : public ForwardingFileSystem {
 public:
  UnsyncedFiles() : ForwardingFileSystem(real_file_system()) {}
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<UnsyncedFile>(ForwardingFileSystem::create(path));
  }
  std::unique_ptr<File> open_write(const std::string& path) override {
    return std::make_unique<UnsyncedFile>(ForwardingFileSystem::open_write(path));
  }
  bool try_sync_directory(const std::string&) override { return true; }
};

}  // namespace

FileSystem& unsynced_files() {
  static UnsyncedFiles files;
  return files;
}

}  // namespace trainctl::test
