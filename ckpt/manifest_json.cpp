// The JSON texts: receipts, manifest.json, COMMIT. A chunk is one short row, so that a manifest stays small: offsets and sizes
// follow from the order of the rows, and full-width boxes leave their columns out.
#include <fmt/format.h>

#include <charconv>
#include <map>

#include "ckpt/manifest.h"
#include "ckpt/state_record.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 1;

struct TensorIndex {
  std::vector<Tensor> tensors;
  std::map<std::pair<std::string, Role>, size_t> position;

  size_t add(const Tensor& tensor) {
    const auto [at, is_new] = position.try_emplace({tensor.name, tensor.role}, tensors.size());
    if (is_new) tensors.push_back(tensor);
    return at->second;
  }
};

void append_tensors(std::string& text, std::span<const Tensor> tensors) {
  text += "\"tensors\":[";
  for (size_t i = 0; i < tensors.size(); ++i)
    fmt::format_to(std::back_inserter(text), "{}[{},\"{}\",\"{}\",[{}]]", i ? ",\n" : "\n",
                   json_string(tensors[i].name), name_of(tensors[i].role), name_of(tensors[i].dtype),
                   fmt::join(tensors[i].shape, ","));
  text += "]";
}

void append_chunks(std::string& text, const ShardReceipt& shard, TensorIndex& index) {
  text += "\"chunks\":[";
  for (size_t i = 0; i < shard.entries.size(); ++i) {
    const ShardReceipt::Entry& entry = shard.entries[i];
    const size_t tensor = index.add({entry.tensor, entry.role, entry.dtype, entry.shape});
    fmt::format_to(std::back_inserter(text), "{}[{},{},{},", i ? "," : "", tensor, entry.box.row_begin,
                   entry.box.row_end);
    const parallel::Box whole = whole_box(entry.shape);
    if (entry.box.col_begin != whole.col_begin || entry.box.col_end != whole.col_end)
      fmt::format_to(std::back_inserter(text), "{},{},", entry.box.col_begin, entry.box.col_end);
    fmt::format_to(std::back_inserter(text), "\"{}{}\"]", hex64(entry.hash), hex64(entry.content_hash));
  }
  text += "]";
}

void append_shard(std::string& text, const ShardReceipt& shard, TensorIndex& index) {
  fmt::format_to(std::back_inserter(text), "\"file\":{},\"bytes\":{},", json_string(shard.file), shard.file_bytes);
  append_chunks(text, shard, index);
}

[[noreturn]] void malformed(const std::string& what) { throw std::invalid_argument(what); }

template <typename Enum>
Enum named(const std::string& text, std::initializer_list<Enum> values) {
  for (const Enum value : values)
    if (name_of(value) == text) return value;
  malformed(fmt::format("\"{}\" is no known name", text));
}

