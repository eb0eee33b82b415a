// Programs that a test starts: their output, exit status and end; and waiting for what they do.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace trainctl::test {

struct Outcome {
  int status = -1;  ///< exit status; 128 + n when killed by signal n
  std::string out, err;
};

/// A child program with its output in files; killed (it alone, by pid) if still running when this dies.
class Child {
 public:
  Child(const std::vector<std::string>& words, const std::string& directory,
        const std::vector<std::string>& extra_environment = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  bool running();
  void signal(int number);
  /// Waits for the end, as eventually() does; still running then: fails the test.
  Outcome wait(double seconds);

 private:
  pid_t pid_ = -1;
  int status_ = -1;
  std::string out_, err_;
};

/// So much slower than a machine that has nothing else to do may the machine be on which a test runs.
constexpr double kSlowMachine = 20;

/// Polls until `condition` holds; false if it does not. `seconds`: more than it takes on a machine that has
/// nothing else to do; kSlowMachine times as long is waited. For what must happen.
bool eventually(double seconds, const std::function<bool()>& condition);
/// Polls for `seconds`: whether `condition` held meanwhile. For what must not happen, which has this time to
/// show.
bool happens_within(double seconds, const std::function<bool()>& condition);

/// Throws std::runtime_error unless the build has made this file, which a test needs. A test that goes on
/// without waits for something that never comes.
void require_built(const std::string& path, const std::string& target);

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace trainctl::test
