// What an optimizer keeps of a parameter: a row for each thing. Memory, owners, checkpoints and plans go
// over the rows; an optimizer is a list of rows and an op.
#pragma once
#include <algorithm>
#include <compare>
#include <cstdint>
#include <string_view>

#include "kernels/moments.h"
#include "runtime/base/dtype.h"
#include "runtime/base/words.h"

namespace trainctl::parallel {

/// What a stored tensor is of its parameter. gradient: no state; saved where a job asks for gradients.
/// master: the weights that updates change, in f32, or with StateChoice::weights those in the format of the
/// compute copies. scales: of the moment's blocks. ema: the moving average of these weights.
enum class StateRole : uint8_t {
  master,
  first_moment,
  second_moment,
  gradient,
  first_scales,
  second_scales,
  ema
};
}  // namespace trainctl::parallel
template <>
struct trainctl::Words<trainctl::parallel::StateRole> {
  static constexpr std::string_view list[] = {
      "master", "first_moment", "second_moment", "gradient", "first_scales", "second_scales", "ema"};
};
namespace trainctl::parallel {
inline const char* name_of(StateRole role) { return word_of(role).data(); }

/// What an update reads at once, so that it must lie with one owner. A matrix is the part that tensor
/// parallelism leaves on a rank.
enum class StateUnit : uint8_t { element, matrix };

struct StateRow {
  StateRole role = StateRole::master;
  std::string_view words;  ///< of its memory: "master weights"
  DType dtype = DType::f32;
  StateUnit unit = StateUnit::element;
  bool saved = true;  ///< in checkpoints; else it is made again
  /// It has a number for each block of kMomentBlock elements of a chunk (kernels/moments.h), not for each
  /// element.
  bool of_blocks = false;
  /// It has no memory of its own: the compute copies that the owner makes are these numbers.
  bool in_place = false;
  auto operator<=>(const StateRow&) const = default;
  /// Bytes, of so many elements in so many blocks.
  size_t bytes(int64_t elements, int64_t blocks) const {
    return size_t(of_blocks ? blocks : elements) * size_of(dtype);
  }
  /// Of its own memory.
  size_t own_bytes(int64_t elements, int64_t blocks) const { return in_place ? 0 : bytes(elements, blocks); }
};

/// A table of rows, which lives as long as the program.
class StateRows {
 public:
  template <size_t n>
  constexpr StateRows(const StateRow (&rows)[n]) : begin_(rows), size_(n) {}
  constexpr StateRows(const StateRow* rows, size_t n) : begin_(rows), size_(n) {}
  const StateRow* begin() const { return begin_; }
  const StateRow* end() const { return begin_ + size_; }
  size_t size() const { return size_; }
  const StateRow& operator[](size_t i) const { return begin_[i]; }
  /// Of the own memory of elements in blocks of the parameter, or of what is saved of them.
  size_t bytes(int64_t elements, int64_t blocks) const;
  size_t saved_bytes(int64_t elements, int64_t blocks) const;
  int saved() const {
    return int(std::count_if(begin(), end(), [](const StateRow& row) { return row.saved; }));
  }
  bool has_matrices() const {
    return std::any_of(begin(), end(), [](const StateRow& row) { return row.unit == StateUnit::matrix; });
  }
  bool has(StateRole role) const { return find(role) != nullptr; }
  /// Null: there is none.
  const StateRow* find(StateRole role) const {
    const StateRow* row = std::find_if(begin(), end(), [&](const StateRow& r) { return r.role == role; });
    return row == end() ? nullptr : row;
  }
  std::strong_ordering operator<=>(const StateRows& other) const {
    return std::lexicographical_compare_three_way(begin(), end(), other.begin(), other.end());
  }
  bool operator==(const StateRows& other) const { return (*this <=> other) == 0; }

 private:
  const StateRow* begin_;
  size_t size_;
};

inline size_t StateRows::bytes(int64_t elements, int64_t blocks) const {
  size_t bytes = 0;
  for (const StateRow& row : *this) bytes += row.own_bytes(elements, blocks);
  return bytes;
}
inline size_t StateRows::saved_bytes(int64_t elements, int64_t blocks) const {
  size_t bytes = 0;
  for (const StateRow& row : *this) bytes += row.saved ? row.bytes(elements, blocks) : 0;
  return bytes;
}

/// By which rule a parameter is updated: kernels/ops.h, and parallel/muon.h for muon. balance: its gradient
/// is a count of tokens, which is in no norm, and it has no moment.
enum class UpdateRule : uint8_t { adamw, lion, sgd, balance, muon };

inline constexpr StateRow kAdamW[] = {{StateRole::master, "master weights"},
                                      {StateRole::first_moment, "first moments"},
                                      {StateRole::second_moment, "second moments"}};

/// Which weights a rule changes: master weights in f32, or the compute copies, which are in bf16 or f32.
/// `balance` has master weights always.
enum class UpdatedWeights : uint8_t { master, bf16_copies, f32_copies };

/// What a job chooses of the state apart from the rule.
struct StateChoice {
  kernels::Moments moments = kernels::Moments::f32;  ///< muon keeps the momentum of its matrices in f32
  bool averages = false;                             ///< of weights: StateRole::ema
  UpdatedWeights weights = UpdatedWeights::master;   ///< of muon: master
};
StateRows rows_of(UpdateRule rule, const StateChoice& choice = {});

}  // namespace trainctl::parallel
