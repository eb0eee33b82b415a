// An object store in memory that several clients use at once, and what a process has on the disk of its
// cache.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/sources/object_cache.h"
#include "test/support/faulty_objects.h"
#include "test/support/thread_clock.h"

namespace trainctl::test {

/// The buckets of a store, one store of objects for all of them: keys are "bucket/key". Thread-safe.
class SharedObjects {
 public:
  ThreadClock clock;

  void poke(const std::string& path, const std::string& content) {
    const std::lock_guard lock(mutex_);
    objects_.poke(path, content);
  }
  void remove(const std::string& path) {
    const std::lock_guard lock(mutex_);
    objects_.remove(path);
  }
  void fail_at(uint64_t request, ObjectFault fault, uint64_t count) {
    const std::lock_guard lock(mutex_);
    objects_.fail_at(request, fault, count);
  }
  void repair() {
    const std::lock_guard lock(mutex_);
    objects_.repair();
  }
  std::string version_of(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return objects_.head(path)->version;
  }
  uint64_t requests() {
    const std::lock_guard lock(mutex_);
    return objects_.requests();
  }

  ObjectAccess access() {
    return {.clock = clock,
            .endpoint = "https://store.test",
            .client = [this](const std::string& bucket,
                             std::function<bool()>) { return std::make_unique<Client>(*this, bucket); },
            .retries = {.deadline_s = 100}};
  }
  /// Bytes that clients got.
  uint64_t bytes_got() const { return bytes_got_; }

 private:
  class Client final : public ckpt::ObjectClient {
   public:
    Client(SharedObjects& store, std::string bucket) : store_(store), prefix_(std::move(bucket) + "/") {}
    std::optional<ckpt::ObjectInfo> head(const std::string& key) override {
      const std::lock_guard lock(store_.mutex_);
      auto info = store_.objects_.head(prefix_ + key);
      if (info) info->key = key;
      return info;
    }
    std::optional<size_t> get_if(const std::string& key, const std::string& version, uint64_t offset,
                                 std::span<std::byte> out) override {
      const std::lock_guard lock(store_.mutex_);
      const auto bytes = store_.objects_.get_if(prefix_ + key, version, offset, out);
      if (bytes) store_.bytes_got_ += *bytes;
      return bytes;
    }
    std::vector<ckpt::ObjectInfo> list(const std::string& prefix) override {
      const std::lock_guard lock(store_.mutex_);
      if (store_.objects_.objects().lower_bound(prefix_) == store_.objects_.objects().end())
        throw ckpt::ObjectError(404, "404 NoSuchBucket");
      auto infos = store_.objects_.list(prefix_ + prefix);
      for (auto& info : infos) info.key = info.key.substr(prefix_.size());
      return {infos.rbegin(), infos.rend()};  // in no useful order
    }
    // Reading sends no other requests.
    size_t get(const std::string&, uint64_t, std::span<std::byte>) override { return unexpected<size_t>(); }
    std::string put(const std::string&, std::span<const std::byte>) override {
      return unexpected<std::string>();
    }
    std::optional<std::string> put_if(const std::string&, const std::string&,
                                      std::span<const std::byte>) override {
      return unexpected<std::string>();
    }
    std::string start_upload(const std::string&) override { return unexpected<std::string>(); }
    std::string put_part(const std::string&, const std::string&, int, std::span<const std::byte>) override {
      return unexpected<std::string>();
    }
    std::string finish_upload(const std::string&, const std::string&,
                              const std::vector<std::string>&) override {
      return unexpected<std::string>();
    }
    void abort_upload(const std::string&, const std::string&) override { unexpected<int>(); }
    std::vector<ckpt::UnfinishedUpload> list_uploads(const std::string&) override {
      return unexpected<std::vector<ckpt::UnfinishedUpload>>();
    }
    void remove(const std::string&) override { unexpected<int>(); }

   private:
    template <typename T>
    static T unexpected() {
      throw std::logic_error("a request that reading needs not");
    }
    SharedObjects& store_;
    const std::string prefix_;
  };

  std::mutex mutex_;
  FaultyObjects objects_;
  std::atomic<uint64_t> bytes_got_ = 0;
};

/// What caches of a process have on their disks: the files have no names any more.
struct CacheOnDisk {
  int files = 0;
  uint64_t size = 0, stored = 0;  ///< of the largest one: its length, and the bytes of its blocks on the disk
};
inline CacheOnDisk cache_on_disk(pid_t pid = ::getpid()) {
  CacheOnDisk found;
  std::error_code gone;
  std::set<ino_t> seen;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    struct stat info {};
    if (target.find(".trainctl-cache-") == target.npos || ::stat(entry.path().c_str(), &info) != 0) continue;
    found.files += seen.insert(info.st_ino).second;
    found.size = std::max(found.size, uint64_t(info.st_size));
    found.stored = std::max(found.stored, uint64_t(info.st_blocks) * 512);
  }
  return found;
}

}  // namespace trainctl::test
