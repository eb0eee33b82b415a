// A CPU backend that flips one bit of a rank's state during a step, as failing memory would, or bits of what
// it computes behind an update, as a failing device would.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/backend.h"

namespace trainctl::test {

/// What is flipped. copy: a compute copy, behind the forward passes of the step. master, first_moment,
/// second_moment: behind the step's update. gradient: the summed one, before the update. resting: the master
/// weights between the update of the step and the next one. saved: they, behind the digest of the step.
/// Behind that update: output, input_gradient, weight_gradient: of a product; expert_output: the first row of
/// a product of experts; packed: a weight, as it is packed.
enum class Flipped {
  copy,
  master,
  first_moment,
  second_moment,
  gradient,
  resting,
  saved,
  output,
  input_gradient,
  weight_gradient,
  expert_output,
  packed
};

struct Flip {
  Flipped what = Flipped::master;
  int64_t step = 1;     ///< of this process, from 1
  size_t box = 0;       ///< of the rank's chunks, modulo their number; of products: which one, from 0
  int64_t element = 0;  ///< modulo the size of the chunk
  int bit = 20;
  bool each = false;          ///< that product and all behind it, not it alone
  bool spares_zeros = false;  ///< a product that is zero there is right
};

std::unique_ptr<kernels::Backend> make_flipping_backend(int threads, const Flip& flip);

}  // namespace trainctl::test
