// A library to preload: below one folder, calls of the operating system are refused as network file systems refuse them.
//
//   TRAINCTL_TEST_REFUSED_FOLDER=/path    only what lies below it is refused
//   TRAINCTL_TEST_REFUSED=renameat2=22,fsync=22,flock=38
//                                         each with its errno; renameat2 with any flag, fsync of a folder
// Each refused call leaves a line in FOLDER/refused. While FOLDER/full exists, no file can be created below FOLDER/ckpt (ENOSPC), while FOLDER/full-runs exists,
// none below FOLDER/runs; while FOLDER/small exists, 64 KiB are free below FOLDER.
// While FOLDER/hold-NAME exists, a rename to NAME below FOLDER waits, and FOLDER/held says that it does; FOLDER/hold-open-NAME: an open of NAME.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_below(const std::string& path, const std::string& folder) {
  return !folder.empty() && path.rfind(folder + "/", 0) == 0;
}
bool is_refused_place(const std::string& path) { return is_below(path, variable("TRAINCTL_TEST_REFUSED_FOLDER")); }

/// The errno with which `call` is refused; 0: it is not.
int refusal(const std::string& call) {
  const std::string list = "," + variable("TRAINCTL_TEST_REFUSED");
  const size_t at = list.find("," + call + "=");
  return at == std::string::npos ? 0 : std::atoi(list.c_str() + at + call.size() + 2);
}

std::string path_of(int fd) {
  char link[64], target[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, target, sizeof target);
  return n > 0 ? std::string(target, size_t(n)) : "";
}

/// Notes the call in FOLDER/refused, so that a test can tell that it was reached.
int refuse(const char* call, int reason) {
  if (std::FILE* file = std::fopen((variable("TRAINCTL_TEST_REFUSED_FOLDER") + "/refused").c_str(), "a")) {
    std::fprintf(file, "%s\n", call);
    std::fclose(file);
  }
  errno = reason;
  return -1;
}

/// Returns when FOLDER/hold-NAME, of the last part of the path, does not exist.
void wait_while_held(const std::string& path, const char* call = "") {
  const std::string folder = variable("TRAINCTL_TEST_REFUSED_FOLDER");
  const std::string hold = folder + "/hold-" + call + path.substr(path.rfind('/') + 1);
  if (!is_below(path, folder) || ::access(hold.c_str(), F_OK) != 0) return;
  if (std::FILE* file = std::fopen((folder + "/held").c_str(), "a")) std::fclose(file);
  while (::access(hold.c_str(), F_OK) == 0) ::usleep(2000);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int open_unless_full(const char* name, const char* path, int flags, mode_t mode) {
  wait_while_held(path, "open-");
  const std::string folder = variable("TRAINCTL_TEST_REFUSED_FOLDER");
  const auto is_full = [&](const char* below, const char* mark) {
    return is_below(path, folder + below) && ::access((folder + mark).c_str(), F_OK) == 0;
  };
  if ((flags & O_CREAT) && (is_full("/ckpt", "/full") || is_full("/runs", "/full-runs")))
    return refuse(name, ENOSPC);
  return next<int(const char*, int, ...)>(name)(path, flags, mode);
}

mode_t mode_of(int flags, va_list arguments) { return flags & O_CREAT ? mode_t(va_arg(arguments, int)) : 0; }

}  // namespace

extern "C" {

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  wait_while_held(to);
  if (const int reason = refusal("renameat2"); flags != 0 && reason != 0 && is_refused_place(to)) return refuse("renameat2", reason);
  return next<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder, to, flags);
}

int rename(const char* from, const char* to) noexcept {
  wait_while_held(to);
  return next<int(const char*, const char*)>("rename")(from, to);
}

int fsync(int fd) {
  struct stat s;
  const bool folder = ::fstat(fd, &s) == 0 && S_ISDIR(s.st_mode);
  if (const int reason = refusal("fsync"); folder && reason != 0 && is_refused_place(path_of(fd))) return refuse("fsync", reason);
  return next<int(int)>("fsync")(fd);
}

int flock(int fd, int operation) noexcept {
  if (const int reason = refusal("flock"); reason != 0 && is_refused_place(path_of(fd))) return refuse("flock", reason);
  return next<int(int, int)>("flock")(fd, operation);
}

int statvfs(const char* path, struct statvfs* result) noexcept {
  const int rc = next<int(const char*, struct statvfs*)>("statvfs")(path, result);
  if (rc == 0 && is_refused_place(path) && ::access((variable("TRAINCTL_TEST_REFUSED_FOLDER") + "/small").c_str(), F_OK) == 0)
    result->f_bavail = 65536 / result->f_frsize;
  return rc;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_unless_full("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_unless_full("open64", path, flags, mode);
}

}  // extern "C"
