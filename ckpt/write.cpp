// Writing a checkpoint: one shard per writer, then the publisher's manifest and COMMIT.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/manifest.h"
#include "ckpt/shard_appender.h"
#include "ckpt/shard_layout.h"
#include "ckpt/store.h"
#include "ckpt/two_passes.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

/// How often a publisher claims the files of a save. Another one of the same epoch may take them over.
constexpr int kClaims = 3;

/// The entries' hashes, from one pass over the chunks.
void take_hashes(const StateInfo& state, ChunkSource& source, ShardLayout& plan) {
  EntryHashes hashes(state, plan.receipt.entries);
  source.read(plan.chunks, [&](size_t i, std::span<const std::byte> piece) { hashes.update(i, piece); });
  hashes.finish(plan.receipt.entries);
}

std::vector<uint64_t> append_shard_chunks(NewFile& file, const ShardLayout& plan, ChunkSource& source) {
  ShardAppender out(file, plan.receipt.file_bytes);
  ChunkHashes written(plan.chunks.size(), kNoChunkSeed);
  out.append(std::as_bytes(std::span(plan.header)));
  source.read(plan.chunks, [&](size_t i, std::span<const std::byte> piece) {
    in_parts(piece, [&](std::span<const std::byte> part) {
      written.update(i, part);
      out.append(part);
    });
  });
  out.flush();
  ENSURE(out.bytes() == plan.receipt.file_bytes, "{} bytes written, {} planned", out.bytes(),
         plan.receipt.file_bytes);
  return written.finish();
}

std::vector<uint64_t> write_file(SavingFiles& saving, const std::string& name, uint64_t bytes,
                                 const AppendShard& append) {
  const auto file = saving.put(name, bytes);
  std::vector<uint64_t> written = append(*file);
  file->finish();
  return written;
}

/// If the memory changed between the hashes and the writes, the file is not the state that was
/// hashed.
void check_written(const ShardReceipt& receipt, const std::vector<uint64_t>& written) {
  for (size_t i = 0; i < written.size(); ++i)
    if (written[i] != receipt.entries[i].content_hash)
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{} changed in memory while it was being saved; this save is void",
                              entry_name(receipt.entries[i])));
}

class HostChunks final : public ChunkSource {
 public:
  void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override {
    for (size_t i = 0; i < chunks.size(); ++i) take(i, chunks[i]);
  }
  bool is_for_threads() const override { return true; }
};

void remove_unfinished(SavingFiles& saving, const std::string& name) {
  try {
    if (saving.has(name)) saving.remove(name);
  } catch (const Error&) {
    // publish() removes files that no receipt names, or refuses.
  }
}

/// The file of every receipt exists with its size, and there are no other files.
void check_files(SavingFiles& saving, std::span<const ShardReceipt> receipts) {
  std::set<std::string> named;
  for (const ShardReceipt& receipt : receipts) {
    if (receipt.file.empty() || receipt.file.find('/') != std::string::npos || !named.insert(receipt.file).second)
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("the shard name \"{}\" is no plain name or given twice", receipt.file));
    const std::string path = saving.where() + "/" + receipt.file;
    if (!saving.has(receipt.file)) throw Error(ErrorCode::kCheckpoint, fmt::format("the shard {} is missing", path));
    const uint64_t bytes = saving.open(receipt.file)->size();
    if (bytes != receipt.file_bytes)
      throw Error(ErrorCode::kCheckpoint, fmt::format("the shard {} has {} bytes, its writer wrote {}", path,
                                                      bytes, receipt.file_bytes));
  }
  for (const std::string& name : saving.names())
    if (!named.count(name)) saving.remove(name);
}

}  // namespace

ChunkSource& host_chunks() {
  static HostChunks source;
  return source;
}

std::string retry_file_name(const std::string& name) {
  const size_t dot = name.rfind(".safetensors");
  return dot == std::string::npos ? name + ".retry" : name.substr(0, dot) + ".retry.safetensors";
}

ShardReceipt write_hashed(SavingFiles& saving, const std::string& file_name, ShardReceipt receipt,
                          const AppendShard& append, const SetHashes& set_hashes) {
  receipt.file = file_name;
  std::vector<uint64_t> written;
  try {
    written = write_file(saving, file_name, receipt.file_bytes, append);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    // After a failed write or sync the content of the file is undefined: never touch it again, start a new
    // one, once.
    remove_unfinished(saving, file_name);
    receipt.file = retry_file_name(file_name);
    try {
      written = write_file(saving, receipt.file, receipt.file_bytes, append);
    } catch (const Error&) {
      remove_unfinished(saving, receipt.file);
      throw;
    }
  }
  if (set_hashes) set_hashes(receipt.entries);
  check_written(receipt, written);
  return receipt;
}

ShardReceipt write_hashed(SavingFiles& saving, const std::string& file_name, const ShardLayout& layout,
                          ChunkSource& source, const SetHashes& set_hashes) {
  return write_hashed(
      saving, file_name, layout.receipt,
      [&](NewFile& file) { return append_shard_chunks(file, layout, source); }, set_hashes);
}

ShardReceipt write_shard(SavingFiles& saving, const std::string& file_name, const StateInfo& state,
                         std::span<const Tensor> tensors, std::span<const ChunkData> chunks,
                         ChunkSource& source) {
  ShardLayout layout = lay_out(state, tensors, chunks, source.has_rows_apart());
  if (layout.receipt.file_bytes <= kShardWriterBytes || !source.is_for_threads()) {
    take_hashes(state, source, layout);
    return write_hashed(saving, file_name, layout, source);
  }
  TwoPasses passes(state, layout, source);
  return write_hashed(saving, file_name, layout, passes.to_write(),
                      [&](std::vector<ShardReceipt::Entry>& entries) { passes.set_hashes(entries); });
}

std::string publish(Store& store, const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ShardReceipt> receipts, const std::function<void()>& before_commit) {
  check_tiling(tensors, receipts);
  Manifest manifest{.state = state,
                    .tensors = {tensors.begin(), tensors.end()},
                    .files = {receipts.begin(), receipts.end()}};
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ShardReceipt& a, const ShardReceipt& b) { return a.file < b.file; });
  for (const ShardReceipt& receipt : receipts) manifest.bytes += receipt.file_bytes;
  manifest.root = root_hash(manifest.files);
  const std::string text = manifest_text(manifest);
  for (int attempt = 0;; ++attempt) {
    const auto saving = store.saving(state);
    try {
      saving->claim(before_commit ? before_commit : [] {});
      check_files(*saving, receipts);
      saving->put_text(kManifestName, text);
      saving->commit(commit_text(text, manifest), [&] {
        const bool is_published = holds(store, state, manifest.root);
        if (before_commit) before_commit();
        return !is_published;
      });
      return manifest.root;
    } catch (const Error& error) {
      saving->release();
      if (error.code() != ErrorCode::kIo && error.code() != ErrorCode::kCheckpoint) throw;
      // Another supervisor of the epoch may have had the same receipts.
      if (!saving->is_lost()) throw;
      if (holds(store, state, manifest.root)) return saving->settle(), manifest.root;
      if (attempt + 1 >= kClaims) throw;
    }
  }
}

}  // namespace trainctl::ckpt
