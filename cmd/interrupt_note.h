// InterruptNote says one sentence on stderr when a signal ends the command: what is kept, and how it goes on.
#pragma once
#include <string>

namespace trainctl::cmd {

/// At most one at a time. The command still ends by the signal; one that was ignored stays ignored.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;
  /// The sentence from now on; any thread may call it.
  void set(const std::string& sentence);
};

}  // namespace trainctl::cmd
