#include "runtime/exchange/export_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl {
namespace {

const char* word_in_file(DType dtype) {
  ENSURE(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? "F32" : "BF16";
}

/// Reads pieces of the stored tensor in the order of its file.
class PieceReader {
 public:
  PieceReader(ckpt::Checkpoint& checkpoint, const Param& param, bool transposed)
      : checkpoint_(checkpoint), layout_(param.layout), transposed_(transposed) {}

  int64_t lines() const { return transposed_ ? layout_.cols : layout_.rows; }
  int64_t line() const { return transposed_ ? layout_.rows : layout_.cols; }
  /// Lines [begin, end) of the stored tensor into `out`.
  void read(int64_t begin, int64_t end, std::vector<float>& out) {
    out.resize(size_t((end - begin) * line()));
    if (!transposed_) {
      checkpoint_.read(layout_.name, ckpt::Role::master, {begin, end, 0, layout_.cols}, out.data());
      return;
    }
    // By bands of whole rows of the checkpoint, whose chunks are such bands, too.
    const int64_t width = end - begin, most = std::max<int64_t>(1, kBandFloats / width);
    for (int64_t row = 0; row < layout_.rows; row += most) {
      const int64_t rows = std::min(most, layout_.rows - row);
      band_.resize(size_t(rows * width));
      checkpoint_.read(layout_.name, ckpt::Role::master, {row, row + rows, begin, end}, band_.data());
      for (int64_t c = 0; c < width; ++c)
        for (int64_t r = 0; r < rows; ++r)
          out[size_t(c * layout_.rows + row + r)] = band_[size_t(r * width + c)];
    }
  }

 private:
  static constexpr int64_t kBandFloats = int64_t(1) << 20;
  ckpt::Checkpoint& checkpoint_;
  const parallel::ParamLayout& layout_;
  bool transposed_;
  std::vector<float> band_;
};

/// Appends pieces to a file, and hashes them.
class PieceWriter {
 public:
  PieceWriter(File& file, uint64_t offset, DType dtype) : file_(file), offset_(offset), dtype_(dtype) {}

  void append(const std::vector<float>& values) {
    if (dtype_ == DType::f32) {
      put(std::as_bytes(std::span(values)));
      return;
    }
    rounded_.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      rounded_[i] = bf16(values[i]);
      const double difference = std::abs(double(values[i]) - double(float(rounded_[i])));
      if (difference > largest_) largest_ = difference;
    }
    put(std::as_bytes(std::span(rounded_)));
  }
  uint64_t offset() const { return offset_; }
  WrittenTensor written() const { return {hash_.digest(), largest_}; }

 private:
  void put(std::span<const std::byte> bytes) {
    file_.write_at(offset_, bytes);
    hash_.update(bytes);
    offset_ += bytes.size();
  }

  File& file_;
  uint64_t offset_;
  DType dtype_;
  Xxh3Stream hash_;
  double largest_ = 0;
  std::vector<bf16> rounded_;
};

[[noreturn]] void not_read_back(const std::string& folder, const std::string& what) {
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("the export did not read back and was removed: {}: {}; is the disk sound?", folder, what));
}

uint64_t hash_of(File& file, uint64_t offset, uint64_t bytes) {
  Xxh3Stream hash;
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, uint64_t(8) << 20));
  for (uint64_t done = 0; done < bytes;) {
    const std::span part(piece.data(), std::min<uint64_t>(piece.size(), bytes - done));
    file.read_at(offset + done, part);
    hash.update(part);
    done += part.size();
  }
  return hash.digest();
}

}  // namespace

std::map<std::string, WrittenTensor> write_export_file(FileSystem& fs, const std::string& folder,
                                                       const ExportFile& file, const ParamTable& table,
                                                       ckpt::Checkpoint& checkpoint, DType dtype) {
  std::vector<ckpt::SafetensorsEntry> entries;
  for (const ExportTensor& tensor : file.tensors)
    entries.push_back({.name = tensor.stored.name,
                       .dtype = word_in_file(dtype),
                       .shape = tensor.stored.shape,
                       .bytes = tensor.bytes});
  const std::string header = ckpt::safetensors_header(entries, {{"format", "pt"}});
  const auto out = fs.create(folder + "/" + file.name);
  out->write_at(0, std::as_bytes(std::span(header)));
  uint64_t offset = header.size();
  std::map<std::string, WrittenTensor> result;
  std::vector<float> values;
  for (const ExportTensor& tensor : file.tensors) {
    PieceReader reader(checkpoint, table.params[size_t(tensor.param)], tensor.stored.transposed);
    PieceWriter writer(*out, offset, dtype);
    const int64_t most = std::max<int64_t>(1, kExportFloats / reader.line());
    for (int64_t line = 0; line < reader.lines(); line += most) {
      reader.read(line, std::min(reader.lines(), line + most), values);
      writer.append(values);
    }
    ENSURE(writer.offset() == offset + tensor.bytes, "{} bytes of {}", writer.offset() - offset,
           tensor.stored.name);
    offset = writer.offset();
    result[tensor.stored.name] = writer.written();
  }
  out->sync();
  return result;
}

void read_back(FileSystem& fs, const std::string& folder, const std::vector<ExportFile>& files, DType dtype,
               const std::map<std::string, WrittenTensor>& written) {
  size_t tensors = 0;
  for (const ExportFile& file : files) {
    const std::string path = folder + "/" + file.name;
    auto handle = fs.open_read(path);
    handle->drop_cache();
    const ckpt::SafetensorsFile opened = ckpt::open_safetensors(std::move(handle), path);
    if (opened.entries.size() != file.tensors.size())
      not_read_back(path, fmt::format("{} tensors, not {}", opened.entries.size(), file.tensors.size()));
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      const ckpt::SafetensorsEntry& entry = opened.entries[i];
      const StoredParam& want = file.tensors[i].stored;
      if (entry.name != want.name || entry.shape != want.shape || entry.dtype != word_in_file(dtype))
        not_read_back(path, fmt::format("tensor `{}` [{}] {} is where `{}` [{}] was written", entry.name,
                                        fmt::join(entry.shape, ", "), entry.dtype, want.name,
                                        fmt::join(want.shape, ", ")));
      if (hash_of(*opened.file, entry.offset, entry.bytes) != written.at(want.name).hash)
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
