// CountingFileSystem reports the bytes written through it, so that a long save shows progress.
#pragma once
#include <functional>
#include <utility>

#include "runtime/base/file_system.h"

namespace trainctl {

/// Forwards all calls to `below`. One call at a time, of any thread. Calls `report` with the bytes written so
/// far after each write and each sync, in the thread that writes.
class CountingFileSystem final : public FileSystem {
 public:
  CountingFileSystem(FileSystem& below, std::function<void(uint64_t bytes)> report) : below_(below), report_(std::move(report)) {}

  std::unique_ptr<File> create(const std::string& path) override { return std::make_unique<Counted>(below_.create(path), *this); }
  std::unique_ptr<File> open_read(const std::string& path) override { return below_.open_read(path); }
  void make_directory(const std::string& path) override { below_.make_directory(path); }
  void rename(const std::string& from, const std::string& to) override { below_.rename(from, to); }
  bool try_rename_no_replace(const std::string& from, const std::string& to) override { return below_.try_rename_no_replace(from, to); }
  void remove_file(const std::string& path) override { below_.remove_file(path); }
  void remove_directory(const std::string& path) override { below_.remove_directory(path); }
  bool try_sync_directory(const std::string& path) override { return below_.try_sync_directory(path); }
  std::vector<std::string> list(const std::string& path) override { return below_.list(path); }
  bool exists(const std::string& path) override { return below_.exists(path); }
  bool is_directory(const std::string& path) override { return below_.is_directory(path); }
  bool is_link(const std::string& path) override { return below_.is_link(path); }
  std::optional<uint64_t> free_bytes(const std::string& path) override { return below_.free_bytes(path); }

 private:
  class Counted final : public File {
   public:
    Counted(std::unique_ptr<File> below, CountingFileSystem& owner) : below_(std::move(below)), owner_(owner) {}
    void write_at(uint64_t offset, std::span<const std::byte> data) override {
      below_->write_at(offset, data);
      owner_.add(data.size());
    }
    void read_at(uint64_t offset, std::span<std::byte> data) override { below_->read_at(offset, data); }
    uint64_t size() override { return below_->size(); }
    void sync() override {
      below_->sync();
      owner_.add(0);
    }

   private:
    std::unique_ptr<File> below_;
    CountingFileSystem& owner_;
  };

  void add(uint64_t bytes) { report_(written_ += bytes); }

  FileSystem& below_;
  std::function<void(uint64_t)> report_;
  uint64_t written_ = 0;
};

}  // namespace trainctl
