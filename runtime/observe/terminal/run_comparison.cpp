#include "runtime/observe/terminal/run_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "runtime/base/hash.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"

namespace trainctl::terminal {
namespace {

using report::RunData;
using report::StepRow;

/// The same bits, or both not a number: a file keeps one kind of NaN.
bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

/// The root hash of each step, of its newest checkpoint.
std::map<int64_t, std::string> root_hashes(const RunData& run) {
  std::map<int64_t, std::string> roots;
  for (const Json& event : run.happenings.events()) {
    if (event.at("kind") != word_of(EventKind::checkpoint)) continue;
    try {
      const auto checkpoint = record_of<CheckpointEvent>(event);
      if (!checkpoint.root_hash.empty()) roots[checkpoint.step] = checkpoint.root_hash;
    } catch (const BadRecord&) {
      // Of another version: not compared.
    }
  }
  return roots;
}

void compare_step(const StepRow& a, const StepRow& b, RunComparison& result) {
  ++result.common_steps;
  if (result.first_step == 0) result.first_step = a.step;
  result.last_step = a.step;
  const double apart = std::abs(a.loss - b.loss);
  const auto& largest = result.largest_of_losses;
  if (std::isfinite(apart) && apart > 0 && (!largest || apart > std::abs(largest->a - largest->b)))
    result.largest_of_losses = {a.step, "loss", a.loss, b.loss};
  for (const ComparedNumber& number : compared_numbers()) {
    const bool evaluation = number.value == &StepRow::val_loss;
    if (evaluation && !(a.evaluated && b.evaluated)) continue;
    if (same_bits(a.*number.value, b.*number.value)) continue;
    if (!result.first_difference)
      result.first_difference = {a.step, number.name, a.*number.value, b.*number.value};
    return;
  }
  if (a.state_digest && b.state_digest) {
    if (*a.state_digest != *b.state_digest) {
      if (!result.first_difference)
        result.first_difference = {
            .step = a.step, .name = "state_digest", .digests = {{*a.state_digest, *b.state_digest}}};
      return;
    }
    ++result.equal_digests;
  }
  ++result.equal_steps;
}

std::string text_of(const StepDifference& d, size_t side, double value) {
  return d.digests ? hex64((*d.digests)[side]) : fmt::format("{}", value);
}

}  // namespace

std::string StepDifference::text_a() const { return text_of(*this, 0, a); }
std::string StepDifference::text_b() const { return text_of(*this, 1, b); }

const std::vector<ComparedNumber>& compared_numbers() {
  static const std::vector<ComparedNumber> numbers = {{"loss", &StepRow::loss},
                                                      {"grad_norm", &StepRow::grad_norm},
                                                      {"lr", &StepRow::lr},
                                                      {"tokens", &StepRow::tokens},
                                                      {"val_loss", &StepRow::val_loss}};
  return numbers;
}

RunComparison compare_runs(const RunData& a, const RunData& b) {
  RunComparison result;
  const std::vector<StepRow>&of_a = a.steps.rows(), &of_b = b.steps.rows();
  size_t i = 0, j = 0;
  while (i < of_a.size() && j < of_b.size()) {
    if (of_a[i].step == of_b[j].step)
      compare_step(of_a[i++], of_b[j++], result);
    else
      of_a[i].step < of_b[j].step ? ++i : ++j;
  }
  result.only_a = int64_t(of_a.size()) - result.common_steps;
  result.only_b = int64_t(of_b.size()) - result.common_steps;
  const auto roots_a = root_hashes(a), roots_b = root_hashes(b);
  for (const auto& [step, root] : roots_a)
    if (const auto other = roots_b.find(step); other != roots_b.end())
      (root == other->second ? result.equal_checkpoints : result.different_checkpoints).push_back(step);
  return result;
}

}  // namespace trainctl::terminal
