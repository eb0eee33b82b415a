// CountingFileSystem reports what is written through it and that its calls return, so that a long save shows
// progress and a file system that does not answer is found.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl::ckpt {

/// Forwards all calls to `below`, which must outlive it and its files. Thread-safe if the hooks are.
class CountingFileSystem final : public FileSystem {
 public:
  /// Called in the thread of the call; may be empty.
  struct Hooks {
    std::function<void(uint64_t bytes)> written = {};  ///< after a write or a sync: the bytes written so far
    std::function<void()> answered = {};               ///< after each call, also one that fails
    std::function<void()> asked = {};                  ///< before each call, which fails with what it throws
  };
  CountingFileSystem(FileSystem& below, Hooks hooks) : below_(below), hooks_(std::move(hooks)) {}

  std::unique_ptr<File> create(const std::string& path) override {
    const Call call(*this);
    return std::make_unique<Counted>(below_.create(path), *this);
  }
  std::unique_ptr<File> open_read(const std::string& path) override {
    const Call call(*this);
    return std::make_unique<Counted>(below_.open_read(path), *this);
  }
  void make_directory(const std::string& path) override {
    const Call call(*this);
    below_.make_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    const Call call(*this);
    below_.rename(from, to);
  }
  bool try_rename_no_replace(const std::string& from, const std::string& to) override {
    const Call call(*this);
    return below_.try_rename_no_replace(from, to);
  }
  void remove_file(const std::string& path) override {
    const Call call(*this);
    below_.remove_file(path);
  }
  void remove_directory(const std::string& path) override {
    const Call call(*this);
    below_.remove_directory(path);
  }
  bool try_sync_directory(const std::string& path) override {
    const Call call(*this);
    return below_.try_sync_directory(path);
  }
  std::vector<std::string> list(const std::string& path) override {
    const Call call(*this);
    return below_.list(path);
  }
  bool exists(const std::string& path) override {
    const Call call(*this);
    return below_.exists(path);
  }
  bool is_directory(const std::string& path) override {
    const Call call(*this);
    return below_.is_directory(path);
  }
  bool is_link(const std::string& path) override {
    const Call call(*this);
    return below_.is_link(path);
  }
  std::optional<uint64_t> free_bytes(const std::string& path) override {
    const Call call(*this);
    return below_.free_bytes(path);
  }

 private:
  class Call {
   public:
    explicit Call(CountingFileSystem& owner) : owner_(owner) {
      if (owner_.hooks_.asked) owner_.hooks_.asked();
    }
    ~Call() {
      if (owner_.hooks_.answered) owner_.hooks_.answered();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CountingFileSystem& owner_;
  };

  class Counted final : public File {
   public:
    Counted(std::unique_ptr<File> below, CountingFileSystem& owner)
        : below_(std::move(below)), owner_(owner) {}
    void write_at(uint64_t offset, std::span<const std::byte> data) override {
      const Call call(owner_);
      below_->write_at(offset, data);
      owner_.add(data.size());
    }
    void read_at(uint64_t offset, std::span<std::byte> data) override {
      const Call call(owner_);
      below_->read_at(offset, data);
    }
    uint64_t size() override {
      const Call call(owner_);
      return below_->size();
    }
    void drop_cache() override { below_->drop_cache(); }
    void sync() override {
      const Call call(owner_);
      below_->sync();
      owner_.add(0);
    }

   private:
    const std::unique_ptr<File> below_;
    CountingFileSystem& owner_;
  };

  void add(uint64_t bytes) {
    const uint64_t so_far = written_ += bytes;
    if (hooks_.written) hooks_.written(so_far);
  }

  FileSystem& below_;
  const Hooks hooks_;
  std::atomic<uint64_t> written_ = 0;
};

}  // namespace trainctl::ckpt
