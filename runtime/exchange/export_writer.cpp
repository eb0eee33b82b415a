#include "runtime/exchange/export_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>

#include "ckpt/page_memory.h"
#include "ckpt/read_ahead.h"
#include "ckpt/shard_appender.h"
#include "ckpt/shard_layout.h"
#include "runtime/base/error.h"

namespace trainctl {
namespace {

const char* word_in_file(DType dtype) {
  ENSURE(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? "F32" : "BF16";
}

/// Reads pieces of a stored tensor in the order of its file.
class PieceReader {
 public:
  PieceReader(ckpt::Checkpoint& checkpoint, const ParamTable& table)
      : checkpoint_(checkpoint), table_(table) {}

  /// Lines [begin, end) of the stored tensor into `out`.
  void read(const ExportTensor& tensor, int64_t begin, int64_t end, std::vector<float>& out) {
    if (tensor.stored.part) return read_joined(tensor, begin, end, out);
    const parallel::ParamLayout& layout = table_.params[size_t(tensor.param)].layout;
    const bool transposed = tensor.stored.transposed;
    out.resize(size_t((end - begin) * (transposed ? layout.rows : layout.cols)));
    if (!transposed) return read_box(layout.name, {begin, end, 0, layout.cols}, out.data());
    // By bands of whole rows of the checkpoint, whose chunks are such bands, too.
    const int64_t width = end - begin, most = std::max<int64_t>(1, kBandFloats / width);
    for (int64_t row = 0; row < layout.rows; row += most) {
      const int64_t rows = std::min(most, layout.rows - row);
      band_.resize(size_t(rows * width));
      read_box(layout.name, {row, row + rows, begin, end}, band_.data());
      transpose(rows, width, out.data() + row, layout.rows);
    }
  }

 private:
  static constexpr int64_t kBandFloats = int64_t(1) << 20;

  /// Lines of one expert, whose parameters lie in each of them.
  void read_joined(const ExportTensor& tensor, int64_t begin, int64_t end, std::vector<float>& out) {
    const StoredParam::Part& shape = *tensor.stored.part;
    const int64_t expert = begin / shape.lines, first = begin % shape.lines, lines = end - begin;
    const auto parts = int64_t(tensor.joined.size()) / table_.experts;
    out.resize(size_t(lines * shape.width));
    for (int64_t i = expert * parts; i < (expert + 1) * parts; ++i) {
      const Param& param = table_.params[size_t(tensor.joined[size_t(i)])];
      const StoredParam::Part part = *stored_param(table_, param).part;
      ENSURE(part.expert == expert);
      band_.resize(size_t(param.layout.rows * lines));
      read_box(param.layout.name, {0, param.layout.rows, first, first + lines}, band_.data());
      for (int64_t r = 0; r < param.layout.rows; ++r)
        for (int64_t line = 0; line < lines; ++line)
          out[size_t(line * part.width + part.first + r * part.step)] = band_[size_t(r * lines + line)];
    }
  }

  void read_box(const std::string& name, const parallel::Box& box, float* out) {
    const ckpt::BoxRead wanted{
        .name = name, .role = ckpt::Role::master, .box = box, .out = out, .as_f32 = true};
    checkpoint_.read_all({&wanted, 1}, [](uint64_t) {});
  }
  /// band_ [rows, width] into out [width, rows] with lines of `pitch` floats, in squares that fit into a cache.
  void transpose(int64_t rows, int64_t width, float* out, int64_t pitch) const {
    constexpr int64_t kSide = 32;
    for (int64_t r0 = 0; r0 < rows; r0 += kSide)
      for (int64_t c0 = 0; c0 < width; c0 += kSide)
        for (int64_t c = c0; c < std::min(width, c0 + kSide); ++c)
          for (int64_t r = r0; r < std::min(rows, r0 + kSide); ++r)
            out[size_t(c * pitch + r)] = band_[size_t(r * width + c)];
  }

  ckpt::Checkpoint& checkpoint_;
  const ParamTable& table_;
  std::vector<float> band_;
};

/// Rounds `values` to `rounded`. Returns the largest absolute difference, which float32 holds exactly.
float round_values(std::span<const float> values, bf16* rounded) {
  // Absolute values are compared as integers, so that the compiler uses vectors; a NaN counts as 0.
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t largest = 0;
  const auto round_one = [&](size_t i) {
    rounded[i] = bf16(values[i]);
    const int32_t size = std::bit_cast<int32_t>(values[i] - float(rounded[i])) & 0x7fffffff;
    largest = std::max(largest, size <= kInfinity ? size : 0);
  };
  constexpr size_t kBlock = 64;
  const size_t whole = values.size() / kBlock * kBlock;
  for (size_t begin = 0; begin < whole; begin += kBlock)
    for (size_t i = 0; i < kBlock; ++i) round_one(begin + i);
  for (size_t i = whole; i < values.size(); ++i) round_one(i);
  return std::bit_cast<float>(largest);
}

/// A file of the folder that is written from its beginning to its end.
class NewExportFile final : public ckpt::NewFile {
 public:
  explicit NewExportFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  void append(std::span<const std::byte> data) override {
    file_->write_at(offset_, data);
    offset_ += data.size();
  }
  void finish() override { file_->sync(); }

 private:
  const std::unique_ptr<File> file_;
  uint64_t offset_ = 0;
};

/// Rounds, hashes and appends the tensors of a file.
class TensorWriter {
 public:
  TensorWriter(ckpt::ShardAppender& out, const ExportFile& file)
      : out_(out),
        file_(file),
        hashes_(file.tensors.size(), ckpt::kNoChunkSeed),
        largest_(file.tensors.size()) {}

  void append(size_t tensor, std::span<const float> values) {
    if (file_.tensors[tensor].dtype == DType::f32) return put(tensor, std::as_bytes(values));
    rounded_.resize(values.size());
    largest_[tensor] = std::max(largest_[tensor], round_values(values, rounded_.data()));
    put(tensor, std::as_bytes(std::span(rounded_)));
  }
  WrittenTensor written(size_t tensor) { return {hashes_.finish()[tensor], largest_[tensor]}; }

 private:
  void put(size_t tensor, std::span<const std::byte> bytes) {
    ckpt::in_parts(bytes, [&](std::span<const std::byte> part) {
      hashes_.update(tensor, part);
      out_.append(part);
    });
  }

  ckpt::ShardAppender& out_;
  const ExportFile& file_;
  ckpt::ChunkHashes hashes_;
  std::vector<float> largest_;
  std::vector<bf16> rounded_;
};

/// Lines of a stored tensor that are read at a time.
struct Piece {
  size_t tensor = 0;  ///< of the file
  int64_t begin = 0, end = 0;
};

/// No piece has lines of two experts.
void add_joined_pieces(size_t i, const ExportTensor& tensor, std::vector<Piece>& pieces) {
  const StoredParam::Part& part = *tensor.stored.part;
  const int64_t most = std::max<int64_t>(1, kExportFloats / part.width);
  for (int64_t begin = 0; begin < tensor.stored.shape[0] * part.lines; begin += part.lines)
    for (int64_t line = 0; line < part.lines; line += most)
      pieces.push_back({i, begin + line, begin + std::min(part.lines, line + most)});
}

std::vector<Piece> pieces_of(const ExportFile& file, const ParamTable& table) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const ExportTensor& tensor = file.tensors[i];
    if (tensor.stored.part) {
      add_joined_pieces(i, tensor, pieces);
      continue;
    }
    const parallel::ParamLayout& layout = table.params[size_t(tensor.param)].layout;
    const int64_t lines = tensor.stored.transposed ? layout.cols : layout.rows;
    const int64_t line = tensor.stored.transposed ? layout.rows : layout.cols;
    const int64_t most = std::max<int64_t>(1, kExportFloats / line);
    for (int64_t begin = 0; begin < lines; begin += most)
      pieces.push_back({i, begin, std::min(lines, begin + most)});
  }
  return pieces;
}

[[noreturn]] void not_read_back(const std::string& folder, const std::string& what) {
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("the export did not read back and was removed: {}: {}; is the disk sound?", folder, what));
}

