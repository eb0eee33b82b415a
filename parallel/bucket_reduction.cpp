#include "parallel/bucket_reduction.h"

#include "parallel/lane_sums.h"
#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {
namespace {

constexpr const char* kReductionText = "reduce gradients";

}  // namespace

BucketReduction::BucketReduction(const ShardedMemory& memory, int slot, LaneGroups& lines,
                                 kernels::Backend& backend, kernels::Stream& stream, kernels::Stream& sums)
    : memory_(memory),
      slot_(slot),
      backend_(backend),
      stream_(stream),
      sums_(sums),
      copied_(backend.create_event()),
      complete_(backend.create_event()) {
  for (size_t i = 0; i < lines.size(); ++i)
    lines_.emplace_back(lines[i], memory.layout, int(i), backend, sums);
}

void BucketReduction::begin(int group, Bucket bucket, int time) {
  ENSURE(!is_under_way(), "slot {} is in use", slot_);
  group_ = group;
  line_ = &lines_[size_t(memory_.group(group).line)];
  tag_ = line_->group.take_tag();
  line_->places.lay_out(memory_.group(group), bucket);
  pack(time);
  round_ = 0;
  adds_in_transport() ? start_reduce() : start_round();
  // A transport on the device orders exchanges as they are started, which must be alike on all ranks.
  if (line().group.waits_on_device()) finish();
}

/// The sums of the rank's subtrees, one after another. On the stream of the additions, which may still be
/// busy with the bucket that had this buffer before: the backward pass does not wait for it.
void BucketReduction::pack(int time) {
  stream_.record(*complete_);
  sums_.wait(*complete_);
  packed_ = {.places = &line().places,
             .time = time,
             .dtype = memory_.layout.options.reduction_dtype,
             .sums = memory_.ring_bucket(slot_),
             .received = memory_.ring_received(slot_),
             .root = memory_.ring_root(slot_)};
  const std::vector<int>& levels = memory_.levels(group_).left;
  for (int subtree = 0; subtree < int(levels.size()); ++subtree)
    line_->places.for_each_chunk([&](const FlatChunk& c, int64_t at) {
      const Box& box = c.where.global;
      kernels::Matrix packed = packed_.in(packed_.sums, subtree * line_->places.count() + at, box.count());
      packed.rows = box.rows(), packed.cols = packed.stride = box.cols();
      backend_.run(sums_, kernels::Copy{.src = memory_.chunk_gradient(c, levels[size_t(subtree)]), .dst = packed});
      if (c.owner == line().group.rank() && packed_.own.empty())
        for (int i = 0; i < memory_.layout.plan.owner.subtrees(time); ++i)
          packed_.own.push_back(memory_.summed(group_, c.offset, memory_.layout.plan.owner.level(time, i)));
    });
  sums_.record(*copied_);
}

bool BucketReduction::adds_in_transport() const {
  return sharding::adds_in_transport(memory_.group(group_), memory_.layout.options, line().group.size());
}

/// The transport adds one sum of each rank.
void BucketReduction::start_reduce() {
  const auto sum = [&](int subtree, Elements of) {
    return packed_.in(packed_.sums, subtree * line_->places.count() + of.begin, of.count());
  };
  const Elements all{0, line_->places.count()};
  for (int subtree = 1; subtree < int(memory_.levels(group_).left.size()); ++subtree)
    add_lanes(backend_, sums_, packed_.dtype, sum(0, all), sum(subtree, all), sum(0, all));
  std::vector<Reduction> parts;
  for (int owner = 0; owner < line().group.size(); ++owner)
    if (const Elements part = line_->places.part(owner); part.count() > 0)
      parts.push_back({sum(0, part).data, part.count(), owner, packed_.dtype});
  ticket_ = line().group.comm().reduce(parts, &sums_);
  ticket_.name(kReductionText);
}

void BucketReduction::end_reduce() {
  if (const Elements own = line_->places.part(line().group.rank()); own.count() > 0)
    backend_.run(sums_,
                 kernels::Copy{.src = packed_.in(packed_.sums, own.begin, own.count()),
                               .dst = kernels::matrix(packed_.own.front(), DType::f32, 1, own.count())});
  group_ = -1;
}

void BucketReduction::start_round() {
  messages_.clear();
  rounds().add_messages(packed_, round_, tag_, messages_);
  if (!messages_.empty()) ticket_ = line().group.comm().exchange(messages_, &sums_);
  ticket_.name(kReductionText);
}

void BucketReduction::end_round() {
  rounds().add_sums(packed_, round_);
  if (++round_ < rounds().count()) return start_round();
  group_ = -1;
}

void BucketReduction::poll(bool may_write) {
  while (is_under_way() && (may_write || !writes_next()) && line().group.comm().test(ticket_))
    finish_exchange();
}

void BucketReduction::finish() {
  while (is_under_way()) finish_exchange();
}

/// Of the exchange that was started last; waits for it.
void BucketReduction::finish_exchange() {
  if (ticket_) line().group.comm().wait(ticket_, kReductionText, sums_);
  adds_in_transport() ? end_reduce() : end_round();
}

}  // namespace trainctl::parallel::sharding
