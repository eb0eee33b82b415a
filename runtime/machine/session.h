// Scratch folders for the sockets and shared memory of mpirun and ranks. Nothing of a killed job stays on the
// machine.
#pragma once
#include <string>

namespace trainctl {

/// Owns two folders, one in /tmp (session) and one in /dev/shm (shared memory); the destructor removes them.
/// Each folder has a file that its owner locks. If the owner is killed, the lock is free, and sweep() of
/// another process removes the folder. Error(kPreflight) if a folder cannot be made.
class SessionFolders {
 public:
  SessionFolders();
  /// Uses these paths, which must begin with /tmp/trainctl. and /dev/shm/trainctl. A folder that exists and
  /// belongs to this user is used as well, because nodes of a test may share their /tmp.
  SessionFolders(const std::string& session, const std::string& shared_memory);
  ~SessionFolders();
  SessionFolders(const SessionFolders&) = delete;
  SessionFolders& operator=(const SessionFolders&) = delete;
  const std::string& session() const { return session_.path; }
  const std::string& shared_memory() const { return shared_memory_.path; }
  /// Whether both are still there.
  bool exist() const;

  /// Removes the folders of processes that have ended.
  static void sweep();

 private:
  struct Folder {
    std::string path;
    int lock_fd = -1;
  };
  static Folder make(const std::string& parent);
  static Folder take(const std::string& path);
  static void remove(Folder& folder);
  Folder session_, shared_memory_;
};

}  // namespace trainctl