/// The hash of each tensor of an open file, whose data lie one after the other.
std::vector<uint64_t> hashes_of(const ckpt::SafetensorsFile& opened) {
  constexpr uint64_t kBlockBytes = uint64_t(2) << 20;
  const uint64_t file_bytes = opened.file->size();
  std::vector<ckpt::FileRange> data;
  for (const ckpt::SafetensorsEntry& entry : opened.entries) data.push_back({entry.offset, entry.bytes});
  const auto blocks = ckpt::blocks_over(data, file_bytes, kBlockBytes);
  const ckpt::PageMemory memory(kExportAhead * kBlockBytes);
  const auto place = [&](size_t i) {
    return std::span(memory.data() + i % kExportAhead * kBlockBytes, blocks[i].bytes);
  };
  ckpt::ChunkHashes hashes(data.size(), ckpt::kNoChunkSeed);
  size_t tensor = 0;
  ckpt::read_ahead(
      blocks.size(), {.most = kExportAhead},
      [&](size_t i) { opened.file->read_at(blocks[i].offset, place(i)); },
      [&](size_t i) {
        for (; tensor < data.size() && data[tensor].offset < blocks[i].end(); ++tensor) {
          const uint64_t begin = std::max(data[tensor].offset, blocks[i].offset);
          const uint64_t end = std::min(data[tensor].end(), blocks[i].end());
          hashes.update(tensor, place(i).subspan(begin - blocks[i].offset, end - begin));
          if (end < data[tensor].end()) return;
        }
      });
  return hashes.finish();
}

}  // namespace

