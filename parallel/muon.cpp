#include "parallel/muon.h"

#include <algorithm>
#include <cmath>

namespace trainctl::parallel {

MuonFactors muon_factors(int step) {
  if (step < 5) return {3.4445f, -4.7750f, 2.0315f};
  return {1.875f, -1.25f, 0.375f};
}

std::vector<int64_t> muon_sections(const ParamLayout& param) {
  if (param.head_rows > 0) return std::vector(size_t(param.rows / param.head_rows), param.head_rows);
  return param.sections.empty() ? std::vector{param.rows} : param.sections;
}

double muon_scale(MuonScale scale, int64_t rows, int64_t cols) {
  const double n = double(rows), m = double(cols);
  return scale == MuonScale::match_rms ? 0.2 * std::sqrt(std::max(n, m)) : std::sqrt(std::max(1.0, n / m));
}

int64_t muon_cost(const ParamLayout& param) {
  int64_t cost = 0;
  for (const int64_t rows : muon_sections(param)) cost += rows * param.cols * std::min(rows, param.cols);
  return cost;
}

void MuonScratch::add(const ParamLayout& param) {
  constexpr int64_t kAligned = 64 / sizeof(float);  // the second of two begins on 64 bytes, too
  const auto aligned = [](int64_t n) { return (n + kAligned - 1) / kAligned * kAligned; };
  matrix = std::max(matrix, aligned(param.rows * param.cols));
  shapes.emplace(muon_sections(param), param.cols);
  for (const int64_t rows : muon_sections(param)) {
    const int64_t side = std::min(rows, param.cols);
    gram = std::max(gram, aligned(side * side));
  }
}

std::vector<kernels::BoxListShape> MuonScratch::square_sums() const {
  std::vector<kernels::BoxListShape> lists;
  for (const auto& [sections, cols] : shapes) {
    lists.push_back({.boxes = int64_t(sections.size())});
    for (const int64_t rows : sections) lists.back().elements += rows * cols;
  }
  return lists;
}

size_t MuonScratch::bytes() const { return 2 * size_t(matrix + gram) * sizeof(float); }

}  // namespace trainctl::parallel
