// How attention sees whole sequences where ranks have parts of them. Words: those of Megatron's
// cp_comm_type.
#pragma once
#include <cstdint>

#include "runtime/base/words.h"

namespace trainctl::parallel {

enum class ContextComm : uint8_t {
  all_gather,  ///< each rank has the keys and values of all tokens for its own queries
  a2a          ///< each rank has all tokens of its share of the heads. Source: Ulysses, arXiv:2309.14509
};

}  // namespace trainctl::parallel

template <>
struct trainctl::Words<trainctl::parallel::ContextComm> {
  static constexpr std::string_view list[] = {"all_gather", "a2a"};
};
