// Opening a published checkpoint and reading boxes of its tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <string_view>

#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

constexpr size_t kCachedBytes = size_t(64) << 20;
constexpr size_t kOpenFiles = 32;

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
    const auto chunks = chunks_.find({name, role});
    if (chunks == chunks_.end()) fail(fmt::format("{} has no tensor {}", path_, tensor_text(name, role)));
    int64_t covered = 0;
    for (const Chunk& chunk : chunks->second) {
      const parallel::Box part = parallel::intersect(chunk.entry->box, box);
      if (part.count() <= 0) continue;
      covered += part.count();
      copy_part(chunk, part, box, static_cast<std::byte*>(out));
    }
    if (covered == box.count()) return;
    ENSURE(is_inside(box, whole_box(shape_of(name, role))), "{} {}: the box reaches beyond the tensor", name,
           name_of(role));
    fail(fmt::format("{} does not hold all of {} {}", path_, tensor_text(name, role),
                     box_text(shape_of(name, role), box)));
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

  void copy_part(const Chunk& chunk, const parallel::Box& part, const parallel::Box& box, std::byte* out) {
    const size_t item = size_of(chunk.entry->dtype);
    const size_t out_pitch = size_t(box.cols()) * item;
    std::byte* const to = out + size_t(part.row_begin - box.row_begin) * out_pitch +
                          size_t(part.col_begin - box.col_begin) * item;
    // A whole chunk whose rows are contiguous in `out` is read directly, without a copy.
    if (part == chunk.entry->box && (part.cols() == box.cols() || part.rows() == 1) && !is_cached(chunk))
      return read_checked(chunk, {to, chunk.entry->bytes});
    const std::vector<std::byte>& data = cached(chunk);
    const parallel::Box& from_box = chunk.entry->box;
    const size_t from_pitch = size_t(from_box.cols()) * item;
    const std::byte* const from = data.data() + size_t(part.row_begin - from_box.row_begin) * from_pitch +
                                  size_t(part.col_begin - from_box.col_begin) * item;
    for (int64_t row = 0; row < part.rows(); ++row)
      std::memcpy(to + size_t(row) * out_pitch, from + size_t(row) * from_pitch, size_t(part.cols()) * item);
  }

  void read_checked(const Chunk& chunk, std::span<std::byte> out) {
    const Entry& entry = *chunk.entry;
    reading([&] { file(*chunk.file).read_at(entry.offset, out); });
    if (xxh3(out, identity_seed(manifest_.state, entry.tensor, entry.role, entry.box)) == entry.hash) return;
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
