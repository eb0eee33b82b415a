// Opening a published checkpoint and reading boxes of its tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <string_view>

#include "ckpt/manifest.h"
#include "ckpt/page_memory.h"
#include "ckpt/read_ahead.h"
#include "ckpt/shard_layout.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

constexpr size_t kCachedBytes = size_t(64) << 20;
constexpr size_t kOpenFiles = 32;
/// Of a file that is read past the system's cache. Together no more than a save takes.
constexpr size_t kBlocksAhead = 4, kBlockBytes = kShardWriterBytes / kBlocksAhead;

using Entry = ShardReceipt::Entry;

struct Chunk {
  const ShardReceipt* file = nullptr;
  const Entry* entry = nullptr;
};

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorCode::kCheckpoint, message); }

/// Any failure to read a checkpoint counts as damage of the checkpoint, for exit statuses and for the
/// fall-back to an older one.
template <typename Read>
auto reading(Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    fail(error.what());
  }
}

class OpenCheckpoint final : public Checkpoint {
 public:
  OpenCheckpoint(std::unique_ptr<StoredFiles> files, Manifest manifest)
      : files_(std::move(files)), path_(files_->where()), manifest_(std::move(manifest)) {
    for (const Tensor& tensor : manifest_.tensors) chunks_[{tensor.name, tensor.role}];
    for (const ShardReceipt& file : manifest_.files)
      for (const Entry& entry : file.entries) chunks_[{entry.tensor, entry.role}].push_back({&file, &entry});
  }

  const StateInfo& state() const override { return manifest_.state; }
  const std::vector<Tensor>& tensors() const override { return manifest_.tensors; }
  const std::vector<ShardReceipt>& files() const override { return manifest_.files; }
  std::string root_hash() const override { return manifest_.root; }
  std::string path() const override { return path_; }
  StoredFiles& stored() const override { return *files_; }

  void read(const std::string& name, Role role, const parallel::Box& box, void* out) override {
    for (const Part& part : parts_of({.name = name, .role = role, .box = box, .out = out})) copy_part(part);
  }

  void read_all(std::span<const BoxRead> boxes, const std::function<void(uint64_t)>& got) override {
    std::vector<Part> past_cache, whole, others;
    for (const BoxRead& box : boxes)
      for (const Part& part : parts_of(box))
        (!is_contiguous(part)                         ? others
         : box.is_shared || !files_->are_on_disk() ? whole
                                                      : past_cache)
            .push_back(part);
    sort(past_cache);
    sort(whole);
    for (size_t i = past_cache.size(); i-- > 1;)
      if (past_cache[i].chunk.entry == past_cache[i - 1].chunk.entry) {
        others.push_back(past_cache[i]);
        past_cache.erase(past_cache.begin() + int64_t(i));
      }
    for (auto at = past_cache.begin(); at != past_cache.end();) {
      const auto end = std::find_if(
          at, past_cache.end(), [&](const Part& part) { return part.chunk.file != at->chunk.file; });
      read_past_cache({at, end}, got);
      at = end;
    }
    read_ahead(
        whole.size(), kBlocksAhead, [&](size_t i) { read_chunk(whole[i].chunk, place_of(whole[i])); },
        [&](size_t i) {
          check(whole[i].chunk, hash_of(whole[i].chunk, place_of(whole[i])));
          got(whole[i].chunk.entry->bytes);
        });
    for (const Part& part : others) {
      copy_part(part);
      got(uint64_t(part.box.count()) * size_of(part.chunk.entry->dtype));
    }
  }

  bool has(const std::string& name, Role role, const parallel::Box& box) const override {
    const auto chunks = chunks_.find({name, role});
    if (chunks == chunks_.end()) return false;
    int64_t covered = 0;
    for (const Chunk& chunk : chunks->second) covered += parallel::intersect(chunk.entry->box, box).count();
    return covered == box.count();
  }

 private:
  const std::vector<int64_t>& shape_of(const std::string& name, Role role) const {
    const auto at = std::find_if(manifest_.tensors.begin(), manifest_.tensors.end(),
                                 [&](const Tensor& t) { return t.name == name && t.role == role; });
    return at->shape;  // read() has found its chunks
  }

  /// What a box takes of a chunk: `box`, whose rows lie `pitch` bytes apart from `to` on.
  struct Part {
    Chunk chunk;
    parallel::Box box;
    std::byte* to = nullptr;
    size_t pitch = 0;
  };