std::vector<Tensor> read_tensors(const json& rows) {
  std::vector<Tensor> tensors;
  for (const json& row : rows) {
    Tensor tensor{.name = row.at(0).get<std::string>()};
    for (const json& size : row.at(3)) tensor.shape.push_back(whole_number<int64_t>(size));
    tensor.role = named(row.at(1).get<std::string>(),
                        {Role::master, Role::first_moment, Role::second_moment, Role::gradient});
    tensor.dtype = named(row.at(2).get<std::string>(),
                         {DType::f32, DType::bf16, DType::f64, DType::i32, DType::u16, DType::u32});
    if (tensor.shape.empty() || tensor.shape.size() > 2) malformed(fmt::format("{} has no shape", tensor.name));
    int64_t bytes = int64_t(size_of(tensor.dtype));
    for (const int64_t size : tensor.shape) {
      if (size < 0) malformed(fmt::format("{} has the dimension {}", tensor.name, size));
      if (__builtin_mul_overflow(bytes, size, &bytes))
        malformed(fmt::format("the size of {} overflows", tensor.name));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

uint64_t read_hash(const std::string& text, size_t at) {
  uint64_t value = 0;
  const auto end = text.data() + at + 16;
  if (text.size() != 32 || std::from_chars(text.data() + at, end, value, 16).ptr != end)
    malformed("a hash is not 32 hex digits");
  return value;
}

ShardReceipt read_shard(const json& object, const std::vector<Tensor>& tensors) {
  ShardReceipt shard{.file = object.at("file").get<std::string>(),
                     .file_bytes = whole_number<uint64_t>(object.at("bytes"))};
  uint64_t data_bytes = 0;
  for (const json& row : object.at("chunks")) {
    const Tensor& tensor = tensors.at(whole_number<size_t>(row.at(0)));
    ShardReceipt::Entry entry{
        .tensor = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape};
    const parallel::Box whole = whole_box(tensor.shape);
    entry.box = {whole_number<int64_t>(row.at(1)), whole_number<int64_t>(row.at(2)), whole.col_begin,
                 whole.col_end};
    if (row.size() == 6) {
      entry.box.col_begin = whole_number<int64_t>(row.at(3));
      entry.box.col_end = whole_number<int64_t>(row.at(4));
    } else if (row.size() != 4) {
      malformed("a chunk is not a row of 4 or 6");
    }
    if (!is_inside(entry.box, whole))
      malformed(fmt::format("{} has the chunk {}", tensor.name, box_text(tensor.shape, entry.box)));
    const std::string hashes = row.back().get<std::string>();
    entry.hash = read_hash(hashes, 0);
    entry.content_hash = read_hash(hashes, 16);
    entry.bytes = uint64_t(entry.box.count()) * size_of(entry.dtype);
    if (__builtin_add_overflow(data_bytes, entry.bytes, &data_bytes))
      malformed(fmt::format("the chunks of {} overflow", shard.file));
    shard.entries.push_back(std::move(entry));
  }
  if (data_bytes > shard.file_bytes)
    malformed(fmt::format("{} holds more than its {} bytes", shard.file, shard.file_bytes));
  uint64_t offset = shard.file_bytes - data_bytes;
  for (ShardReceipt::Entry& entry : shard.entries) {
    entry.offset = offset;
    offset += entry.bytes;
  }
  return shard;
}

}  // namespace

std::string ShardReceipt::to_json() const {
  TensorIndex index;
  std::string text = "{";
  append_shard(text, *this, index);
  text += ",";
  append_tensors(text, index.tensors);
  std::erase(text, '\n');  // one line: receipts travel over a channel of lines
  return text + "}";
}

ShardReceipt ShardReceipt::from_json(const std::string& text) {
  try {
    const json object = parse_json(text);
    return read_shard(object, read_tensors(object.at("tensors")));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("a shard's receipt cannot be read: {}", error.what()));
  }
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\"format\":\"trainctl-checkpoint\",\"version\":{},\"root\":\"{}\",\"bytes\":{},\n\"state\":{},\n",
      kFormatVersion, manifest.root, manifest.bytes, record_text(manifest.state));
  append_tensors(text, manifest.tensors);
  TensorIndex index;
  for (const Tensor& tensor : manifest.tensors) index.add(tensor);
  text += ",\n\"files\":[";
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    text += i ? ",\n{" : "\n{";
    append_shard(text, manifest.files[i], index);
    text += "}";
  }
  ENSURE(index.tensors.size() == manifest.tensors.size(), "a chunk of a tensor that the manifest does not list");
  return text + "]}\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  try {
    const json object = parse_json(text);
    if (object.at("format") != "trainctl-checkpoint") malformed("its format is " + dump_json(object.at("format")));
    if (object.at("version") != kFormatVersion)
      malformed(fmt::format("its version is {}, this program reads {}", dump_json(object.at("version")),
                            kFormatVersion));
    Manifest manifest;
    manifest.state = record_of<StateInfo>(object.at("state"));
    manifest.root = object.at("root").get<std::string>();
    manifest.bytes = whole_number<uint64_t>(object.at("bytes"));
    manifest.tensors = read_tensors(object.at("tensors"));
    uint64_t bytes = 0;
    for (const json& file : object.at("files")) {
      manifest.files.push_back(read_shard(file, manifest.tensors));
      if (__builtin_add_overflow(bytes, manifest.files.back().file_bytes, &bytes))
        malformed("the sizes of its files overflow");
    }
    if (bytes != manifest.bytes)
      malformed(fmt::format("its files have {} bytes, but it says {}", bytes, manifest.bytes));
    check_tiling(manifest.tensors, manifest.files);
    if (root_hash(manifest.files) != manifest.root) malformed("its root hash does not follow from its chunks");
    return manifest;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is not a usable manifest: {}", path, error.what()));
  }
}

std::string piece_text(const Piece& piece) {
  std::string text = fmt::format(
      "{{\"format\":\"trainctl-piece\",\"version\":{},\"rank\":{},\"ranks\":{},\n\"state\":{},\n",
      kFormatVersion, piece.rank, piece.ranks, record_text(piece.state));
  append_tensors(text, piece.tensors);
  TensorIndex index;
  for (const Tensor& tensor : piece.tensors) index.add(tensor);
  text += ",\n\"shard\":{";
  append_shard(text, piece.receipt, index);
  ENSURE(index.tensors.size() == piece.tensors.size(), "a chunk of a tensor that the piece does not list");
  return text + "}}\n";
}

Piece parse_piece(const std::string& text, const std::string& path) {
  try {
    const json object = parse_json(text);
    if (object.at("format") != "trainctl-piece") malformed("its format is " + dump_json(object.at("format")));
    if (object.at("version") != kFormatVersion)
      malformed(fmt::format("its version is {}, this program reads {}", dump_json(object.at("version")),
                            kFormatVersion));
    Piece piece;
    piece.state = record_of<StateInfo>(object.at("state"));
    piece.rank = whole_number<int>(object.at("rank"));
    piece.ranks = whole_number<int>(object.at("ranks"));
    if (piece.rank < 0 || piece.rank >= piece.ranks)
      malformed(fmt::format("it is of rank {} of {}", piece.rank, piece.ranks));
    piece.tensors = read_tensors(object.at("tensors"));
    piece.receipt = read_shard(object.at("shard"), piece.tensors);
    return piece;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is not a usable piece: {}", path, error.what()));
  }
}

std::string manifest_field(const std::string& manifest_text) {
  return fmt::format("\"manifest_sha256\":\"{}\"", sha256_hex(manifest_text));
}

std::string commit_text(const std::string& manifest_text, const Manifest& manifest) {
  return fmt::format(
      "{{\"format\":\"trainctl-commit\",\"version\":{},{},\"root\":\"{}\",\"bytes\":{},"
      "\"run_id\":{},\"epoch\":{},\"step\":{}}}\n",
      kFormatVersion, manifest_field(manifest_text), manifest.root, manifest.bytes,
      json_string(manifest.state.run_id), manifest.state.epoch, manifest.state.step);
}

}  // namespace trainctl::ckpt
