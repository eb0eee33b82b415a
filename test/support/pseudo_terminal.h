// A program in a terminal of its own, whose screen a test reads and whose keys a test presses.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace trainctl::test {

/// The child is killed (it alone, by pid) if it is still there when this dies.
class PseudoTerminal {
 public:
  PseudoTerminal(const std::vector<std::string>& words, const std::string& directory, int columns, int rows);
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  /// Reads until `text` has come since the last call of this function or of forget(); false after `seconds`.
  /// What came up to and with it is forgotten.
  bool shows(const std::string& text, double seconds = 600);
  /// Reads what is there; shows() looks only at what comes after it.
  void forget();
  /// All that came since the beginning.
  const std::string& all() const { return all_; }
  void press(const std::string& keys);
  /// Changes the size, which sends SIGWINCH.
  void resize(int columns, int rows);
  void signal(int number);
  /// Whether the terminal echoes keys and waits for Enter, as a shell needs it.
  bool is_ordinary() const;
  /// Waits until the child is stopped by a signal.
  bool stopped(double seconds = 600);
  /// Reads to the end of the child and returns its exit status; 128 + n when a signal ended it; -1 after
  /// `seconds`.
  int wait(double seconds = 600);

 private:
  bool read_some(double seconds);
  pid_t pid_ = -1;
  int fd_ = -1, status_ = 0;
  bool gone_ = false;
  std::string all_;
  size_t seen_ = 0;
};

/// The text without escape sequences, as lines: a carriage return begins a line, too.
std::vector<std::string> shown_lines(const std::string& text);

}  // namespace trainctl::test
