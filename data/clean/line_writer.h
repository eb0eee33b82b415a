// LineWriter: a new file of lines, packed on demand.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"

namespace trainctl::data {

/// One owner; not thread-safe. Error(kIo). Memory: a MiB, and what zstd needs.
class LineWriter {
 public:
  /// `zstd_threads` > 0: packs with zstd, in threads of the library; the bytes do not depend on their number.
  LineWriter(FileSystem& fs, const std::string& path, int zstd_threads);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  /// Writes the line and a newline.
  void add(std::string_view line);
  /// Makes the file complete and durable. The last call.
  void complete();

 private:
  struct Packer;
  void flush(bool is_last);
  void write(std::string_view bytes);

  std::unique_ptr<File> file_;
  uint64_t written_ = 0;
  std::string waiting_;
  std::unique_ptr<Packer> packer_;  // null: not packed
};

}  // namespace trainctl::data
