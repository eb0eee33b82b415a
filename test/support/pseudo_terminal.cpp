#include "test/support/pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace trainctl::test {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

winsize window_size(int columns, int rows) {
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(rows);
  return size;
}

}  // namespace

PseudoTerminal::PseudoTerminal(const std::vector<std::string>& words, const std::string& directory,
                               int columns, int rows) {
  winsize size = window_size(columns, rows);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("no pseudo terminal");
  if (pid_ > 0) return;
  if (::chdir(directory.c_str()) != 0) ::_exit(126);
  ::setenv("TERM", "xterm-256color", 1);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

PseudoTerminal::~PseudoTerminal() {
  if (!gone_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(fd_);
}

bool PseudoTerminal::read_some(double seconds) {
  pollfd waiting{fd_, POLLIN, 0};
  if (::poll(&waiting, 1, int(std::max(0.0, seconds) * 1000)) <= 0) return false;
  char bytes[4096];
  const ssize_t n = ::read(fd_, bytes, sizeof bytes);
  if (n <= 0) return false;  // EIO: the child has closed its side
  all_.append(bytes, size_t(n));
  return true;
}

bool PseudoTerminal::shows(const std::string& text, double seconds) {
  const double until = now_s() + seconds;
  for (;;) {
    if (const size_t at = all_.find(text, seen_); at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (now_s() > until) return false;
    const size_t before = all_.size();
    read_some(std::min(0.2, until - now_s()));
    if (all_.size() == before && ::waitpid(pid_, &status_, WNOHANG) == pid_ &&
        (WIFEXITED(status_) || WIFSIGNALED(status_))) {
      gone_ = true;
      while (read_some(0)) continue;
      return all_.find(text, seen_) != std::string::npos;
    }
  }
}

void PseudoTerminal::forget() {
  while (read_some(0)) continue;
  seen_ = all_.size();
}

void PseudoTerminal::press(const std::string& keys) {
  if (::write(fd_, keys.data(), keys.size()) != ssize_t(keys.size()))
    throw std::runtime_error("the terminal takes no keys");
}

void PseudoTerminal::resize(int columns, int rows) {
  const winsize size = window_size(columns, rows);
  ::ioctl(fd_, TIOCSWINSZ, &size);
}

void PseudoTerminal::signal(int number) { ::kill(pid_, number); }

bool PseudoTerminal::is_ordinary() const {
  termios now{};
  return ::tcgetattr(fd_, &now) == 0 && (now.c_lflag & ECHO) && (now.c_lflag & ICANON);
}

bool PseudoTerminal::stopped(double seconds) {
  const double until = now_s() + seconds;
  while (now_s() < until) {
    read_some(0.02);
    if (::waitpid(pid_, &status_, WNOHANG | WUNTRACED) != pid_) continue;
    if (WIFSTOPPED(status_)) {
      while (read_some(0)) continue;
      return true;
    }
    gone_ = true;
    return false;
  }
  return false;
}

int PseudoTerminal::wait(double seconds) {
  const double until = now_s() + seconds;
  while (!gone_) {
    read_some(0.05);
    if (::waitpid(pid_, &status_, WNOHANG) == pid_) gone_ = true;
    if (!gone_ && now_s() > until) return -1;
  }
  while (read_some(0)) continue;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

std::vector<std::string> shown_lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033' && i + 1 < text.size() && text[i + 1] == '[') {
      for (i += 2; i < text.size() && (text[i] < '@' || text[i] > '~');) ++i;
      if (i < text.size() && text[i] == 'H') lines.emplace_back();  // to the top
    } else if (text[i] == '\n' || text[i] == '\r') {
      lines.emplace_back();
    } else {
      lines.back() += text[i];
    }
  }
  return lines;
}

}  // namespace trainctl::test
