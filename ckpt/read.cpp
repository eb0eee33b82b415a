// Opening a published checkpoint and reading boxes of its tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <string_view>

#include "ckpt/chunk_stream.h"
#include "ckpt/fail.h"
#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

/// Of chunks that read() keeps; read_all() keeps none.
constexpr size_t kCachedBytes = size_t(64) << 20;
/// Chunks that are read to their place before they are verified.
constexpr size_t kChunksAhead = 4;

using Entry = ShardReceipt::Entry;

struct Chunk {
  const ShardReceipt* file = nullptr;
  const Entry* entry = nullptr;
};

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

void check_size(const std::string& path, const ShardReceipt& shard, uint64_t bytes) {
  if (bytes != shard.file_bytes)
    fail(fmt::format("{}/{} has {} bytes instead of {}", path, shard.file, bytes, shard.file_bytes));
}

class OpenCheckpoint final : public Checkpoint {
 public:
  OpenCheckpoint(std::unique_ptr<StoredFiles> files, Manifest manifest, ShardSizes sizes)
      : files_(std::move(files)),
        path_(files_->where()),
        sizes_(sizes),
        on_disk_(files_->are_on_disk()),
        manifest_(std::move(manifest)) {
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

  DType dtype_of(const std::string& name, Role role) const override {
    const auto chunks = chunks_.find({name, role});
    if (chunks == chunks_.end()) fail(fmt::format("{} has no tensor {}", path_, tensor_text(name, role)));
    // Pieces may have none of it.
    return chunks->second.empty() ? tensor_of(name, role).dtype : chunks->second.front().entry->dtype;
  }

  void read(const std::string& name, Role role, const parallel::Box& box, void* out) override {
    for (const Part& part : parts_of({.name = name, .role = role, .box = box, .out = out})) copy_part(part);
  }

  void read_all(std::span<const BoxRead> boxes, const std::function<void(uint64_t)>& got) override {
    std::vector<Part> parts;
    for (const BoxRead& box : boxes)
      for (const Part& part : parts_of(box)) parts.push_back(part);
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& a, const Part& b) { return place(a) < place(b); });
    std::vector<Part> direct;  // chunks that are read to where they belong
    std::vector<Parts> past_cache, through_cache;
    for (auto at = parts.cbegin(); at != parts.cend();) {
      const auto end =
          std::find_if(at, parts.cend(), [&](const Part& p) { return p.chunk.entry != at->chunk.entry; });
      const bool shared = std::any_of(at, end, [](const Part& part) { return part.is_shared; });
      if (end - at == 1 && is_contiguous(*at) && (shared || !on_disk_))
        direct.push_back(*at);
      else
        (shared || !on_disk_ ? through_cache : past_cache).push_back({at, end});
      at = end;
    }
    stream_chunks(past_cache, true, got);
    stream_chunks(through_cache, false, got);
    read_ahead(
        direct.size(), {.most = kChunksAhead, .readers = readers()},
        [&](size_t i) { read_chunk(direct[i].chunk, place_of(direct[i])); },
        [&](size_t i) {
          if (hash_of(direct[i].chunk, place_of(direct[i])) != direct[i].chunk.entry->hash)
            take_from_other({&direct[i], 1});
          got(direct[i].chunk.entry->bytes);
        });
    for (const BoxRead& box : boxes)
      if (box.as_f32) make_f32(box, dtype_of(box.name, box.role));
  }

  bool has(const std::string& name, Role role, const parallel::Box& box) const override {
    const auto chunks = chunks_.find({name, role});
    if (chunks == chunks_.end()) return false;
    int64_t covered = 0;
    for (const Chunk& chunk : chunks->second) covered += parallel::intersect(chunk.entry->box, box).count();
    return covered == box.count();
  }

 private:
  const Tensor& tensor_of(const std::string& name, Role role) const {
    return *std::find_if(manifest_.tensors.begin(), manifest_.tensors.end(), [&](const Tensor& t) {
      return t.name == name && t.role == role;
    });  // chunks_ has it
  }
  const std::vector<int64_t>& shape_of(const std::string& name, Role role) const {
    return tensor_of(name, role).shape;
  }

  /// What a box takes of a chunk: `box`, whose rows lie `pitch` bytes apart from `to` on.
  struct Part {
    Chunk chunk;
    parallel::Box box;
    std::byte* to = nullptr;
    size_t pitch = 0;
    bool is_shared = false;
    uint64_t bytes() const { return uint64_t(box.count()) * size_of(chunk.entry->dtype); }
  };
  using Parts = std::span<const Part>;  ///< of one chunk

  std::vector<Part> parts_of(const BoxRead& wanted) const {
    const auto& [name, role, box, out, is_shared, as_f32] = wanted;
    const auto chunks = chunks_.find({name, role});
    if (chunks == chunks_.end()) fail(fmt::format("{} has no tensor {}", path_, tensor_text(name, role)));
    std::vector<Part> parts;
    int64_t covered = 0;
    for (const Chunk& chunk : chunks->second) {
      const parallel::Box part = parallel::intersect(chunk.entry->box, box);
      if (part.count() <= 0) continue;
      covered += part.count();
      const size_t item = size_of(chunk.entry->dtype), pitch = size_t(box.cols()) * item;
      std::byte* const to = static_cast<std::byte*>(as_f32 ? stored_place(wanted, chunk.entry->dtype) : out) +
                            size_t(part.row_begin - box.row_begin) * pitch +
                            size_t(part.col_begin - box.col_begin) * item;
      parts.push_back({chunk, part, to, pitch, is_shared});
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

  /// In the order of the files.
  static std::pair<const ShardReceipt*, const Entry*> place(const Part& part) {
    return {part.chunk.file, part.chunk.entry};
  }
  size_t readers() const { return on_disk_ ? kReaders : 1; }

  /// Each chunk passes once through a ring of memory, from which a core copies while it hashes. Past the
  /// system's cache, the disk writes into pages that are used again and again; the cache would need new
  /// pages for everything, and copies as well.
  void stream_chunks(std::span<const Parts> chunks, bool past_cache,
                     const std::function<void(uint64_t)>& got) {
    std::vector<ShardRange> ranges;
    for (const Parts& parts : chunks) {
      const Chunk& chunk = parts.front().chunk;
      ranges.push_back({chunk.file, {chunk.entry->offset, chunk.entry->bytes}});
    }
    ChunkHashes hashes(chunks.size(), [&](size_t i) { return seed_of(chunks[i].front().chunk); });
    uint64_t done = 0;  // of the chunk that is coming
    reading([&] {
      stream(ranges, shards_, {.readers = readers(), .past_cache = past_cache},
             [&](size_t i, std::span<const std::byte> piece) {
               in_parts(piece, [&](std::span<const std::byte> data) {
                 hashes.update(i, data);
                 for (const Part& part : chunks[i]) take(part, done, data);
                 done += data.size();
               });
               if (done < ranges[i].range.bytes) return;
               done = 0;
               if (hashes.finish()[i] != chunks[i].front().chunk.entry->hash) take_from_other(chunks[i]);
               for (const Part& part : chunks[i]) got(part.bytes());
             });
    });
  }

  /// Takes the parts of a damaged chunk from another copy of its file.
  void take_from_other(Parts parts) {
    std::vector<std::byte> data(parts.front().chunk.entry->bytes);
    read_other(parts.front().chunk, data);
    for (const Part& part : parts) take(part, 0, data);
  }
  /// Reads a damaged chunk from the first copy of its file in which it is good.
  void read_other(const Chunk& chunk, std::span<std::byte> out) {
    for (size_t copy = 0;; ++copy) try {
        const auto file = files_->open_other(chunk.file->file, copy);
        if (!file) fail_damaged(chunk);
        file->read_at(chunk.entry->offset, out);
        if (hash_of(chunk, out) == chunk.entry->hash) return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIo) throw;  // else the next copy may do
      }
  }

  /// Copies what `part` takes of `data`, which are the bytes of its chunk from `begin` on.
  static void take(const Part& part, uint64_t begin, std::span<const std::byte> data) {
    if (is_contiguous(part)) {
      std::memcpy(part.to + begin, data.data(), data.size());
      return;
    }
    const parallel::Box& chunk = part.chunk.entry->box;
    const uint64_t item = size_of(part.chunk.entry->dtype), pitch = uint64_t(chunk.cols()) * item;
    const uint64_t left = uint64_t(part.box.col_begin - chunk.col_begin) * item;
    const uint64_t row_bytes = uint64_t(part.box.cols()) * item, end = begin + data.size();
    const uint64_t above = uint64_t(part.box.row_begin - chunk.row_begin);  // rows of the chunk
    const uint64_t rows = uint64_t(part.box.rows());
    for (uint64_t row = std::max(begin / pitch, above) - above; row < rows; ++row) {
      const uint64_t from = (above + row) * pitch + left;
      if (from >= end) return;
      const uint64_t first = std::max(from, begin), last = std::min(from + row_bytes, end);
      if (first < last)
        std::memcpy(part.to + row * part.pitch + (first - from), data.data() + (first - begin), last - first);
    }
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
    if (hash_of(chunk, out) != chunk.entry->hash) read_other(chunk, out);
  }
  void read_chunk(const Chunk& chunk, std::span<std::byte> out) {
    reading([&] { shards_.read(*chunk.file, chunk.entry->offset, out); });
  }
  uint64_t seed_of(const Chunk& chunk) const {
    const Entry& entry = *chunk.entry;
    return identity_seed(manifest_.state, entry.tensor, entry.role, entry.box);
  }
  uint64_t hash_of(const Chunk& chunk, std::span<const std::byte> data) const {
    return xxh3(data, seed_of(chunk));
  }
  [[noreturn]] void fail_damaged(const Chunk& chunk) const {
    const Entry& entry = *chunk.entry;
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

  std::unique_ptr<File> open_shard(const ShardReceipt& shard) {
    std::unique_ptr<File> file = files_->open(shard.file);
    if (sizes_ == ShardSizes::unchecked) check_size(path_, shard, file->size());
    return file;
  }

  struct Cached {
    const Entry* entry;
    std::vector<std::byte> data;
  };

  const std::unique_ptr<StoredFiles> files_;
  const std::string path_;
  const ShardSizes sizes_;
  const bool on_disk_;
  Manifest manifest_;
  std::map<std::pair<std::string_view, Role>, std::vector<Chunk>> chunks_;   // names: of manifest_
  std::list<Cached> cache_;   // most recently used first
  size_t cached_bytes_ = 0;
  OpenShards shards_{[this](const ShardReceipt& shard) { return open_shard(shard); }, on_disk_};
};

}  // namespace

