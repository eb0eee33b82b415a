// Files, folders and time of the operating system, behind interfaces that tests replace to inject failures.
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
  /// Asks the system to read synced content from the medium next time, not from its cache. A hint.
  virtual void drop_cache() {}
  /// Makes the content durable. After a failed sync the content is undefined: write a new file.
  virtual void sync() = 0;
};

/// Thread-safe. Calls throw Error(kIo). Durability is explicit, as on POSIX: File::sync makes content
/// durable, sync_directory makes names durable.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<File> create(const std::string& path) = 0;  ///< fails if it exists (O_EXCL)
  virtual std::unique_ptr<File> open_read(const std::string& path) = 0;
  /// Opens an existing file to write into it: its content stays. Error(kIo), also where that is impossible.
  virtual std::unique_ptr<File> open_write(const std::string& path);
  virtual void make_directory(const std::string& path) = 0;  ///< one level; no error if it exists
  virtual void rename(const std::string& from, const std::string& to) = 0;  ///< replaces an existing file
  /// Renames in one atomic step; Error(kIo) if `to` exists (RENAME_NOREPLACE). Returns false, and changes
  /// nothing, if this file system has no such operation.
  virtual bool try_rename_no_replace(const std::string& from, const std::string& to) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;  ///< must be empty
  /// fsync of the folder. Returns false if this file system cannot sync folders.
  virtual bool try_sync_directory(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& path) = 0;  ///< names, sorted; no "." and ".."
  /// These two say false where the name cannot be looked up (no permission, a part of the path is a file),
  /// and throw where the disk or its server does not answer.
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  virtual bool is_link(const std::string&) { return false; }  ///< a symbolic link; its target may be missing
  /// Bytes that this user can still write to the file system that holds `path`; nullopt if the file system
  /// does not report them.
  virtual std::optional<uint64_t> free_bytes(const std::string&) { return std::nullopt; }

  // Built on the calls above.
  /// Renames a file or folder; Error(kIo) if `to` exists. NFS, Lustre, CephFS, GlusterFS and many FUSE mounts
  /// have no atomic operation for this; there the call checks that `to` is absent and then renames. Another
  /// process could create `to` between the two, so callers hold the lock of their run.
  void rename_no_replace(const std::string& from, const std::string& to);
  /// Makes the names in a folder durable. Does nothing where a folder cannot be synced (CIFS, some FUSE
  /// mounts); there the server alone decides when names become durable.
  void sync_directory(const std::string& path);
  void make_directories(const std::string& path);  ///< with all parents
  void remove_tree(const std::string& path);  ///< removes a symbolic link itself, never its target
  std::string read_text(const std::string& path);
  /// create + write + sync + sync of the folder; the path must not exist.
  void write_new_text(const std::string& path, const std::string& text);
  /// Writes `path`.tmp, syncs it, renames it over `path`, syncs the folder.
  void replace_text(const std::string& path, const std::string& text);
};

/// The file system of this machine; lives as long as the program.
FileSystem& real_file_system();

/// `handler` is called, as std::set_new_handler's is for memory, where a call of real_file_system() gets no
/// descriptor (EMFILE, ENFILE), with its message; if it returns, the call fails as any other. Null: none.
void set_no_descriptor_handler(void (*handler)(const std::string& what));

/// The result of try_lock: a lock, one that another opening of the file holds, or a file system without locks.
enum class LockState { taken, held, unsupported };
struct LockAttempt {
  LockState state = LockState::taken;
  int reason = 0;  ///< errno, unless the lock is taken
};
/// Locks an open file (flock) without waiting. The lock ends when the last descriptor of this opening is
/// closed, also by the end of its process. A shared lock excludes exclusive ones only.
LockAttempt try_lock(int fd, bool shared = false);

/// Time. Tests of supervision replace it by a clock that they advance themselves.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double monotonic_s() = 0;
  virtual double unix_s() = 0;
  virtual void sleep_s(double seconds) = 0;
};
Clock& real_clock();

}  // namespace trainctl
