// Signals that this process heeds.
#pragma once
#include <signal.h>

#include <initializer_list>

namespace trainctl {

/// The set of `signals`, but for those that are ignored: who started this process wants that (nohup, a shell
/// that runs it in the background).
sigset_t heeded(std::initializer_list<int> signals);

/// Signals that reach this thread wait for as long as this lives.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace trainctl
