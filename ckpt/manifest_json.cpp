// The JSON texts: receipts, manifest.json, COMMIT. A chunk is one short row, so that a manifest stays small: offsets and sizes
// follow from the order of the rows, and full-width boxes leave their columns out.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <istream>
#include <map>

#include "ckpt/manifest.h"
#include "ckpt/state_record.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"

namespace trainctl::ckpt {
namespace {

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

void append_shard_json(std::string& text, const ShardReceipt& shard, TensorIndex& index) {
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

std::vector<Tensor> read_tensors(const Json& rows) {
  std::vector<Tensor> tensors;
  for (const Json& row : rows) {
    Tensor tensor{.name = row.at(0).get<std::string>()};
    for (const Json& size : row.at(3)) tensor.shape.push_back(whole_number<int64_t>(size));
    tensor.role = named(row.at(1).get<std::string>(),
                        {Role::master, Role::first_moment, Role::second_moment, Role::gradient,
                         Role::first_scales, Role::second_scales, Role::ema});
    tensor.dtype =
        named(row.at(2).get<std::string>(), {DType::f32, DType::bf16, DType::f64, DType::i32, DType::u16,
                                             DType::u32, DType::i8, DType::u8, DType::f16});
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

/// One row of a "chunks" list.
struct ChunkRow {
  int64_t numbers[5];
  int count = 0;  ///< of numbers: tensor, two rows and perhaps two columns
  bool has_hashes = false;
  uint64_t hash = 0, content_hash = 0;
};

uint64_t read_hash(const std::string& text, size_t at) {
  uint64_t value = 0;
  const auto end = text.data() + at + 16;
  if (text.size() != 32 || std::from_chars(text.data() + at, end, value, 16).ptr != end)
    malformed("a hash is not 32 hex digits");
  return value;
}

/// Reads a document. A large model has hundreds of thousands of chunks, and as JSON values they would
/// take longer than all else together: each list "chunks" becomes the number of a list of rows.
class DocumentReader final : public JsonEvents {
 public:
  using Rows = std::vector<ChunkRow>;
  /// Takes an object of the document's list "files" and its rows, which are dropped then.
  using TakeFile = std::function<void(const Json& file, const Rows& rows)>;

  explicit DocumentReader(TakeFile take_file = {}) : take_file_(std::move(take_file)) {}

  Json document;
  std::vector<Rows> lists;

  const Rows& rows_of(const Json& file) const { return lists.at(whole_number<size_t>(file.at("chunks"))); }

  bool value(Json value) override {
    if (place_ != Place::row || !value.is_number_integer()) return put(std::move(value));
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX);
    return number(fits ? value.get<int64_t>() : -1);
  }
  bool text(std::string& value) override {
    if (place_ != Place::row) return put(std::move(value));
    ChunkRow& row = lists.back().back();
    if (row.has_hashes) bad_row();
    row.has_hashes = true;
    row.hash = read_hash(value, 0);
    row.content_hash = read_hash(value, 16);
    return true;
  }
  bool start_object() override { return open(Json::object()); }
  bool key(std::string& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array() override {
    if (place_ == Place::list) {
      lists.back().emplace_back();
      place_ = Place::row;
      return true;
    }
    if (!is_chunks()) return open(Json::array());
    add(lists.size());
    lists.emplace_back();
    place_ = Place::list;
    return true;
  }
  bool end_array() override {
    if (place_ == Place::outside) return close();
    if (place_ == Place::row) {
      const ChunkRow& row = lists.back().back();
      if (!row.has_hashes || (row.count != 3 && row.count != 5)) bad_row();
    }
    place_ = place_ == Place::row ? Place::list : Place::outside;
    return true;
  }

 private:
  enum class Place { outside, list, row };   // of a list of chunks

  [[noreturn]] static void bad_row() { malformed("a chunk is not a row of 4 or 6"); }
  bool is_chunks() const {
    return place_ == Place::outside && !open_.empty() && open_.back()->is_object() && key_ == "chunks";
  }
  bool number(int64_t value) {
    ChunkRow& row = lists.back().back();
    if (value < 0) malformed("a chunk has a number out of range");
    if (row.has_hashes || row.count == 5) bad_row();
    row.numbers[row.count++] = value;
    return true;
  }
  /// The value of the current key, or the next of the open list.
  Json& add(Json value) {
    if (open_.empty()) return document = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
  bool put(Json value) {
    if (place_ != Place::outside) bad_row();
    if (is_chunks()) malformed("its chunks are no list");
    add(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (place_ != Place::outside) bad_row();
    if (is_chunks()) malformed("its chunks are no list");
    open_.push_back(&add(std::move(value)));   // nothing is added to its parent while it is open
    return true;
  }
  bool close() {
    const Json* const closed = open_.back();
    open_.pop_back();
    if (!take_file_ || open_.size() != 2 || !closed->is_object() || !open_.back()->is_array() ||
        open_.back() != files_of_document())
      return true;
    take_file_(*closed, lists.empty() ? Rows{} : lists.back());
    lists.clear();
    open_.back()->clear();
    return true;
  }
  const Json* files_of_document() const {
    const auto at = document.is_object() ? document.find("files") : document.end();
    return at == document.end() ? nullptr : &*at;
  }

  const TakeFile take_file_;
  std::vector<Json*> open_;
  std::string key_;
  Place place_ = Place::outside;
};

void read_document(const std::string& text, DocumentReader& reader) {
  if (!read_json(text, reader)) malformed("it is no JSON");
}

/// The box of a row of `tensor`.
parallel::Box box_of_row(const ChunkRow& row, const Tensor& tensor) {
  const parallel::Box whole = whole_box(tensor.shape);
  const bool cut = row.count == 5;
  const parallel::Box box = {row.numbers[1], row.numbers[2], cut ? row.numbers[3] : whole.col_begin,
                             cut ? row.numbers[4] : whole.col_end};
  if (!is_inside(box, whole))
    malformed(fmt::format("{} has the chunk {}", tensor.name, box_text(tensor.shape, box)));
  return box;
}

/// Whether a chunk is wanted: a box of the tensor of this number.
using KeepRow = std::function<bool(size_t tensor, const parallel::Box& box)>;

/// `keep`: the entries of the result; empty: all.
ShardReceipt read_shard(const Json& object, const DocumentReader::Rows& rows,
                        const std::vector<Tensor>& tensors, const KeepRow& keep = {}) {
  ShardReceipt shard{.file = object.at("file").get<std::string>(),
                     .file_bytes = whole_number<uint64_t>(object.at("bytes"))};
  if (!keep) shard.entries.reserve(rows.size());
  uint64_t data_bytes = 0;
  for (const ChunkRow& row : rows) {
    const Tensor& tensor = tensors.at(size_t(row.numbers[0]));
    const parallel::Box box = box_of_row(row, tensor);
    const uint64_t bytes = uint64_t(box.count()) * size_of(tensor.dtype), offset = data_bytes;
    if (__builtin_add_overflow(data_bytes, bytes, &data_bytes))
      malformed(fmt::format("the chunks of {} overflow", shard.file));
    if (keep && !keep(size_t(row.numbers[0]), box)) continue;
    shard.entries.push_back({.tensor = tensor.name,
                             .role = tensor.role,
                             .dtype = tensor.dtype,
                             .shape = tensor.shape,
                             .box = box,
                             .offset = offset,
                             .bytes = bytes,
                             .hash = row.hash,
                             .content_hash = row.content_hash});
  }
  if (data_bytes > shard.file_bytes)
    malformed(fmt::format("{} holds more than its {} bytes", shard.file, shard.file_bytes));
  for (ShardReceipt::Entry& entry : shard.entries) entry.offset += shard.file_bytes - data_bytes;
  return shard;
}

/// What a manifest says apart from its files.
Manifest read_head(const Json& object) {
  if (object.at("format") != "trainctl-checkpoint")
    malformed("its format is " + dump_json(object.at("format")));
  if (object.at("version") != kFormatVersion)
    malformed(fmt::format("its version is {}, this program reads {}", dump_json(object.at("version")),
                          kFormatVersion));
  return {.state = record_of<StateInfo>(object.at("state")),
          .tensors = read_tensors(object.at("tensors")),
          .files = {},
          .root = object.at("root").get<std::string>(),
          .bytes = whole_number<uint64_t>(object.at("bytes"))};
}

/// The wanted boxes of each tensor.
std::vector<std::vector<parallel::Box>> boxes_of_tensors(const std::vector<Tensor>& tensors,
                                                 std::span<const WantedBox> wanted) {
  std::map<std::pair<std::string_view, Role>, std::vector<parallel::Box>> by_name;
  for (const WantedBox& one : wanted) by_name[{one.name, one.role}].push_back(one.box);
  std::vector<std::vector<parallel::Box>> boxes;
  for (const Tensor& tensor : tensors) boxes.push_back(by_name[{tensor.name, tensor.role}]);
  return boxes;
}

void add_size(const ShardReceipt& shard, uint64_t& bytes) {
  if (__builtin_add_overflow(bytes, shard.file_bytes, &bytes)) malformed("the sizes of its files overflow");
}
void check_sum(const Manifest& manifest, uint64_t bytes) {
  if (bytes != manifest.bytes)
    malformed(fmt::format("its files have {} bytes, but it says {}", bytes, manifest.bytes));
}

[[noreturn]] void not_usable(const std::string& path, const std::exception& error) {
  throw Error(ErrorCode::kCheckpoint, fmt::format("{} is not a usable manifest: {}", path, error.what()));
}

}  // namespace

std::string ShardReceipt::to_json() const {
  TensorIndex index;
  std::string text = "{";
  append_shard_json(text, *this, index);
  text += ",";
  append_tensors(text, index.tensors);
  std::erase(text, '\n');  // one line: receipts travel over a channel of lines
  return text + "}";
}

ShardReceipt ShardReceipt::from_json(const std::string& text) {
  try {
    DocumentReader reader;
    read_document(text, reader);
    const Json& object = reader.document;
    return read_shard(object, reader.rows_of(object), read_tensors(object.at("tensors")));
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
    append_shard_json(text, manifest.files[i], index);
    text += "}";
  }
  ENSURE(index.tensors.size() == manifest.tensors.size(), "a chunk of a tensor that the manifest does not list");
  return text + "]}\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  try {
    DocumentReader reader;
    read_document(text, reader);
    Manifest manifest = read_head(reader.document);
    uint64_t bytes = 0;
    for (const Json& file : reader.document.at("files")) {
      manifest.files.push_back(read_shard(file, reader.rows_of(file), manifest.tensors));
      add_size(manifest.files.back(), bytes);
    }
    check_sum(manifest, bytes);
    check_tiling(manifest.tensors, manifest.files);
    if (root_hash(manifest.files) != manifest.root) malformed("its root hash does not follow from its chunks");
    return manifest;
  } catch (const std::exception& error) {
    not_usable(path, error);
  }
}

Manifest parse_manifest_part(std::istream& text, const std::string& path, std::span<const WantedBox> wanted) {
  try {
    std::vector<Tensor> tensors;
    std::vector<std::vector<parallel::Box>> boxes;  // of each tensor
    std::vector<ShardReceipt> files;
    uint64_t bytes = 0;
    const auto keep = [&](size_t tensor, const parallel::Box& box) {
      return std::any_of(boxes[tensor].begin(), boxes[tensor].end(),
                         [&](const parallel::Box& b) { return parallel::intersect(b, box).count() > 0; });
    };
    DocumentReader* document = nullptr;
    DocumentReader reader([&](const Json& file, const DocumentReader::Rows& rows) {
      if (boxes.empty()) {
        tensors = read_tensors(document->document.at("tensors"));
        boxes = boxes_of_tensors(tensors, wanted);
      }
      ShardReceipt shard = read_shard(file, rows, tensors, keep);
      add_size(shard, bytes);
      if (!shard.entries.empty()) files.push_back(std::move(shard));
    });
    document = &reader;
    if (!read_json(text, reader)) malformed("it is no JSON");
    Manifest manifest = read_head(reader.document);
    manifest.files = std::move(files);
    check_sum(manifest, bytes);
    return manifest;
  } catch (const Error& error) {
    throw;  // of a read
  } catch (const std::exception& error) {
    not_usable(path, error);
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
  append_shard_json(text, piece.receipt, index);
  ENSURE(index.tensors.size() == piece.tensors.size(), "a chunk of a tensor that the piece does not list");
  return text + "}}\n";
}

Piece parse_piece(const std::string& text, const std::string& path) {
  try {
    DocumentReader reader;
    read_document(text, reader);
    const Json& object = reader.document;
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
    piece.receipt = read_shard(object.at("shard"), reader.rows_of(object.at("shard")), piece.tensors);
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
