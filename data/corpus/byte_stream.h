// ByteStream: the content of one file from its beginning to its end, unpacked on the way if it is compressed.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl::data {

enum class Compression { none, gzip, zstd };
/// By the ending of the name: `.gz`, `.zst`, else none.
Compression compression_of(const std::string& path);
/// The name without that ending.
std::string name_unpacked(const std::string& path);

/// One owner; not thread-safe. Memory: the library's window (gzip 32 KiB; zstd what the frame asks for, at
/// most 2 GiB) and a buffer of 256 KiB.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills `out` from its start and returns the number of bytes; fewer than out.size() only at the end of the
  /// file. Error(kData): the file is damaged or ends too early, with its name and the byte of the file.
  /// Error(kIo): the disk or the object store does not give the bytes; that says nothing about the file.
  virtual size_t read(std::span<char> out) = 0;
  /// Skips `bytes` of the content. Of a compressed file they are unpacked and dropped. Error(kData) if the
  /// content is shorter.
  virtual void skip(uint64_t bytes) = 0;
  /// Bytes of the file, as it is stored, that were used so far.
  virtual uint64_t stored_bytes() const = 0;
};

/// The content of a regular file. A gzip file may have several members, a zstd file several frames.
/// Error(kData) if the file is missing or unreadable. `fs` outlives the stream.
std::unique_ptr<ByteStream> open_bytes(FileSystem& fs, const std::string& path);
/// Opens a file for reading; Error(kData) if it is missing, unreadable or a folder.
std::unique_ptr<File> open_input(FileSystem& fs, const std::string& path);
/// The length of the content; of a compressed file it is unpacked to find it. Error(kData).
uint64_t content_bytes(FileSystem& fs, const std::string& path);

// The kinds, each in a file of its own.
std::unique_ptr<ByteStream> open_gzip(std::unique_ptr<File> file, const std::string& path);
std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<File> file, const std::string& path);

}  // namespace trainctl::data
