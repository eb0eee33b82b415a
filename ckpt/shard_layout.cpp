#include "ckpt/shard_layout.h"

#include <map>

#include "ckpt/manifest.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {

ShardLayout lay_out(const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ChunkData> chunks, bool has_rows_apart) {
  ShardLayout layout;
  std::map<std::string, const void*> data_of;
  for (const ChunkData& chunk : chunks) {
    ENSURE(chunk.tensor >= 0 && size_t(chunk.tensor) < tensors.size(), "tensor {} of {}", chunk.tensor,
           tensors.size());
    const Tensor& tensor = tensors[size_t(chunk.tensor)];
    ENSURE(is_inside(chunk.box, whole_box(tensor.shape)), "{} {}", tensor.name,
           box_text(tensor.shape, chunk.box));
    ENSURE(has_rows_apart || !chunk.rows_apart,
           "rows of {} {} lie apart, its source takes them as contiguous", tensor.name,
           box_text(tensor.shape, chunk.box));
    layout.receipt.entries.push_back({tensor.name, tensor.role, tensor.dtype, tensor.shape, chunk.box});
    const std::string name = entry_name(layout.receipt.entries.back());
    ENSURE(data_of.emplace(name, chunk.data).second, "the chunk {} is given twice", name);
  }
  layout.header = lay_out_shard(state, layout.receipt);
  for (const ShardReceipt::Entry& entry : layout.receipt.entries)
    layout.chunks.emplace_back(static_cast<const std::byte*>(data_of.at(entry_name(entry))), entry.bytes);
  return layout;
}

void ChunkHashes::update(size_t chunk, std::span<const std::byte> piece) {
  if (!stream_ || chunk != current_) {
    finish();
    current_ = chunk;
    stream_.emplace(seed_(chunk));
  }
  stream_->update(piece);
}

const std::vector<uint64_t>& ChunkHashes::finish() {
  if (stream_) digests_[current_] = stream_->digest();
  stream_.reset();
  return digests_;
}

EntryHashes::EntryHashes(const StateInfo& state, std::span<const ShardReceipt::Entry> entries)
    : identities_(entries.size(),
                  [&state, entries](size_t i) {
                    return identity_seed(state, entries[i].tensor, entries[i].role, entries[i].box);
                  }),
      contents_(entries.size(), kNoChunkSeed) {}

void EntryHashes::update(size_t entry, std::span<const std::byte> piece) {
  in_parts(piece, [&](std::span<const std::byte> part) {
    identities_.update(entry, part);
    contents_.update(entry, part);
  });
}

void EntryHashes::finish(std::span<ShardReceipt::Entry> entries) {
  const std::vector<uint64_t>&identity = identities_.finish(), &content = contents_.finish();
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].hash = identity[i];
    entries[i].content_hash = content[i];
  }
}

}  // namespace trainctl::ckpt
