// The words of a span: its name, its category and its arguments in a trace. Pure.
#pragma once
#include <string>

#include "runtime/spans/recording.h"

namespace trainctl::trace {

/// "step 101", "forward mb 3 vs 1", "wait: reduce gradients".
std::string name_of_span(const Span& span, const Recording& of);
/// "step", "compute", "pipeline", "state", "wait", "exchange", "data", "save".
const char* category_of(const Span& span);
/// A JSON object.
std::string arguments_of(const Span& span, const Recording& of);
/// "rank 3 · stage 1 · dp 0 · tp 1 · node1"; without the node if `node` is "".
std::string name_of_rank(const Recording& of, const std::string& node);

}  // namespace trainctl::trace
