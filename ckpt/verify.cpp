// Re-reading every byte of a published checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "ckpt/values.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"

namespace trainctl::ckpt {
namespace {

using Entry = ShardReceipt::Entry;

class Verifier {
 public:
  explicit Verifier(Checkpoint& checkpoint) : checkpoint_(checkpoint), files_(checkpoint.stored()) {}

  VerifyReport run() {
    std::set<std::string> named{kManifestName, kCommitName};
    for (const ShardReceipt& shard : checkpoint_.files()) {
      named.insert(shard.file);
      ++report_.files;
      try {
        check_shard(shard);
      } catch (const Error& error) {
        add(shard, "", 0, error.what());
        report_.findings.back().is_unread = is_there(shard.file);
      }
    }
    for (const std::string& name : files_.names())
      if (!named.count(name)) report_.findings.push_back({name, "", "the file is no part of this checkpoint", 0});
    return std::move(report_);
  }

 private:
  void add(const ShardReceipt& shard, const std::string& tensor, uint64_t offset, const std::string& message) {
    report_.findings.push_back({shard.file, tensor, message, offset});
  }

  bool is_there(const std::string& name) {
    try {
      return files_.has(name);
    } catch (const Error&) {
      return true;  // as far as is known
    }
  }

  void check_shard(const ShardReceipt& shard) {
    const auto file = files_.open(shard.file);
    const uint64_t bytes = file->size();
    if (bytes != shard.file_bytes)
      add(shard, "", 0, fmt::format("the file has {} bytes instead of {}", bytes, shard.file_bytes));
    check_header(shard, *file, bytes);
    std::vector<std::byte> data;
    for (const Entry& entry : shard.entries) {
      if (entry.offset + entry.bytes > bytes) {
        add(shard, chunk_text(entry), entry.offset,
            fmt::format("the file ends at byte {}, before this chunk does", bytes));
        continue;
      }
      data.resize(entry.bytes);
      try {
        file->read_at(entry.offset, data);
      } catch (const Error& error) {
        add(shard, chunk_text(entry), entry.offset, error.what());
        report_.findings.back().is_unread = true;
        continue;
      }
      check_chunk(shard, entry, data);
    }
    report_.bytes += std::min(bytes, shard.file_bytes);
  }

  /// A header follows from the manifest, so that any other byte in it is damage.
  void check_header(const ShardReceipt& shard, File& file, uint64_t bytes) {
    const std::string expected = expected_header(checkpoint_.state(), shard);
    std::string actual(std::min<uint64_t>(expected.size(), bytes), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(actual)));
    if (actual == expected) return;
    const uint64_t at =
        uint64_t(std::mismatch(actual.begin(), actual.end(), expected.begin()).first - actual.begin());
    add(shard, tensor_of_header_byte(shard, expected, at), at, other_owner(shard));
  }

  std::string tensor_of_header_byte(const ShardReceipt& shard, const std::string& header, uint64_t at) const {
    const Entry* found = nullptr;
    size_t from = header.find("},\"");  // past the metadata
    for (const Entry& entry : shard.entries) {
      from = header.find(json_string(entry_name(entry)) + ":", from);
      if (from == std::string::npos || from > at) break;
      found = &entry;
    }
    return found ? chunk_text(*found) : "";
  }

  std::string other_owner(const ShardReceipt& shard) const {
    const std::string plain = "the header is not what the manifest says it was";
    try {
      auto metadata = open_safetensors(files_.open(shard.file), checkpoint_.path() + "/" + shard.file).metadata;
      if (metadata["run_id"] == checkpoint_.state().run_id &&
          metadata["step"] == std::to_string(checkpoint_.state().step))
        return plain;
      return fmt::format("the header says that it was written by run \"{}\" at step \"{}\", not by {} at {}",
                         metadata["run_id"], metadata["step"], checkpoint_.state().run_id,
                         checkpoint_.state().step);
    } catch (const Error&) {
      return plain;
    }
  }

  void check_chunk(const ShardReceipt& shard, const Entry& entry, std::span<const std::byte> data) {
    ++report_.chunks;
    if (xxh3(data, identity_seed(checkpoint_.state(), entry.tensor, entry.role, entry.box)) != entry.hash ||
        xxh3(data) != entry.content_hash) {
      add(shard, chunk_text(entry), entry.offset,
          fmt::format("the hash of these {} bytes differs from the manifest's", entry.bytes));
      return;
    }
    if (entry.dtype != DType::f32 && entry.dtype != DType::bf16 && entry.dtype != DType::f64 &&
        entry.dtype != DType::f16)
      return;
    visit_values(entry.dtype, data, [&](size_t, double value) {
      if (std::isfinite(value)) return;
      ++(std::isnan(value) ? report_.nan_values : report_.infinite_values);
    });
  }

  Checkpoint& checkpoint_;
  StoredFiles& files_;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify(Checkpoint& checkpoint) { return Verifier(checkpoint).run(); }

}  // namespace trainctl::ckpt
