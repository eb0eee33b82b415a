// The drawing of a simulated pipeline: time runs to the right, one row per stage.
#include <algorithm>
#include <cmath>

#include "parallel/pipeline.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

constexpr char kIdle = '.';
constexpr char kGoesOn = '-';

char letter_of(Op op) {
  switch (op) {
    case Op::forward: return 'F';
    case Op::backward_input: return 'B';
    case Op::backward_weight: return 'W';
    default: return kIdle;
  }
}

char last_digit(int number) { return static_cast<char>('0' + number % 10); }

struct Scale {
  double columns_per_unit = 0;
  bool numbered = false;  ///< every span is wide enough for its micro-batch number
};

/// A whole number of columns for the shortest span if the width allows it, so that equal spans look equal.
Scale scale_of(const Timeline& timeline, int columns) {
  if (timeline.makespan <= 0) return {};
  double shortest = timeline.makespan;
  for (const auto& spans : timeline.stages) {
    for (const Span& span : spans) {
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
    }
  }
  const double scale = columns / timeline.makespan;
  const double whole = std::floor(scale * shortest);
  // Two columns hold letter and micro-batch; wider cells would only repeat the dash.
  return {whole >= 1 ? std::min(whole, 2.0) / shortest : scale, whole >= 2};
}

/// One stage's row of letters, and the row of virtual stage digits beneath it.
struct Rows {
  std::string work, virtual_stage;
};

Rows rows_of(const std::vector<Span>& spans, const Scale& scale, size_t columns) {
  Rows rows{std::string(columns, kIdle), std::string(columns, ' ')};
  for (const Span& span : spans) {
    const auto begin = static_cast<size_t>(std::llround(span.begin * scale.columns_per_unit));
    const auto end = std::min(columns, static_cast<size_t>(std::llround(span.end * scale.columns_per_unit)));
    for (size_t column = begin; column < end; ++column) {
      rows.work[column] = column == begin ? letter_of(span.instruction.op) : kGoesOn;
      if (column == begin + 1 && scale.numbered) rows.work[column] = last_digit(span.instruction.micro_batch);
      if (column == begin) rows.virtual_stage[column] = last_digit(span.instruction.virtual_stage);
    }
  }
  rows.virtual_stage.erase(rows.virtual_stage.find_last_not_of(' ') + 1);
  return rows;
}

}  // namespace

std::string draw(const PipelineShape& shape, const Timeline& timeline, int width) {
  ENSURE(timeline.stages.size() == static_cast<size_t>(shape.stages), "{} rows for {} stages",
         timeline.stages.size(), shape.stages);
  const auto digits = fmt::formatted_size("{}", shape.stages - 1);
  const std::string margin(std::string("stage ").size() + digits + 2, ' ');
  const int columns = std::max(1, width - static_cast<int>(margin.size()));
  const Scale scale = scale_of(timeline, columns);
  const auto used = static_cast<size_t>(
      std::min<int64_t>(columns, std::llround(timeline.makespan * scale.columns_per_unit)));
  std::string text;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const Rows rows = rows_of(timeline.stages[static_cast<size_t>(stage)], scale, used);
    text += fmt::format("stage {:>{}}  {}\n", stage, digits, rows.work);
    if (shape.virtual_stages > 1) text += margin + rows.virtual_stage + "\n";
  }
  return text;
}

}  // namespace trainctl::parallel
