#include "runtime/machine/pmix/fork_server.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/error.h"

extern char** environ;

namespace trainctl {
namespace {

constexpr int kAnswerLimitS = 10;  // for a fork

/// Closes every descriptor above stderr but `kept`, which may move. Returns its number.
int keep_only(int kept) {
  const int low = STDERR_FILENO + 1;
  if (kept != low) ::dup2(kept, low);
  if (::syscall(SYS_close_range, unsigned(low + 1), ~0U, 0U) == 0) return low;
  std::vector<int> open;  // before Linux 5.9
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none))
    open.push_back(std::atoi(entry.path().filename().c_str()));
  for (const int descriptor : open)
    if (descriptor > low) ::close(descriptor);
  return low;
}

/// Empties what others read in /proc/PID/environ: a process is looked for by marks in it, and these are the
/// owner's.
void hide_environment() {
  static std::vector<std::string> texts;  // the process keeps its variables
  static std::vector<char*> pointers;
  for (char** variable = environ; *variable; ++variable) texts.emplace_back(*variable);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  environ = pointers.data();
  std::ifstream file("/proc/self/stat");
  std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // "pid (name) state ...": the state is field 3, where the environment begins and ends are fields 50 and 51.
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 50; ++field) fields >> skipped;
  uintptr_t begin = 0, end = 0;
  if (fields >> begin >> end && begin && begin < end)
    std::memset(reinterpret_cast<void*>(begin), 0, end - begin);
}

/// One byte, and room for a descriptor that goes with it.
struct DescriptorMessage {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};

  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;
};

/// The descriptor that came with one byte; -1 at the end of the connection.
int receive_descriptor(int socket) {
  DescriptorMessage message;
  ssize_t n;
  do n = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  const cmsghdr* head = n == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (!head || head->cmsg_type != SCM_RIGHTS) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
  return descriptor;
}

bool send_descriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* head = CMSG_FIRSTHDR(&message.header);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1;
}

[[noreturn]] void serve(int socket, const std::function<void(int)>& main) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "fork-server");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}) std::signal(signal, SIG_IGN);
  socket = keep_only(socket);
  hide_environment();
  pid_t self = ::getpid();
  if (::send(socket, &self, sizeof self, MSG_NOSIGNAL) != ssize_t(sizeof self)) ::_exit(0);
  for (int descriptor; (descriptor = receive_descriptor(socket)) >= 0;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(socket);
      main(keep_only(descriptor));
      ::_exit(0);
    }
    ::close(descriptor);
    if (::send(socket, &pid, sizeof pid, MSG_NOSIGNAL) != ssize_t(sizeof pid)) break;
  }
  ::_exit(0);
}

}  // namespace

ForkServer::ForkServer(std::function<void(int fd)> main) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorCode::kLauncher, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  const pid_t pid = ::fork();
  if (pid == 0) serve(ends[1], main);
  ::close(ends[1]);
  socket_ = ends[0];
  const timeval limit = {.tv_sec = kAnswerLimitS, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (pid > 0) process_ = int(::syscall(SYS_pidfd_open, pid, 0));
  if (process_ < 0) {
    ::close(socket_);
    throw Error(ErrorCode::kLauncher, fmt::format("cannot fork: {}", std::strerror(errno)));
  }
  pid_t hidden = 0;  // it says so when it has hidden the owner's environment
  if (::recv(socket_, &hidden, sizeof hidden, MSG_WAITALL) != ssize_t(sizeof hidden)) {
    end();
    throw Error(ErrorCode::kLauncher, "the process that starts helper processes does not answer");
  }
}

ForkServer::~ForkServer() { end(); }

void ForkServer::end() {
  ::close(socket_);
  // By its descriptor: an owner that reaps every child may have reaped this one.
  ::syscall(SYS_pidfd_send_signal, process_, SIGKILL, nullptr, 0);
  siginfo_t info;
  while (::waitid(P_PIDFD, id_t(process_), &info, WEXITED) < 0 && errno == EINTR) {
  }
  ::close(process_);
}

ForkServer::Child ForkServer::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorCode::kLauncher, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  Child child{.socket = ends[0]};
  pid_t pid = -1;
  const bool started = send_descriptor(socket_, ends[1]) &&
                       ::recv(socket_, &pid, sizeof pid, MSG_WAITALL) == ssize_t(sizeof pid) && pid > 0;
  ::close(ends[1]);
  // The fork server reaps at the next start at the earliest: the number is still the child's.
  if (started) child.process = int(::syscall(SYS_pidfd_open, pid, 0));
  if (child.process < 0) {
    ::close(child.socket);
    throw Error(ErrorCode::kLauncher, "the process that starts helper processes does not answer");
  }
  return child;
}

}  // namespace trainctl
