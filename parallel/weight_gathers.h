// WeightGathers brings compute copies from their owners to all dp ranks: after each step those of the whole
// model (ParamGathers), or before each use those of one part (PartGathers).
#pragma once

namespace trainctl::parallel::sharding {

class WeightGathers {
 public:
  virtual ~WeightGathers() = default;
  /// The compute copies changed at their owners, by work on the stream.
  virtual void weights_changed() = 0;
  /// No gather that was started is still to be waited for.
  virtual bool all_awaited() const = 0;
  // See ShardedParams.
  virtual void gather(int begin, int end) = 0;
  virtual void await(int begin, int end) = 0;
  virtual void finish() = 0;   ///< finish_gathers
  /// Goes on with the buckets under way, and begins others while the ring has room. Never waits for a peer.
  virtual void go_on() = 0;
};

}  // namespace trainctl::parallel::sharding