  std::vector<Part> parts_of(const BoxRead& wanted) const {
    const auto& [name, role, box, out, is_shared] = wanted;
    const auto chunks = chunks_.find({name, role});
    if (chunks == chunks_.end()) fail(fmt::format("{} has no tensor {}", path_, tensor_text(name, role)));
    std::vector<Part> parts;
    int64_t covered = 0;
    for (const Chunk& chunk : chunks->second) {
      const parallel::Box part = parallel::intersect(chunk.entry->box, box);
      if (part.count() <= 0) continue;
      covered += part.count();
      const size_t item = size_of(chunk.entry->dtype), pitch = size_t(box.cols()) * item;
      std::byte* const to = static_cast<std::byte*>(out) + size_t(part.row_begin - box.row_begin) * pitch +
                            size_t(part.col_begin - box.col_begin) * item;
      parts.push_back({chunk, part, to, pitch});
    }
    if (covered == box.count()) return parts;
    ENSURE(is_inside(box, whole_box(shape_of(name, role))), "{} {}: the box reaches beyond the tensor", name,
           name_of(role));
    fail(fmt::format("{} does not hold all of {} {}", path_, tensor_text(name, role),
                     box_text(shape_of(name, role), box)));
  }

  /// A whole chunk whose rows are contiguous where they go to is read directly, without a copy.
  static bool is_contiguous(const Part& part) {
    const Entry& entry = *part.chunk.entry;
    return part.box == entry.box &&
           (size_t(part.box.cols()) * size_of(entry.dtype) == part.pitch || part.box.rows() == 1);
  }
  static std::span<std::byte> place_of(const Part& whole) { return {whole.to, whole.chunk.entry->bytes}; }

  static void sort(std::vector<Part>& parts) {
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return std::pair(a.chunk.file, a.chunk.entry) < std::pair(b.chunk.file, b.chunk.entry);
    });
  }

  /// `parts`: of one file, in its order. The disk writes into a few pages that are used again and again, from
  /// which a core copies while it hashes. The system's cache would need new pages for everything, and copies
  /// as well.
  void read_past_cache(std::span<const Part> parts, const std::function<void(uint64_t)>& got) {
    const ShardReceipt& shard = *parts.front().chunk.file;
    std::vector<FileRange> ranges;
    for (const Part& part : parts) ranges.push_back({part.chunk.entry->offset, part.chunk.entry->bytes});
    const std::vector<FileRange> blocks = blocks_over(ranges, shard.file_bytes, kBlockBytes);
    const PageMemory memory(std::min(blocks.size(), kBlocksAhead) * kBlockBytes);
    const auto block = [&](size_t i) {
      return std::span(memory.data() + i % kBlocksAhead * kBlockBytes, blocks[i].bytes);
    };
    ChunkHashes hashes(parts.size(), [&](size_t i) { return seed_of(parts[i].chunk); });
    size_t at = 0;
    read_ahead(
        blocks.size(), kBlocksAhead,
        [&](size_t i) { reading([&] { file(shard).read_at(blocks[i].offset, block(i)); }); },
        [&](size_t i) {
          for (; at < parts.size() && ranges[at].offset < blocks[i].end(); ++at) {
            const uint64_t begin = std::max(ranges[at].offset, blocks[i].offset);
            const uint64_t end = std::min(ranges[at].end(), blocks[i].end());
            std::byte* to = parts[at].to + (begin - ranges[at].offset);
            in_parts(block(i).subspan(begin - blocks[i].offset, end - begin),
                     [&](std::span<const std::byte> data) {
                       hashes.update(at, data);
                       std::memcpy(to, data.data(), data.size());
                       to += data.size();
                     });
            if (end < ranges[at].end()) return;
            check(parts[at].chunk, hashes.finish()[at]);
            got(ranges[at].bytes);
          }
        });
  }

  void copy_part(const Part& part) {
    if (is_contiguous(part) && !is_cached(part.chunk)) return read_checked(part.chunk, place_of(part));
    const std::vector<std::byte>& data = cached(part.chunk);
    const parallel::Box& from_box = part.chunk.entry->box;
    const size_t item = size_of(part.chunk.entry->dtype), from_pitch = size_t(from_box.cols()) * item;
    const std::byte* const from = data.data() + size_t(part.box.row_begin - from_box.row_begin) * from_pitch +
                                  size_t(part.box.col_begin - from_box.col_begin) * item;
    for (int64_t row = 0; row < part.box.rows(); ++row)
      std::memcpy(part.to + size_t(row) * part.pitch, from + size_t(row) * from_pitch,
                  size_t(part.box.cols()) * item);
  }

  void read_checked(const Chunk& chunk, std::span<std::byte> out) {
    read_chunk(chunk, out);
    check(chunk, hash_of(chunk, out));
  }
  void read_chunk(const Chunk& chunk, std::span<std::byte> out) {
    reading([&] { file(*chunk.file).read_at(chunk.entry->offset, out); });
  }
  uint64_t seed_of(const Chunk& chunk) const {
    const Entry& entry = *chunk.entry;
    return identity_seed(manifest_.state, entry.tensor, entry.role, entry.box);
  }
  uint64_t hash_of(const Chunk& chunk, std::span<const std::byte> data) const {
    return xxh3(data, seed_of(chunk));
  }
  void check(const Chunk& chunk, uint64_t hash) const {
    const Entry& entry = *chunk.entry;
    if (hash == entry.hash) return;
    fail(
        fmt::format("{}/{} is damaged: the hash of {} {} at byte {} differs; `trainctl inspect-ckpt "
                    "--verify` lists all damage",
                    path_, chunk.file->file, tensor_text(entry.tensor, entry.role),
                    box_text(entry.shape, entry.box), entry.offset));
  }

  bool is_cached(const Chunk& chunk) const {
    return std::any_of(cache_.begin(), cache_.end(), [&](const Cached& c) { return c.entry == chunk.entry; });
  }

  /// The chunk's bytes; valid until the next call.
  const std::vector<std::byte>& cached(const Chunk& chunk) {
    const auto at =
        std::find_if(cache_.begin(), cache_.end(), [&](const Cached& c) { return c.entry == chunk.entry; });
    if (at != cache_.end()) {
      cache_.splice(cache_.begin(), cache_, at);
      return cache_.front().data;
    }
    std::vector<std::byte> data(chunk.entry->bytes);
    read_checked(chunk, data);
    cached_bytes_ += data.size();
    cache_.push_front({chunk.entry, std::move(data)});
    while (cached_bytes_ > kCachedBytes && cache_.size() > 1) {
      cached_bytes_ -= cache_.back().data.size();
      cache_.pop_back();
    }
    return cache_.front().data;
  }

  File& file(const ShardReceipt& shard) {
    auto at = open_.find(&shard);
    if (at != open_.end()) return *at->second;
    if (open_.size() >= kOpenFiles) open_.clear();
    return *open_.emplace(&shard, files_->open(shard.file)).first->second;
  }

  struct Cached {
    const Entry* entry;
    std::vector<std::byte> data;
  };

  const std::unique_ptr<StoredFiles> files_;
  const std::string path_;
  Manifest manifest_;
  std::map<std::pair<std::string_view, Role>, std::vector<Chunk>> chunks_;   // names: of manifest_
  std::list<Cached> cache_;   // most recently used first
  size_t cached_bytes_ = 0;
  std::map<const ShardReceipt*, std::unique_ptr<File>> open_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_with_manifest(std::unique_ptr<StoredFiles> files, Manifest manifest) {
  return std::make_unique<OpenCheckpoint>(std::move(files), std::move(manifest));
}

