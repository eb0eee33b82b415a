// A whole checkpoint from one store to another, byte for byte.
#include <fmt/format.h>

#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

void copy_shard(Checkpoint& from, const ShardReceipt& shard, SavingFiles& to, CopyReport& report) {
  const std::string header = expected_header(from.state(), shard);
  const auto source = from.stored().open(shard.file);
  const auto file = to.put(shard.file, shard.file_bytes);
  file->append(std::as_bytes(std::span(header)));
  std::vector<std::byte> data;
  for (const ShardReceipt::Entry& entry : shard.entries) {
    data.resize(entry.bytes);
    source->read_at(entry.offset, data);
    if (xxh3(data, identity_seed(from.state(), entry.tensor, entry.role, entry.box)) != entry.hash)
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("{}/{} is damaged: the hash of {} at byte {} differs; repair it before it is copied",
                      from.path(), shard.file, chunk_text(entry), entry.offset));
    file->append(data);
    ++report.chunks;
  }
  file->finish();
  ++report.files;
  report.bytes += shard.file_bytes;
}

}  // namespace

CopyReport copy(Checkpoint& from, Store& to) {
  CopyReport report;
  report.was_there = holds(to, from.state(), from.root_hash());
  if (report.was_there) {
    to.saving(from.state())->settle();  // its writer may have died just after it published
    return report;
  }
  const std::string text = from.stored().read_text(kManifestName);
  const Manifest manifest = parse_manifest(text, from.path() + "/" + kManifestName);
  const std::string commit = from.stored().read_text(kCommitName);
  if (manifest.root != from.root_hash() || commit != commit_text(text, manifest))
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} changed while it was copied", from.path()));
  const auto saving = to.saving(from.state());
  try {
    saving->begin_alone();
    for (const ShardReceipt& shard : from.files()) copy_shard(from, shard, *saving, report);
    saving->put_text(kManifestName, text);
    saving->commit(commit, [&] { return !holds(to, from.state(), from.root_hash()); });
  } catch (const Error&) {
    saving->release();
    // Another copy of the same state may have been faster.
    if (!saving->is_lost() || !holds(to, from.state(), from.root_hash())) throw;
    saving->settle();
    return {.was_there = true};
  }
  return report;
}

}  // namespace trainctl::ckpt
