#include "test/ckpt/fuzz_bodies.h"

#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/memory_store.h"
#include "ckpt/safetensors.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "test/support/must.h"

namespace trainctl::test {
namespace {

void check_refusal(const Error& error) {
  must_be_refusal(error, {ErrorCode::kCheckpoint, ErrorCode::kIo});
}

class BytesFile final : public File {
 public:
  explicit BytesFile(std::string bytes) : bytes_(std::move(bytes)) {}
  void write_at(uint64_t, std::span<const std::byte>) override { throw std::logic_error("written"); }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    if (offset > bytes_.size() || data.size() > bytes_.size() - offset)
      throw Error(ErrorCode::kIo, "read beyond the end");
    std::memcpy(data.data(), bytes_.data() + offset, data.size());
  }
  uint64_t size() override { return bytes_.size(); }
  void sync() override {}

 private:
  const std::string bytes_;
};

class BytesFiles final : public ckpt::StoredFiles {
 public:
  explicit BytesFiles(std::map<std::string, std::string> files) : files_(std::move(files)) {}
  std::string where() const override { return "/fuzz"; }
  std::optional<int64_t> named_step() const override { return std::nullopt; }
  bool has(const std::string& name) override { return files_.count(name) > 0; }
  std::unique_ptr<File> open(const std::string& name) override {
    return std::make_unique<BytesFile>(files_.at(name));
  }
  std::vector<std::string> names() override {
    std::vector<std::string> result;
    for (const auto& [name, content] : files_) result.push_back(name);
    return result;
  }

 private:
  const std::map<std::string, std::string> files_;
};

/// One tensor of one chunk of one value.
std::pair<ckpt::Manifest, std::string> tiny_checkpoint() {
  ckpt::Manifest manifest;
  manifest.state.run_id = "r";
  manifest.tensors = {{"w", ckpt::Role::master, DType::f32, {1}}};
  ckpt::ShardReceipt shard{.file = "s"};
  shard.entries.push_back({"w", ckpt::Role::master, DType::f32, {1}, {0, 1, 0, 1}});
  std::string content = lay_out_shard(manifest.state, shard);
  content += std::string(4, '\0');
  auto& entry = shard.entries[0];
  const auto data = std::as_bytes(std::span(content)).subspan(entry.offset);
  entry.hash = xxh3(data, identity_seed(manifest.state, "w", ckpt::Role::master, entry.box));
  entry.content_hash = xxh3(data);
  manifest.bytes = shard.file_bytes;
  manifest.files = {shard};
  manifest.root = root_hash(manifest.files);
  return {manifest, content};
}

}  // namespace

void fuzz_manifest(const std::string& text) {
  try {
    const ckpt::Manifest manifest = ckpt::parse_manifest(text, "manifest.json");
    for (const auto& file : manifest.files) {
      uint64_t end = 0;
      for (const auto& entry : file.entries) {
        must(entry.bytes == uint64_t(entry.box.count()) * size_of(entry.dtype), "bytes of a chunk");
        must(end == 0 || entry.offset == end, "a hole");
        must(entry.offset + entry.bytes >= entry.offset, "an offset that wraps");
        end = entry.offset + entry.bytes;
      }
      must(file.entries.empty() || end == file.file_bytes, "data that does not end with its file");
    }
    // What was accepted is what would be written for it.
    const ckpt::Manifest again = ckpt::parse_manifest(ckpt::manifest_text(manifest), "manifest.json");
    must(again.root == manifest.root && again.tensors == manifest.tensors && again.bytes == manifest.bytes,
         "round trip");
    must(ckpt::manifest_text(again) == ckpt::manifest_text(manifest), "text");
  } catch (const Error& error) {
    check_refusal(error);
  }
}

void fuzz_commit(const std::string& text) {
  static const auto tiny = tiny_checkpoint();
  static const std::string manifest = ckpt::manifest_text(tiny.first);
  try {
    const auto checkpoint = ckpt::Checkpoint::open(
        std::make_unique<BytesFiles>(std::map<std::string, std::string>{{"manifest.json", manifest},
                                                                        {"COMMIT", text},
                                                                        {"s", tiny.second}}));
    must(text == ckpt::commit_text(manifest, tiny.first), "another COMMIT was accepted");
    must(ckpt::verify(*checkpoint).findings.empty(), "damage");
  } catch (const Error& error) {
    check_refusal(error);
  }
}

void fuzz_safetensors(const std::string& bytes) {
  try {
    const ckpt::SafetensorsFile file = ckpt::open_safetensors(std::make_unique<BytesFile>(bytes), "f");
    uint64_t end = 0;
    for (const auto& entry : file.entries) {
      must(end == 0 || entry.offset == end, "a hole");
      must(entry.bytes <= bytes.size() && entry.offset <= bytes.size() - entry.bytes, "beyond the file");
      end = entry.offset + entry.bytes;
    }
    must(file.entries.empty() || end == bytes.size(), "bytes behind the last tensor");
  } catch (const Error& error) {
    check_refusal(error);
  }
}

void fuzz_receipt(const std::string& text) {
  try {
    const auto receipt = ckpt::ShardReceipt::from_json(text);
    const auto again = ckpt::ShardReceipt::from_json(receipt.to_json());
    must(again.to_json() == receipt.to_json() && again.entries.size() == receipt.entries.size(),
         "round trip");
  } catch (const Error& error) {
    check_refusal(error);
  }
}

void fuzz_piece(const std::string& text) {
  try {
    const ckpt::Piece piece = ckpt::parse_piece(text, "piece.json");
    must(piece.rank >= 0 && piece.rank < piece.ranks, "a rank outside its ranks");
    for (const auto& entry : piece.receipt.entries)
      must(entry.bytes == uint64_t(entry.box.count()) * size_of(entry.dtype) &&
               entry.offset <= piece.receipt.file_bytes &&
               entry.bytes <= piece.receipt.file_bytes - entry.offset,
           "a chunk beyond its file");
    const std::string again = ckpt::piece_text(piece);
    must(ckpt::piece_text(ckpt::parse_piece(again, "piece.json")) == again, "round trip");
  } catch (const Error& error) {
    check_refusal(error);
  }
}

namespace {

class Bytes final : public ckpt::NodeMemory {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  void write(uint64_t, std::span<const std::byte>) override { throw std::logic_error("written"); }
  void read(uint64_t offset, std::span<std::byte> data) override {
    must(offset <= bytes_.size() && data.size() <= bytes_.size() - offset, "read beyond the memory");
    std::memcpy(data.data(), bytes_.data() + offset, data.size());
  }

 private:
  const std::string bytes_;
};

}  // namespace

void fuzz_memory(const std::string& bytes) {
  // The hash of the first header is made good, so that what it says is believed.
  std::string region = bytes;
  if (region.size() >= 64) {
    std::memcpy(region.data(), "tctlslot", 8);
    const uint64_t hash = xxh3(std::as_bytes(std::span(region)).first(56), 0x746f6c736c746374);
    std::memcpy(region.data() + 56, &hash, 8);
  }
  Bytes memory(region);
  const auto store = ckpt::memory_store(memory, "m");
  for (const int64_t step : store->list()) {
    const auto files = store->open(step);
    must(files != nullptr, "listed and not there");
    for (const std::string& name : files->names()) {
      const auto file = files->open(name);
      must(file->size() <= region.size(), "a file larger than the memory");
      std::vector<std::byte> data(file->size());
      file->read_at(0, data);
    }
  }
}

}  // namespace trainctl::test
