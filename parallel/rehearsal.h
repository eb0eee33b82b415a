// A communicator that can be switched off: while a rank rehearses a step on its own, exchanges end at once and move nothing, and what
// would have been received is whatever the memory holds. Otherwise it is the communicator that it holds.
#pragma once
#include <memory>

#include "parallel/communicator.h"

namespace trainctl::parallel {

/// `rehearsing` must outlive the result. No exchange may be under way when it changes. Every member need not rehearse at the same time,
/// but what numbers its exchanges by itself must come out of the rehearsal with the same numbers on every member.
std::unique_ptr<Communicator> make_rehearsable(std::unique_ptr<Communicator> communicator, const bool& rehearsing);

}  // namespace trainctl::parallel
