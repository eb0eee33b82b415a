// The operating system, named once: files, folders and time, behind an interface that tests can break.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainctl {

/// An open file. One owner; not thread-safe. The destructor closes without syncing.
/// Every call throws Error(kIo) with path and errno text.
class File {
 public:
  virtual ~File() = default;
  virtual void write_at(uint64_t offset, std::span<const std::byte> data) = 0;
  /// Reads exactly data.size() bytes; a short file is Error(kIo).
  virtual void read_at(uint64_t offset, std::span<std::byte> data) = 0;
  virtual uint64_t size() = 0;
  /// Makes the content durable. After a failed sync the file is garbage: write a new one.
  virtual void sync() = 0;
};

/// Thread-safe. Durability is explicit, as on POSIX: content by File::sync, names by sync_directory.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<File> create(const std::string& path) = 0;  ///< fails if it exists (O_EXCL)
  virtual std::unique_ptr<File> open_read(const std::string& path) = 0;
  virtual void make_directory(const std::string& path) = 0;  ///< one level; existing is no error
  virtual void rename(const std::string& from, const std::string& to) = 0;  ///< replaces a file
  /// One atomic step that fails with Error(kIo) if `to` exists (RENAME_NOREPLACE). False: this file system has no such
  /// step and nothing happened.
  virtual bool try_rename_no_replace(const std::string& from, const std::string& to) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;  ///< must be empty
  /// fsync of the folder. False: this file system has no such call.
  virtual bool try_sync_directory(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& path) = 0;  ///< names, sorted; no "." and ".."
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  virtual bool is_link(const std::string&) { return false; }  ///< a symbolic link, whatever it points to
  /// Bytes that this user can still write to the file system that holds `path`; nullopt where it does not say.
  virtual std::optional<uint64_t> free_bytes(const std::string&) { return std::nullopt; }

  // Built on the calls above.
  /// Renames a file or folder; Error(kIo) if `to` exists. NFS, Lustre, CephFS, GlusterFS and many FUSE mounts refuse the
  /// atomic step; there the absence of `to` is checked before a plain rename. So that nothing can come in between, one
  /// process at a time renames to a name: callers hold the lock of their run.
  void rename_no_replace(const std::string& from, const std::string& to);
  /// Makes the names in a folder durable. Where a folder cannot be synced (CIFS, some FUSE mounts) this does nothing:
  /// names are then as durable as the server makes them by itself.
  void sync_directory(const std::string& path);
  void make_directories(const std::string& path);
  void remove_tree(const std::string& path);  ///< a link is removed, never what it points to
  std::string read_text(const std::string& path);
  /// create + write + sync + sync of the folder; the path must not exist.
  void write_new_text(const std::string& path, const std::string& text);
  /// Writes `path`.tmp, syncs it, renames it over `path`, syncs the folder.
  void replace_text(const std::string& path, const std::string& text);
};

/// The machine's own file system; lives for the whole program.
FileSystem& real_file_system();

/// Time; replaced by a hand-wound clock in tests of supervision.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double monotonic_s() = 0;
  virtual double unix_s() = 0;
  virtual void sleep_s(double seconds) = 0;
};
Clock& real_clock();

}  // namespace trainctl