std::map<std::string, WrittenTensor> write_export_file(FileSystem& fs, const std::string& folder,
                                                       const ExportFile& file, const ParamTable& table,
                                                       ckpt::Checkpoint& checkpoint) {
  std::vector<ckpt::SafetensorsEntry> entries;
  for (const ExportTensor& tensor : file.tensors)
    entries.push_back({.name = tensor.stored.name,
                       .dtype = word_in_file(tensor.dtype),
                       .shape = tensor.stored.shape,
                       .bytes = tensor.bytes});
  const std::string header = ckpt::safetensors_header(entries, {{"format", "pt"}});
  const std::vector<Piece> pieces = pieces_of(file, table);
  NewExportFile out(fs.create(folder + "/" + file.name));
  ckpt::ShardAppender appender(out, header.size() + file.bytes);
  appender.append(std::as_bytes(std::span(header)));
  TensorWriter writer(appender, file);
  PieceReader reader(checkpoint, table);
  std::array<std::vector<float>, kExportAhead> values;
  ckpt::read_ahead(
      pieces.size(), {.most = kExportAhead},
      [&](size_t i) {
        reader.read(file.tensors[pieces[i].tensor], pieces[i].begin, pieces[i].end, values[i % kExportAhead]);
      },
      [&](size_t i) { writer.append(pieces[i].tensor, values[i % kExportAhead]); });
  appender.flush();
  ENSURE(appender.bytes() == header.size() + file.bytes, "{} bytes of {}", appender.bytes(), file.name);
  out.finish();
  std::map<std::string, WrittenTensor> result;
  for (size_t i = 0; i < file.tensors.size(); ++i) result[file.tensors[i].stored.name] = writer.written(i);
  return result;
}

void read_back(FileSystem& fs, const std::string& folder, const std::vector<ExportFile>& files,
               const std::map<std::string, WrittenTensor>& written) {
  size_t tensors = 0;
  for (const ExportFile& file : files) {
    const std::string path = folder + "/" + file.name;
    auto handle = fs.open_read(path);
    handle->drop_cache();
    const ckpt::SafetensorsFile opened = ckpt::open_safetensors(std::move(handle), path);
    if (opened.entries.size() != file.tensors.size())
      not_read_back(path, fmt::format("{} tensors, not {}", opened.entries.size(), file.tensors.size()));
    const std::vector<uint64_t> hashes = hashes_of(opened);
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      const ckpt::SafetensorsEntry& entry = opened.entries[i];
      const StoredParam& want = file.tensors[i].stored;
      if (entry.name != want.name || entry.shape != want.shape ||
          entry.dtype != word_in_file(file.tensors[i].dtype))
        not_read_back(path, fmt::format("tensor `{}` [{}] {} is where `{}` [{}] was written", entry.name,
                                        fmt::join(entry.shape, ", "), entry.dtype, want.name,
                                        fmt::join(want.shape, ", ")));
      if (hashes[i] != written.at(want.name).hash)
        not_read_back(path, fmt::format("the bytes of `{}` are not those that were written", want.name));
    }
    tensors += file.tensors.size();
  }
  // As a reader of the folder sees it: through the index.
  const auto all = ckpt::TensorFolder::open(fs, folder)->names();
  if (all.size() != tensors || tensors != written.size())
    not_read_back(folder, fmt::format("it has {} tensors, not {}", all.size(), tensors));
}

}  // namespace trainctl