void* stored_place(const BoxRead& box, DType dtype) {
  if (!box.as_f32 || dtype == DType::f32) return box.out;
  ENSURE(dtype == DType::bf16, "{} {} in {} is read as f32", box.name, name_of(box.role), name_of(dtype));
  return static_cast<std::byte*>(box.out) + size_t(box.box.count()) * sizeof(bf16);
}

void make_f32(const BoxRead& box, DType dtype) {
  if (!box.as_f32 || dtype == DType::f32) return;
  auto* const to = static_cast<std::byte*>(box.out);
  const std::byte* const from = to + size_t(box.box.count()) * sizeof(bf16);
  for (int64_t i = 0; i < box.box.count(); ++i) {
    bf16 stored;
    std::memcpy(&stored, from + size_t(i) * sizeof stored, sizeof stored);
    const float value(stored);
    std::memcpy(to + size_t(i) * sizeof value, &value, sizeof value);
  }
}

std::unique_ptr<Checkpoint> open_with_manifest(std::unique_ptr<StoredFiles> files, Manifest manifest,
                                               ShardSizes sizes) {
  return std::make_unique<OpenCheckpoint>(std::move(files), std::move(manifest), sizes);
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
    if (!reading([&] { return files->has(file.file); }))
      fail(fmt::format("{}/{} is missing", path, file.file));
    check_size(path, file, reading([&] { return files->open(file.file)->size(); }));
  }
  return open_with_manifest(std::move(files), std::move(manifest));
}

}  // namespace trainctl::ckpt