std::unique_ptr<Checkpoint> Checkpoint::open(std::unique_ptr<StoredFiles> files) {
  const std::string path = files->where();
  for (const char* name : {kCommitName, kManifestName})
    if (!reading([&] { return files->has(name); }))
      fail(fmt::format("{} is not a checkpoint: it has no {}", path, name));
  const std::string commit = reading([&] { return files->read_text(kCommitName); });
  const std::string text = reading([&] { return files->read_text(kManifestName); });
  // COMMIT must hold the hash of the manifest before the manifest is parsed; afterwards COMMIT must be
  // exactly the text that follows from it.
  if (commit.find(manifest_field(text)) == std::string::npos)
    fail(fmt::format("{0}/{1} or {0}/{2} is damaged: the SHA-256 that {2} holds is not that of {1}", path,
                     kManifestName, kCommitName));
  Manifest manifest = parse_manifest(text, path + "/" + kManifestName);
  if (commit != commit_text(text, manifest))
    fail(fmt::format("{}/{} is damaged: it contradicts the manifest", path, kCommitName));
  const auto named_step = files->named_step();
  if (named_step && *named_step != manifest.state.step)
    fail(fmt::format("{} holds step {}: the folder was renamed", path, manifest.state.step));
  for (const ShardReceipt& file : manifest.files) {
    const std::string shard = path + "/" + file.file;
    if (!reading([&] { return files->has(file.file); })) fail(fmt::format("{} is missing", shard));
    const uint64_t bytes = reading([&] { return files->open(file.file)->size(); });
    if (bytes != file.file_bytes)
      fail(fmt::format("{} has {} bytes instead of {}", shard, bytes, file.file_bytes));
  }
  return open_with_manifest(std::move(files), std::move(manifest));
}

}  // namespace trainctl::ckpt
