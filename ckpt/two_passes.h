// TwoPasses: a pass that hashes chunks and a pass that writes them, at the same time and from opposite ends.
//
//     time ──────────────>        the writing pass goes forward, the hashing pass backward; where they meet,
//     chunk n   h         w       the second one waits until the first has left the chunk
//           .     h     w
//           .       h w           At the moment between the two, every chunk has been read by one pass and
//           .       w h           not yet by the other. So chunks that are the same in both passes are the
//           .     w     h         state of that moment, as if one pass had ended before the other began.
//     chunk 0   w         h
//
// It saves the time of the hashing pass where the disk, not a core, is the limit.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <future>
#include <mutex>
#include <vector>

#include "ckpt/shard_layout.h"

namespace trainctl::ckpt {

class TwoPasses {
 public:
  /// Begins to hash the chunks of `layout` in a thread of its own. `state` and `source` must outlive it;
  /// source.is_for_threads().
  TwoPasses(const StateInfo& state, const ShardLayout& layout, ChunkSource& source);
  /// Ends the hashing pass early, unless its hashes were taken.
  ~TwoPasses();
  TwoPasses(const TwoPasses&) = delete;
  TwoPasses& operator=(const TwoPasses&) = delete;

  /// The source for the writing pass, and for a repetition of it.
  ChunkSource& to_write() { return to_write_; }
  /// Waits for the hashing pass and sets the entries' hashes.
  void set_hashes(std::vector<ShardReceipt::Entry>& entries);

 private:
  enum Pass { hashing, writing };
  class Passing final : public ChunkSource {
   public:
    explicit Passing(TwoPasses& both) : both_(both) {}
    void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override;

   private:
    TwoPasses& both_;
  };

  void hash();
  void read(Pass pass, size_t number, std::span<const std::byte> chunk, const ChunkSource::Take& take);

  const StateInfo& state_;
  ChunkSource& source_;
  Passing to_write_{*this};
  std::vector<ShardReceipt::Entry> entries_;
  std::vector<std::span<const std::byte>> chunks_;
  std::atomic<bool> ends_ = false;

  std::mutex mutex_;  // guards at_
  std::condition_variable changed_;
  size_t at_[2];  ///< the chunk in which each pass is

  std::future<void> hashing_;  // its destructor waits: last, because the pass uses the others
};

}  // namespace trainctl::ckpt
