// Signals that this process heeds.
#pragma once
#include <signal.h>

#include <initializer_list>

namespace trainctl {

/// The set of `signals`, but for those that are ignored: who started this process wants that (nohup, a shell
/// that runs it in the background).
sigset_t heeded(std::initializer_list<int> signals);

}  // namespace trainctl
