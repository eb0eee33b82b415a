// ObjectCache: the bytes of objects of a store, which several connections fetch ahead, in blocks, into one
// local file of bounded size.
//
// The file loses its name as soon as it is open, so that it is gone with the process, however that ends.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/sources/stored_objects.h"

namespace trainctl {

struct CacheOptions {
  uint64_t bytes = uint64_t(4) << 30;        ///< the most that it has on disk; at least kLeastCache
  std::string folder;                        ///< of the file
  uint64_t block_bytes = uint64_t(4) << 20;  ///< of one GET; less in a small cache
  size_t connections = 8;
  size_t most_ahead = 64;  ///< blocks fetched before they are asked for; at most half of the cache
};
inline constexpr uint64_t kLeastCache = uint64_t(1) << 20;

/// Thread-safe. Nothing is fetched, and there is no file, before the first read. Memory: one block for each
/// connection.
///
/// An object is fetched ahead from the last block that was read on, and then the objects after it, in order.
/// Of a large table (.parquet) a few blocks only, once two blocks in a row were read: its other columns may
/// lie between. A block that failed ahead of the reader is fetched again when it is read.
class ObjectCache {
 public:
  /// `fs` and `access.clock` outlive it.
  ObjectCache(FileSystem& fs, ObjectAccess access, CacheOptions options, std::vector<StoredObject> objects);
  ~ObjectCache();  ///< ends requests under way within about a second
  ObjectCache(const ObjectCache&) = delete;

  const std::vector<StoredObject>& objects() const { return objects_; }
  /// Reads the bytes of an object from `offset`, which it has. Error(kIo): it is not what it was when the
  /// work began; the store refuses, or does not give them within the deadline of the retries; the disk of the
  /// cache is full. Error(kUsage): the disk is smaller than the cache.
  void read(size_t object, uint64_t offset, std::span<std::byte> out);

 private:
  struct Key {
    size_t object = 0;
    uint64_t index = 0;  ///< of the block in the object
    auto operator<=>(const Key&) const = default;
  };
  enum class State { queued, fetching, ready, failed };
  struct Block {
    size_t slot = 0;  ///< in the file
    State state = State::queued;
    uint64_t used = 0;  ///< when it was read or planned last
    bool is_ahead = false;  ///< fetching it began, or will begin, before anybody asked for it
    std::exception_ptr error = {};
  };
  class Connection;

  void start();
  void open_file();
  void work(File& file);
  void write(File& file, size_t slot, std::span<const std::byte> bytes) const;
  uint64_t blocks_of(size_t object) const;
  size_t bytes_of(const Key& key) const;
  bool is_large_table(size_t object) const;
  std::vector<Key> keys_after(const Key& key, size_t most) const;
  size_t depth_at(const Key& key);
  void plan_after(const Key& key);
  bool take_slot(uint64_t used_before, size_t& slot);
  bool take_queued_slot(size_t& slot);
  void demand(std::unique_lock<std::mutex>& lock, const Key& key);
  const Block& wait_for(std::unique_lock<std::mutex>& lock, const Key& key);

  FileSystem& fs_;
  const ObjectAccess access_;
  const CacheOptions options_;
  const std::vector<StoredObject> objects_;
  uint64_t block_bytes_ = 0;
  size_t slots_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;  // a block is queued, ready or failed; the end
  std::map<Key, Block> blocks_;
  std::deque<Key> queue_;
  std::vector<size_t> free_;
  uint64_t tick_ = 0;
  Key last_;             // the block read last
  size_t in_a_row_ = 0;  // blocks read one after the other, up to it
  bool is_started_ = false;
  std::atomic<bool> is_ending_ = false;
  std::unique_ptr<File> file_;                  // for reads
  std::vector<std::unique_ptr<File>> written_;  // the same file, for each connection
  std::vector<std::thread> threads_;
};

}  // namespace trainctl
