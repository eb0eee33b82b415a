// Scratch folders of one attempt: where mpirun and its ranks put sockets and shared memory, so that nothing
// of a killed job stays.
#pragma once
#include <string>

namespace trainctl {

/// Two folders, one in /tmp (session) and one in /dev/shm (shared memory), removed by the destructor. Each
/// holds a locked file, so that the folders of a supervisor that was killed are known to be nobody's and
/// removed by the next.
class SessionFolders {
 public:
  SessionFolders();
  /// With these paths, which must begin with /tmp/trainctl. and /dev/shm/trainctl.; one that exists and
  /// belongs to this user is taken over (nodes of a test may share their /tmp).
  SessionFolders(const std::string& session, const std::string& shared_memory);
  ~SessionFolders();
  SessionFolders(const SessionFolders&) = delete;
  SessionFolders& operator=(const SessionFolders&) = delete;
  const std::string& session() const { return session_.path; }
  const std::string& shared_memory() const { return shared_memory_.path; }

  /// Removes folders left behind by processes that are gone.
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
