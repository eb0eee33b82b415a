// ObjectFiles: a file system in which s3:// URLs are files that can be read. All other paths are those of the
// file system below.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/sources/object_cache.h"

namespace trainctl {

/// Thread-safe. Nothing can be written to an object: Error(kIo).
class ObjectFiles final : public FileSystem {
 public:
  /// `below` and `cache` outlive it and its files.
  ObjectFiles(FileSystem& below, ObjectCache& cache);

  std::unique_ptr<File> open_read(const std::string& path) override;  ///< of the objects of the cache only
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;

  std::unique_ptr<File> create(const std::string& path) override { return below_.create(path); }
  std::unique_ptr<File> open_write(const std::string& path) override { return below_.open_write(path); }
  void make_directory(const std::string& path) override { below_.make_directory(path); }
  void rename(const std::string& from, const std::string& to) override { below_.rename(from, to); }
  bool try_rename_no_replace(const std::string& from, const std::string& to) override {
    return below_.try_rename_no_replace(from, to);
  }
  void remove_file(const std::string& path) override { below_.remove_file(path); }
  void remove_directory(const std::string& path) override { below_.remove_directory(path); }
  bool try_sync_directory(const std::string& path) override { return below_.try_sync_directory(path); }
  std::vector<std::string> list(const std::string& path) override { return below_.list(path); }
  bool is_link(const std::string& path) override { return below_.is_link(path); }
  std::optional<uint64_t> free_bytes(const std::string& path) override { return below_.free_bytes(path); }

 private:
  FileSystem& below_;
  ObjectCache& cache_;
  std::map<std::string, size_t> objects_;  // by URL
};

}  // namespace trainctl
