// How much of the cores a thread uses.
#pragma once

namespace trainctl {

/// Time of a core that the calling thread has used, in seconds.
double thread_cpu_s();

}  // namespace trainctl
