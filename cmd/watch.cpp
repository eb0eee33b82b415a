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
#include "runtime/base/signals.h"
#include "runtime/base/units.h"

namespace trainctl::cmd {
namespace {

/// Returns false if stdout is closed.
bool print_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(size_t(n));
  }
  return true;
}

/// SIGINT, SIGTERM, SIGHUP, SIGWINCH and SIGTSTP as a file, for as long as this lives.
class Signals {
 public:
  enum class Asked { nothing, end, stop };
  explicit Signals(bool with_stop) {
    sigset_t set = heeded({SIGINT, SIGTERM, SIGHUP, SIGWINCH});
    if (with_stop) ::sigaddset(&set, SIGTSTP);
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
  /// What the signals since the last call ask for.
  Asked asked() {
    Asked asked = Asked::nothing;
    for (signalfd_siginfo info; ::read(fd_, &info, sizeof info) == ssize_t(sizeof info);) {
      if (info.ssi_signo == SIGTSTP && asked == Asked::nothing) asked = Asked::stop;
      if (info.ssi_signo != SIGTSTP && info.ssi_signo != SIGWINCH) asked = Asked::end;
    }
    return asked;
  }

 private:
  sigset_t before_;
  void (*pipe_before_)(int);
  int fd_;
};

/// Its own screen and keys without Enter, if stdin is a terminal; undone at the end.
class OwnScreen {
 public:
  OwnScreen() : keys_(::tcgetattr(STDIN_FILENO, &before_) == 0) { enter(); }
  ~OwnScreen() { leave(); }
  OwnScreen(const OwnScreen&) = delete;
  OwnScreen& operator=(const OwnScreen&) = delete;
  bool keys() const { return keys_; }
  /// Gives the screen back and stops this process, as Ctrl-Z does; returns when it is continued.
  void stop() {
    leave();
    ::raise(SIGSTOP);
    enter();
  }

 private:
  void enter() {
    if (keys_) {
      // As it is now: a shell may have changed it meanwhile.
      ::tcgetattr(STDIN_FILENO, &before_);
      termios now = before_;
      now.c_lflag &= ~tcflag_t(ICANON | ECHO);
      now.c_cc[VMIN] = 0, now.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    print_text("\033[?1049h\033[?25l");
  }
  void leave() {
    print_text("\033[?25h\033[?1049l");
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
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

/// The keys in what the terminal sent: letters as they are, arrows as 'h', 'j', 'k' and 'l'; other sequences
/// are left out.
std::string keys_of(std::string_view bytes) {
  std::string keys;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '\033') {
      keys += bytes[i];
      continue;
    }
    if (i + 1 >= bytes.size() || (bytes[i + 1] != '[' && bytes[i + 1] != 'O')) continue;
    for (i += 2; i < bytes.size() && (bytes[i] < '@' || bytes[i] > '~');) ++i;
    constexpr std::string_view kArrows = "ABCD", kKeys = "kjlh";
    if (i < bytes.size())
      if (const size_t arrow = kArrows.find(bytes[i]); arrow != std::string_view::npos) keys += kKeys[arrow];
  }
  return keys;
}

/// What ended a pause.
struct Pause {
  bool end = false, stop = false;  ///< the user ends the watch; stops the process
  std::string keys;
};

Pause pause(Signals& signals, bool keys, double seconds) {
  pollfd fds[] = {{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                  {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
  ::poll(fds, 2, int(seconds * 1000));
  const Signals::Asked asked = signals.asked();
  Pause pause{.end = asked == Signals::Asked::end, .stop = asked == Signals::Asked::stop};
  if (!(fds[1].revents & (POLLIN | POLLHUP))) return pause;
  char bytes[64];
  const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (n <= 0) pause.end = true;  // the terminal is gone
  else pause.keys = keys_of({bytes, size_t(n)});
  pause.end |= pause.keys.find_first_of("qQ") != std::string::npos;
  return pause;
}

/// One text below the other.
void print_each(const std::function<Screen(Room)>& draw, const WatchOptions& options) {
  Signals signals(false);
  for (;;) {
    const Screen screen = draw({});
    const std::string time =
        options.plain ? "" : fmt::format("--- {}\n", utc_text(real_clock().unix_s()));
    if (!print_text(time + screen.text) || screen.last || pause(signals, false, options.every_s).end) return;
  }
}

}  // namespace

Room terminal_room() {
  winsize size{};
  if (!::isatty(STDOUT_FILENO) || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_col, size.ws_row};
}

void watch(const std::function<Screen(Room)>& draw, const WatchOptions& options) {
  if (options.plain || !::isatty(STDOUT_FILENO)) return print_each(draw, options);
  Screen screen;
  Signals signals(true);
  {
    OwnScreen own;
    for (Pause last; !last.end;) {
      const Room room = terminal_room();
      screen = draw(room);
      if (!print_text(in_place(screen.text, room))) return;
      if (screen.last && !(options.stays && own.keys())) break;
      last = pause(signals, own.keys(), options.every_s);
      if (last.stop) own.stop();
      if (options.on_key)
        for (const char key : last.keys) options.on_key(key);
    }
  }
  if (!options.stays) print_text(screen.text);
}

void repeat(double every_s, const std::function<bool()>& turn) {
  Signals signals(false);
  while (turn() && !pause(signals, false, every_s).end) continue;
}

}  // namespace trainctl::cmd
