// A file system that hands every call to another: a test changes the calls that it means.
#pragma once

#include "runtime/base/file_system.h"

namespace trainctl::test {

/// `below` lives longer.
class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem& below) : below_(below) {}
  std::unique_ptr<File> create(const std::string& path) override { return below_.create(path); }
  std::unique_ptr<File> open_read(const std::string& path) override { return below_.open_read(path); }
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
  bool exists(const std::string& path) override { return below_.exists(path); }
  bool is_directory(const std::string& path) override { return below_.is_directory(path); }
  bool is_link(const std::string& path) override { return below_.is_link(path); }
  std::optional<uint64_t> free_bytes(const std::string& path) override { return below_.free_bytes(path); }

 private:
  FileSystem& below_;
};

/// A file whose calls go to another.
class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> below) : below_(std::move(below)) {}
  void write_at(uint64_t offset, std::span<const std::byte> data) override { below_->write_at(offset, data); }
  void read_at(uint64_t offset, std::span<std::byte> data) override { below_->read_at(offset, data); }
  uint64_t size() override { return below_->size(); }
  void drop_cache() override { below_->drop_cache(); }
  void sync() override { below_->sync(); }

 private:
  const std::unique_ptr<File> below_;
};

}  // namespace trainctl::test
