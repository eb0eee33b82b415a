#include "runtime/observe/trace/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/paths.h"

namespace trainctl::trace {
namespace {

constexpr size_t kBufferBytes = size_t(1) << 20;
constexpr int kGzipWindow = 15 + 16;  // of deflateInit2: the largest window, with gzip's header

}  // namespace

struct TraceFile::State {
  FileSystem& fs;
  const std::string path, temporary;
  std::unique_ptr<File> file;
  uint64_t size = 0;
  bool is_committed = false;
  std::string text;  // that was not written yet
  std::vector<unsigned char> buffer;
  z_stream deflate{};
  bool compresses = false;

  State(FileSystem& f, const std::string& p)
      : fs(f), path(p), temporary(fmt::format("{}.{}.partial", p, ::getpid())), file(fs.create(temporary)) {}
  /// Apart from the constructor, so that the destructor removes the file.
  void begin() {
    buffer.resize(kBufferBytes);
    if (!path.ends_with(".gz")) return;
    compresses = ::deflateInit2(&deflate, 6, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) == Z_OK;
    if (!compresses)
      throw Error(ErrorCode::kIo, fmt::format("{} cannot be compressed: zlib did not start", path));
  }
  ~State() {
    if (compresses) ::deflateEnd(&deflate);
    if (is_committed) return;
    file.reset();
    try {
      fs.remove_file(temporary);
    } catch (const std::exception&) {
      // A name that ends in .partial says what it is.
    }
  }

  void append(std::string_view bytes) {
    file->write_at(size, std::as_bytes(std::span(bytes.data(), bytes.size())));
    size += bytes.size();
  }

  void flush(bool is_end) {
    compresses ? compress(is_end ? Z_FINISH : Z_NO_FLUSH) : append(text);
    text.clear();
  }

  void compress(int flush) {
    deflate.next_in = reinterpret_cast<unsigned char*>(text.data());
    deflate.avail_in = unsigned(text.size());
    do {
      deflate.next_out = buffer.data();
      deflate.avail_out = unsigned(buffer.size());
      ::deflate(&deflate, flush);
      append({reinterpret_cast<const char*>(buffer.data()), buffer.size() - deflate.avail_out});
    } while (deflate.avail_out == 0);
  }
};

TraceFile::TraceFile(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path))
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a folder; name a file in it: --out {}/trace.json.gz", path, path));
  const std::string folder = std::filesystem::path(absolute_path(path)).parent_path().string();
  if (!fs.is_directory(folder))
    throw Error(ErrorCode::kUsage, fmt::format("there is no folder {} for the trace; make it first", folder));
  state_ = std::make_unique<State>(fs, path);
  state_->begin();
}

TraceFile::~TraceFile() = default;

void TraceFile::write(std::string_view text) {
  state_->text += text;
  if (state_->text.size() >= kBufferBytes) state_->flush(false);
}

uint64_t TraceFile::commit() {
  State& s = *state_;
  s.flush(true);
  s.file->sync();
  s.file.reset();
  s.fs.rename(s.temporary, s.path);
  s.is_committed = true;
  s.fs.sync_directory(std::filesystem::path(absolute_path(s.path)).parent_path().string());
  return s.size;
}

}  // namespace trainctl::trace
