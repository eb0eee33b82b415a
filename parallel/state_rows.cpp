#include "parallel/state_rows.h"

#include <array>

namespace trainctl::parallel {
namespace {

using kernels::Moments;

constexpr int kRules = int(UpdateRule::muon) + 1, kFormats = int(Moments::int8) + 1;
constexpr int kWeights = int(UpdatedWeights::f32_copies) + 1;

struct Table {
  std::array<StateRow, 6> rows{};
  size_t size = 0;
  constexpr void add(const StateRow& row) { rows[size++] = row; }
  constexpr void add_moment(bool first, Moments format) {
    const auto role = first ? StateRole::first_moment : StateRole::second_moment;
    const std::string_view words = first ? "first moments" : "second moments";
    const DType codes = first ? DType::i8 : DType::u8;
    add({role, words, format == Moments::f32 ? DType::f32 : format == Moments::bf16 ? DType::bf16 : codes});
    if (format == Moments::int8)
      add({.role = first ? StateRole::first_scales : StateRole::second_scales,
           .words = first ? "scales of first moments" : "scales of second moments",
           .of_blocks = true});
  }
};

constexpr Table table_of(UpdateRule rule, Moments format, UpdatedWeights weights, bool averages) {
  Table table;
  if (weights == UpdatedWeights::master || rule == UpdateRule::balance)
    table.add({StateRole::master, "master weights"});
  else
    table.add({.role = StateRole::master,
               .words = "weights",
               .dtype = weights == UpdatedWeights::bf16_copies ? DType::bf16 : DType::f32,
               .in_place = true});
  if (rule == UpdateRule::muon)
    table.add({StateRole::first_moment, "momentum of matrices", DType::f32, StateUnit::matrix});
  else if (rule != UpdateRule::balance)
    table.add_moment(true, format);
  if (rule == UpdateRule::adamw) table.add_moment(false, format);
  if (averages) table.add({StateRole::ema, "averages of weights"});
  return table;
}

constexpr auto kTables = [] {
  std::array<Table, size_t(kRules * kFormats * kWeights * 2)> tables{};
  for (int i = 0; i < int(tables.size()); ++i)
    tables[size_t(i)] =
        table_of(UpdateRule(i / 2 / kWeights / kFormats), Moments(i / 2 / kWeights % kFormats),
                 UpdatedWeights(i / 2 % kWeights), i % 2 == 1);
  return tables;
}();

}  // namespace

StateRows rows_of(UpdateRule rule, const StateChoice& choice) {
  const int of_rule = (int(rule) * kFormats + int(choice.moments)) * kWeights + int(choice.weights);
  const Table& table = kTables[size_t(of_rule * 2 + int(choice.averages))];
  return {table.rows.data(), table.size};
}

}  // namespace trainctl::parallel
