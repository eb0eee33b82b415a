#include "runtime/sources/object_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr uint64_t kLeastBlock = uint64_t(64) << 10, kLeastSlots = 16;
/// Of a large table.
constexpr uint64_t kSmallTable = 4;
constexpr size_t kTableAhead = 4;

/// What a wait throws when the cache ends: no request is tried again.
struct Ended {};

/// A clock whose sleeps end soon when the cache ends.
class EndingClock final : public Clock {
 public:
  EndingClock(Clock& clock, const std::atomic<bool>& is_ending) : clock_(clock), is_ending_(is_ending) {}
  double monotonic_s() override { return clock_.monotonic_s(); }
  double unix_s() override { return clock_.unix_s(); }
  void sleep_s(double seconds) override {
    constexpr double kLook = 0.1;
    for (; seconds > 0; seconds -= kLook) {
      if (is_ending_) throw Ended{};
      clock_.sleep_s(std::min(seconds, kLook));
    }
  }

 private:
  Clock& clock_;
  const std::atomic<bool>& is_ending_;
};

uint64_t block_bytes_for(const CacheOptions& options) {
  const uint64_t most = std::max(kLeastBlock, options.bytes / kLeastSlots / 4096 * 4096);
  return std::min({options.block_bytes, most, options.bytes});
}

}  // namespace

/// Fetches blocks of any bucket, one at a time.
class ObjectCache::Connection {
 public:
  explicit Connection(ObjectCache& cache)
      : cache_(cache),
        clock_(cache.access_.clock, cache.is_ending_),
        clients_(cache.access_, clock_, [&cache] { return cache.is_ending_.load(); }) {}

  void fetch(const StoredObject& object, uint64_t offset, std::span<std::byte> out) {
    try {
      if (!clients_.of(object.bucket).get_if(object.key, object.version, offset, out))
        throw Error(
            ErrorCode::kIo,
            fmt::format(
                "{} is not the object any more that it was when the work began (version {}); put that one "
                "back, or make the tokens anew of the one that is there now",
                object.url, object.version));
    } catch (const ckpt::ObjectError& error) {
      throw object_error(cache_.access_, object.url, error);
    }
  }

 private:
  ObjectCache& cache_;
  EndingClock clock_;
  BucketClients clients_;
};

ObjectCache::ObjectCache(FileSystem& fs, ObjectAccess access, CacheOptions options,
                         std::vector<StoredObject> objects)
    : fs_(fs), access_(std::move(access)), options_(std::move(options)), objects_(std::move(objects)) {
  ENSURE(options_.connections > 0 && options_.block_bytes > 0, "{} connections", options_.connections);
  block_bytes_ = block_bytes_for(options_);
  ENSURE(block_bytes_ > 0, "a cache of {} bytes", options_.bytes);
  uint64_t blocks = 0;
  for (size_t i = 0; i < objects_.size(); ++i) blocks += blocks_of(i);
  slots_ = size_t(std::min(options_.bytes / block_bytes_, blocks));
}

