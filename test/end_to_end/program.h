// Runs the real trainctl as a user would: child processes, files, exit statuses.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace trainctl::test {

struct Outcome {
  int status = -1;        ///< exit status; 128 + n when killed by signal n
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
  /// Waits at most `seconds`; still running then: fails the test.
  Outcome wait(double seconds);

 private:
  pid_t pid_ = -1;
  int status_ = -1;
  std::string out_, err_;
};

std::string trainctl_path();
/// The same program on an emulated GPU.
std::string emulated_trainctl_path();
Outcome run_trainctl(const std::string& directory, std::vector<std::string> arguments, double seconds = 120,
                 const std::vector<std::string>& extra_environment = {});

/// Polls until `condition` holds; false after `seconds`.
bool eventually(double seconds, const std::function<bool()>& condition);

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);
/// The one run directory in directory/runs whose name starts with `name`.
std::string run_of(const std::string& directory, const std::string& name);
int line_count(const std::string& path);
std::vector<double> losses_of(const std::string& run);
/// Pids of the ranks that wrote the newest heading of their log.
std::vector<pid_t> rank_pids(const std::string& run, int ranks);
/// Whether that process exists and is a trainctl rank.
bool rank_alive(pid_t pid);
/// Whether that process is stopped by a signal.
bool rank_stopped(pid_t pid);

}  // namespace trainctl::test
