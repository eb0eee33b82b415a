// A device as the tests of ops see it: a backend that takes host pointers. Each call copies every argument, with all the memory that it
// spans, to the device, runs the op there and copies everything back, so that the tests of the CPU backends run on any device.
//
// On the device an argument keeps its place within 256 bytes, so that alignment is what the test made it, and arguments that overlap do so
// there. Around each lies a pattern; an op that writes outside its arguments fails an ENSURE.
#pragma once
#include <memory>

#include "kernels/backend.h"

namespace trainctl::kernels::test {

/// Owns `device`. Streams, events and buffers of the result are the host's.
std::unique_ptr<Backend> make_host_facing(std::unique_ptr<Backend> device);

}  // namespace trainctl::kernels::test