ObjectCache::~ObjectCache() {
  is_ending_ = true;
  {
    const std::lock_guard lock(mutex_);  // no thread is between its look at is_ending_ and its wait
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

uint64_t ObjectCache::blocks_of(size_t object) const {
  return (objects_[object].bytes + block_bytes_ - 1) / block_bytes_;
}

size_t ObjectCache::bytes_of(const Key& key) const {
  return size_t(std::min(block_bytes_, objects_[key.object].bytes - key.index * block_bytes_));
}

bool ObjectCache::is_large_table(size_t object) const {
  return objects_[object].url.ends_with(".parquet") && blocks_of(object) > kSmallTable;
}

void ObjectCache::open_file() {
  const uint64_t bytes = slots_ * block_bytes_;
  const auto free = fs_.free_bytes(options_.folder);
  if (free && *free < bytes)
    throw Error(ErrorCode::kUsage, fmt::format("the cache of {} does not fit {}, where {} are free; give "
                                               "less with --cache, or another folder with "
                                               "--cache-dir",
                                               size_text(bytes), options_.folder, size_text(*free)));
  std::string path;
  for (int i = 0; path.empty() || fs_.exists(path); ++i)
    path = fmt::format("{}/.trainctl-cache-{}-{}", options_.folder, ::getpid(), i);
  written_.push_back(fs_.create(path));
  try {
    while (written_.size() < options_.connections) written_.push_back(fs_.open_write(path));
    file_ = fs_.open_read(path);
  } catch (...) {
    fs_.remove_file(path);
    throw;
  }
  fs_.remove_file(path);
}

void ObjectCache::start() {
  if (is_started_) return;
  written_.clear();
  open_file();
  for (size_t i = slots_; i > 0; --i) free_.push_back(i - 1);
  is_started_ = true;
  for (auto& file : written_) threads_.emplace_back([this, &file = *file] { work(file); });
}

void ObjectCache::write(File& file, size_t slot, std::span<const std::byte> bytes) const {
  try {
    file.write_at(slot * block_bytes_, bytes);
  } catch (const Error& e) {
    throw Error(ErrorCode::kIo,
                fmt::format("the cache of objects: {}; give it less with --cache, or another folder with "
                            "--cache-dir",
                            e.what()));
  }
}

void ObjectCache::work(File& file) {
  Connection connection(*this);
  std::vector<std::byte> buffer(block_bytes_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    const Key key = queue_.front();
    queue_.pop_front();
    Block& block = blocks_.at(key);  // stays: a block that is being fetched loses its slot to no other
    block.state = State::fetching;
    lock.unlock();
    std::exception_ptr error;
    try {
      const std::span bytes = std::span(buffer).first(bytes_of(key));
      connection.fetch(objects_[key.object], key.index * block_bytes_, bytes);
      write(file, block.slot, bytes);
    } catch (const Ended&) {
      return;
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    block.error = error;
    block.state = error ? State::failed : State::ready;
    changed_.notify_all();
  }
}

/// Takes a slot that is free, or that of the block used least recently, if that was before.
bool ObjectCache::take_slot(uint64_t used_before, size_t& slot) {
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
    return true;
  }
  auto oldest = blocks_.end();
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    const Block& block = at->second;
    const bool is_there = block.state == State::ready || block.state == State::failed;
    if (is_there && block.used < used_before && (oldest == blocks_.end() || block.used < oldest->second.used))
      oldest = at;
  }
  if (oldest == blocks_.end()) return false;
  slot = oldest->second.slot;
  blocks_.erase(oldest);
  return true;
}

/// Takes the slot of the block that is queued last.
bool ObjectCache::take_queued_slot(size_t& slot) {
  if (queue_.empty()) return false;
  const auto last = blocks_.find(queue_.back());
  queue_.pop_back();
  slot = last->second.slot;
  blocks_.erase(last);
  return true;
}

/// Puts a block in front of all that are fetched ahead, unless it is there.
void ObjectCache::demand(std::unique_lock<std::mutex>& lock, const Key& key) {
  for (auto at = blocks_.find(key);; at = blocks_.find(key)) {
    if (at != blocks_.end()) {
      const auto queued = std::find(queue_.begin(), queue_.end(), key);
      if (queued != queue_.end()) {
        at->second.is_ahead = false;
        queue_.erase(queued);
        queue_.push_front(key);
      }
      return;
    }
    size_t slot = 0;
    if (take_slot(UINT64_MAX, slot) || take_queued_slot(slot)) {
      blocks_[key] = {.slot = slot, .used = ++tick_};
      queue_.push_front(key);
      changed_.notify_all();
      return;
    }
    changed_.wait(lock);  // every slot is being filled
  }
}

/// The blocks that follow in reading order.
std::vector<ObjectCache::Key> ObjectCache::keys_after(const Key& key, size_t most) const {
  std::vector<Key> keys;
  for (uint64_t i = key.index + 1; i < blocks_of(key.object) && keys.size() < most; ++i)
    keys.push_back({key.object, i});
  if (is_large_table(key.object)) return keys;
  for (size_t object = key.object + 1; object < objects_.size() && keys.size() < most; ++object) {
    const uint64_t blocks = blocks_of(object);
    // Of a large table its footer, which says what follows.
    for (uint64_t i = is_large_table(object) ? blocks - 1 : 0; i < blocks && keys.size() < most; ++i)
      keys.push_back({object, i});
    if (is_large_table(object)) break;
  }
  return keys;
}

/// How many blocks are fetched ahead of one that is read.
size_t ObjectCache::depth_at(const Key& key) {
  if (key != last_ || in_a_row_ == 0)
    in_a_row_ = key == Key{last_.object, last_.index + 1} ? in_a_row_ + 1 : 1;
  last_ = key;
  const size_t most = std::min(options_.most_ahead, slots_ / 2);
  return is_large_table(key.object) ? std::min({most, kTableAhead, in_a_row_ - 1}) : most;
}

void ObjectCache::plan_after(const Key& key) {
  const uint64_t now = ++tick_;
  blocks_.at(key).used = now;
  const std::vector<Key> keys = keys_after(key, depth_at(key));
  for (const Key& next : keys)
    if (const auto at = blocks_.find(next); at != blocks_.end()) at->second.used = now;
  for (const Key& next : keys) {
    size_t slot = 0;
    if (blocks_.contains(next)) continue;
    if (!take_slot(now, slot)) break;
    blocks_[next] = {.slot = slot, .used = now, .is_ahead = true};
    queue_.push_back(next);
  }
  changed_.notify_all();
}

/// The block when it is ready; throws what it failed with.
const ObjectCache::Block& ObjectCache::wait_for(std::unique_lock<std::mutex>& lock, const Key& key) {
  while (true) {
    demand(lock, key);
    const auto at = blocks_.find(key);
    if (at == blocks_.end()) continue;
    Block& block = at->second;
    if (block.state == State::ready) {
      block.used = ++tick_;
      return block;
    }
    if (block.state == State::failed) {
      // One that was begun before anybody asked for it says nothing of now: disk or store may be back.
      const std::exception_ptr error = block.is_ahead ? nullptr : block.error;
      free_.push_back(block.slot);
      blocks_.erase(at);
      if (error) std::rethrow_exception(error);
      continue;
    }
    changed_.wait(lock);
  }
}

void ObjectCache::read(size_t object, uint64_t offset, std::span<std::byte> out) {
  ENSURE(object < objects_.size() && offset + out.size() <= objects_[object].bytes,
         "object {}, bytes {} to {}", object, offset, offset + out.size());
  std::unique_lock lock(mutex_);
  if (!out.empty()) start();
  while (!out.empty()) {
    const Key key{object, offset / block_bytes_};
    const uint64_t within = offset % block_bytes_;
    const size_t n = size_t(std::min<uint64_t>(out.size(), bytes_of(key) - within));
    demand(lock, key);
    plan_after(key);
    const Block& block = wait_for(lock, key);
    file_->read_at(block.slot * block_bytes_ + within, out.first(n));
    out = out.subspan(n);
    offset += n;
  }
}

}  // namespace trainctl
