#include "cmd/watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "runtime/base/file_system.h"
#include "runtime/base/units.h"

namespace trainctl::cmd {
namespace {

/// Returns false if stdout is closed.
bool print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(size_t(n));
  }
  return true;
}

/// SIGINT, SIGTERM, SIGHUP and SIGWINCH as a file, for as long as this lives.
class Signals {
 public:
  Signals() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) ::sigaddset(&set, signal);
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    pipe_before_ = std::signal(SIGPIPE, SIG_IGN);
    fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Signals() {
    ::close(fd_);
    std::signal(SIGPIPE, pipe_before_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_; }
  /// Whether one of these signals asks to end.
  bool end_asked() {
    bool end = false;
    for (signalfd_siginfo info; ::read(fd_, &info, sizeof info) == ssize_t(sizeof info);)
      end |= info.ssi_signo != SIGWINCH;
    return end;
  }

 private:
  sigset_t before_;
  void (*pipe_before_)(int);
  int fd_;
};

/// Its own screen and keys without Enter, if stdin is a terminal; undone at the end.
class OwnScreen {
 public:
  OwnScreen() : keys_(::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (keys_) {
      termios now = before_;
      now.c_lflag &= ~tcflag_t(ICANON | ECHO);
      now.c_cc[VMIN] = 0, now.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    print("\033[?1049h\033[?25l");
  }
  ~OwnScreen() {
    print("\033[?25h\033[?1049l");
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  OwnScreen(const OwnScreen&) = delete;
  OwnScreen& operator=(const OwnScreen&) = delete;
  bool keys() const { return keys_; }

 private:
  termios before_{};
  bool keys_;
};

/// At most the rows of the terminal, each cleared to its end, so that a shorter text leaves nothing of the
/// one before.
std::string in_place(const std::string& text, Room room) {
  std::string drawn = "\033[H";
  size_t begin = 0;
  for (int row = 0; begin < text.size() && (room.rows == 0 || row < room.rows - 1); ++row) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    drawn += text.substr(begin, end - begin) + "\033[K\n";
    begin = end + 1;
  }
  return drawn + "\033[J";
}

/// Waits for the next time to draw. False: the user ends the watch.
bool pause(Signals& signals, bool keys, double seconds) {
  pollfd fds[] = {{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                  {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
  ::poll(fds, 2, int(seconds * 1000));
  if (signals.end_asked()) return false;
  if (!(fds[1].revents & (POLLIN | POLLHUP))) return true;
  char key = 0;
  const ssize_t n = ::read(STDIN_FILENO, &key, 1);
  return n > 0 && key != 'q' && key != 'Q';
}

}  // namespace

Room terminal_room() {
  winsize size{};
  if (!::isatty(STDOUT_FILENO) || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_col, size.ws_row};
}

void watch(const std::function<Screen(Room)>& draw, double every_s, bool plain) {
  Signals signals;
  if (plain || !::isatty(STDOUT_FILENO)) {
    for (Screen screen = draw({});; screen = draw({})) {
      const std::string time =
          plain ? "" : fmt::format("--- {}\n", utc_text(real_clock().unix_s()));
      if (!print(time + screen.text) || screen.last || !pause(signals, false, every_s)) return;
    }
  }
  Screen screen;
  {
    const OwnScreen own;
    do {
      const Room room = terminal_room();
      screen = draw(room);
      if (!print(in_place(screen.text, room))) return;
    } while (!screen.last && pause(signals, own.keys(), every_s));
  }
  print(screen.text);
}

}  // namespace trainctl::cmd
