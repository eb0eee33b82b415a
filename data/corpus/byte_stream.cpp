#include "data/corpus/byte_stream.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace trainctl::data {
namespace {

/// A file that is not compressed.
class PlainStream final : public ByteStream {
 public:
  PlainStream(std::unique_ptr<File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)), size_(file_->size()) {}
  size_t read(std::span<char> out) override {
    const size_t n = size_t(std::min<uint64_t>(out.size(), size_ - at_));
    if (n > 0) file_->read_at(at_, std::as_writable_bytes(out.first(n)));
    at_ += n;
    return n;
  }
  void skip(uint64_t bytes) override {
    if (bytes > size_ - at_)
      throw Error(ErrorCode::kData,
                  fmt::format("{} ends at byte {}, {} more were expected", path_, size_, bytes));
    at_ += bytes;
  }
  uint64_t stored_bytes() const override { return at_; }

 private:
  std::unique_ptr<File> file_;
  std::string path_;
  uint64_t size_, at_ = 0;
};

void refuse_lfs_pointer(File& file, const std::string& path) {
  if (file.size() >= 1024) return;
  std::string begin(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(begin)));
  if (is_lfs_pointer(begin)) throw Error(ErrorCode::kData, fmt::format("{} is {}", path, stand_in(begin)));
}

}  // namespace

Compression compression_of(const std::string& path) {
  if (path.ends_with(".gz")) return Compression::gzip;
  return path.ends_with(".zst") ? Compression::zstd : Compression::none;
}

std::string name_unpacked(const std::string& path) {
  switch (compression_of(path)) {
    case Compression::none: return path;
    case Compression::gzip: return path.substr(0, path.size() - 3);
    case Compression::zstd: return path.substr(0, path.size() - 4);
  }
  return path;
}

std::unique_ptr<File> open_input(FileSystem& fs, const std::string& path) {
  // A pipe has no size and cannot be read twice. Files of a simulated file system are absent here.
  std::error_code absent;
  const auto status = std::filesystem::status(path, absent);
  if (std::filesystem::exists(status) && std::filesystem::is_other(status))
    throw Error(ErrorCode::kData, fmt::format("{} is not a regular file", path));
  std::unique_ptr<File> file;
  try {
    if (fs.is_directory(path)) throw Error(ErrorCode::kData, fmt::format("{} is a folder, not a file", path));
    file = fs.open_read(path);
  } catch (const Error& e) {
    throw Error(ErrorCode::kData, e.what());
  }
  refuse_lfs_pointer(*file, path);
  return file;
}

std::unique_ptr<ByteStream> open_bytes(FileSystem& fs, const std::string& path) {
  auto file = open_input(fs, path);
  switch (compression_of(path)) {
    case Compression::none: break;
    case Compression::gzip: return open_gzip(std::move(file), path);
    case Compression::zstd: return open_zstd(std::move(file), path);
  }
  return std::make_unique<PlainStream>(std::move(file), path);
}

uint64_t content_bytes(FileSystem& fs, const std::string& path) {
  if (compression_of(path) == Compression::none) return open_input(fs, path)->size();
  const auto stream = open_bytes(fs, path);
  std::vector<char> buffer(size_t(1) << 20);
  uint64_t total = 0;
  for (size_t n = buffer.size(); n == buffer.size(); total += n) n = stream->read(buffer);
  return total;
}

}  // namespace trainctl::data
