// Goal: Muon's updates are those of its formula, for matrices of every form, and have the same bits on every
// mesh: what a matrix is follows from the parameter's global shape. Method: three steps of seeded gradients
// over 1 to 4 data ranks, 1 and 2 tensor ranks and each ZeRO stage, with ragged and fused matrices, beside a
// vector with AdamW's rule; the first mesh is compared with the formula in double precision, the others with
// the first one bit for bit; memory taken with memory planned.
#include "parallel/muon.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "parallel/lanes.h"
#include "parallel/sharded_params.h"
#include "runtime/base/error.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"
#include "test/support/tolerances.h"

namespace trainctl::test {
namespace {

using namespace parallel;

constexpr int kMuonLanes = 4, kMuonSteps = 3;
constexpr float kLr = 0.02f, kMomentum = 0.95f, kGradScale = 0.5f, kDecay = 0.1f, kLrScale = 0.75f;

struct MuonUses {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  void add(int64_t rows, int64_t cols, Cut cut, std::vector<int64_t> sections = {}, bool ragged = false) {
    ParamUse use;
    use.param = use.part = int(uses.size());
    use.layout = {.name = std::to_string(use.param), .rows = rows, .cols = cols, .cut = cut};
    use.layout.sections = std::move(sections);
    use.layout.ragged = ragged;
    use.rule = cols > 1 ? UpdateRule::muon : UpdateRule::adamw;
    use.states = rows_of(use.rule);
    use.weight_decay = kDecay;
    use.lr_scale = kLrScale;
    if (cut == Cut::none) use.replicated |= axes::tensor;
    grids.push_back(chunk_grid(use.layout, {1, 2}, 40));
    uses.push_back(std::move(use));
  }
};

MuonUses muon_uses() {
  MuonUses all;
  all.add(13, 7, Cut::none);
  all.add(5, 9, Cut::none);
  all.add(18, 6, Cut::rows, {6, 6, 6});
  all.add(12, 1, Cut::rows);
  all.add(14, 6, Cut::rows, {10, 4});
  all.add(6, 16, Cut::cols);
  all.add(20, 8, Cut::cols);
  all.add(24, 10, Cut::rows, {12, 6, 6});
  all.uses.back().layout.head_rows = 3;
  all.add(13, 5, Cut::rows, {}, true);
  all.add(6, 15, Cut::cols, {}, true);
  return all;
}

/// The same number on every mesh.
float muon_number(int what, int param, int64_t element) {
  std::mt19937_64 random(uint64_t(what) * 1000003 + uint64_t(param) * 8191 + uint64_t(element));
  std::normal_distribution<float> normal;
  return normal(random);
}

using Values = std::map<std::pair<int, StateRole>, std::vector<float>>;  // by parameter, whole

struct MuonMesh {
  int data = 1, tensor = 1, zero = 1;
};

/// The gradient of one lane is the whole one, that of the others zero.
void fill_gradient(ShardedParams& params, const MuonUses& of, int use, int lane, int at, int step,
                   const AxisLine& tensor) {
  const kernels::Matrix g = params.gradient(use, at);
  const ParamLayout& layout = of.uses[size_t(use)].layout;
  for (const Piece& piece : local_shard(layout, tensor.size, tensor.rank).pieces)
    for (int64_t r = 0; r < piece.global.rows(); ++r)
      for (int64_t c = 0; c < piece.global.cols(); ++c) {
        const int64_t element = (piece.global.row_begin + r) * layout.cols + piece.global.col_begin + c;
        g.as<float>()[(piece.local_row + r) * g.stride + piece.local_col + c] =
            lane == 1 ? muon_number(1 + step, use, element) : 0.0f;
      }
}

void sum_gradients(ShardedParams& params, const MuonUses& of, const MuonMesh& mesh, int rank, int step,
                   const AxisLine& tensor) {
  const bool by_lane = mesh.zero >= 2 && mesh.data > 1;
  const LaneRun run = lanes_of_rank(kMuonLanes, mesh.data, rank);
  for (int at = 0; at < run.count(); ++at)
    for (int use = params.use_count() - 1; use >= 0; --use) {
      const int lane = by_lane ? at * mesh.data + rank : run.begin + at;
      if (by_lane) params.claim_gradients(use, use + 1);
      fill_gradient(params, of, use, lane, at, step, tensor);
      params.merge_lane(use, use + 1, at);
      if (by_lane) params.reduce(use, use + 1);
    }
  for (int use = params.use_count() - 1; use >= 0 && !by_lane; --use) params.reduce(use, use + 1);
  params.finish_reduction();
}

void each_element(const ShardedParams::StateChunk& chunk, const MuonUses& of, const auto& visit) {
  const int64_t cols = of.uses[size_t(chunk.param)].layout.cols;
  for (int64_t i = 0; i < chunk.box.count(); ++i)
    visit(i,
          (chunk.box.row_begin + i / chunk.box.cols()) * cols + chunk.box.col_begin + i % chunk.box.cols());
}

Values train(const MuonUses& of, const MuonMesh& mesh, MuonOptions options, bool reference) {
  Values values;
  std::mutex mutex;
  on_rank_threads(mesh.data * mesh.tensor, kLongS, [&](Communicator& world) {
    const auto backend = reference ? kernels::make_reference_backend() : kernels::make_cpu_backend(1);
    const auto stream = backend->create_stream();
    const auto group = [&](int number, const auto& key) {
      Subgroup members{.members = {}, .number = number, .name = std::to_string(number)};
      for (int r = 0; r < world.size(); ++r)
        if (key(r) == key(world.rank())) members.members.push_back(r);
      return world.subgroup(members);
    };
    const auto data = group(1, [&](int r) { return r % mesh.tensor; });
    const auto tensor = group(2, [&](int r) { return r / mesh.tensor; });
    const AxisGroups groups(*data, *tensor, nullptr);
    const ShardingOptions sharding{
        .zero_stage = mesh.zero, .lanes = kMuonLanes, .bucket_elements = 100, .muon = options};
    ShardedParams params(of.uses, of.grids, sharding, groups, *backend, *stream);
    const size_t planned = ShardedParams::plan(of.uses, of.grids, sharding, groups.lines()).total();
    require(backend->allocated_bytes() == planned, "{} bytes taken, {} planned", backend->allocated_bytes(),
            planned);
    for (const auto& chunk : params.state_chunks())
      each_element(chunk, of, [&](int64_t i, int64_t element) {
        chunk.floats(StateRole::master)[i] = muon_number(0, chunk.param, element);
      });
    params.publish();
    params.finish_gathers();
    for (int step = 0; step < kMuonSteps; ++step) {
      sum_gradients(params, of, mesh, data->rank(), step, line_of(groups.lines(), axes::tensor));
      params.step(
          {.adamw = {.lr = kLr}, .muon = {.lr = kLr, .momentum = kMomentum, .grad_scale = kGradScale}});
      if (!params.shards_weights()) params.gather(0, params.use_count());
      params.finish_gathers();
    }
    require(backend->peak_allocated_bytes() == planned, "a step took memory");
    const std::lock_guard lock(mutex);
    for (const auto& chunk : params.state_chunks()) {
      for (const StateRow& row : chunk.rows) {
        const ParamLayout& layout = of.uses[size_t(chunk.param)].layout;
        std::vector<float>& all = values[{chunk.param, row.role}];
        all.resize(size_t(layout.rows * layout.cols));
        each_element(chunk, of,
                     [&](int64_t i, int64_t element) { all[size_t(element)] = chunk.floats(row.role)[i]; });
      }
    }
  });
  return values;
}

using Doubles = std::vector<double>;

/// left [n, k] times right [k, m]; transposed: right is [m, k].
Doubles times(const Doubles& left, const Doubles& right, int64_t n, int64_t k, int64_t m, bool transposed) {
  Doubles out(size_t(n * m));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      for (int64_t l = 0; l < k; ++l)
        out[size_t(i * m + j)] += left[size_t(i * k + l)] * right[size_t(transposed ? j * k + l : l * m + j)];
  return out;
}

/// Always by X X^T, whatever the shape: (X X^T) X = X (X^T X).
Doubles orthogonal_in_double(Doubles x, int64_t n, int64_t m, int steps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares);
  for (int step = 0; step < steps; ++step) {
    const double a = step < 5 ? 3.4445 : 1.875, b = step < 5 ? -4.7750 : -1.25, c = step < 5 ? 2.0315 : 0.375;
    const Doubles gram = times(x, x, n, m, n, true), once = times(gram, x, n, n, m, false),
                  twice = times(gram, once, n, n, m, false);
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * once[i] + c * twice[i];
  }
  return x;
}

/// Relative error of all that the steps changed.
double error_of(const MuonUses& of, int param, const std::vector<float>& got, MuonOptions options) {
  const ParamLayout& layout = of.uses[size_t(param)].layout;
  const int64_t m = layout.cols;
  double error = 0, size = 0;
  int64_t begin = 0;
  const std::vector<int64_t> sections = layout.head_rows > 0      ? std::vector<int64_t>(8, 3)
                                        : layout.sections.empty() ? std::vector{layout.rows}
                                                                  : layout.sections;
  for (const int64_t n : sections) {
    Doubles w, start, momentum(size_t(n * m));
    for (int64_t i = 0; i < n * m; ++i) w.push_back(muon_number(0, param, begin * m + i));
    start = w;
    const double longer = double(std::max(n, m)),
                 scale = options.scale == MuonScale::match_rms
                             ? 0.2 * std::sqrt(longer)
                             : std::sqrt(std::max(1.0, double(n) / double(m)));
    for (int step = 0; step < kMuonSteps; ++step) {
      Doubles direction;
      for (int64_t i = 0; i < n * m; ++i) {
        const double g = double(kGradScale) * muon_number(1 + step, param, begin * m + i);
        momentum[size_t(i)] = double(kMomentum) * momentum[size_t(i)] + g;
        direction.push_back(g + double(kMomentum) * momentum[size_t(i)]);
      }
      const Doubles x = orthogonal_in_double(direction, n, m, options.steps);
      for (size_t i = 0; i < w.size(); ++i)
        w[i] -= double(kLr * kLrScale) * (double(kDecay) * w[i] + scale * x[i]);
    }
    for (size_t i = 0; i < w.size(); ++i) {
      error += std::pow(double(got[size_t(begin * m) + i]) - w[i], 2);
      size += std::pow(w[i] - start[i], 2);
    }
    begin += n;
  }
  return std::sqrt(error / size);
}

}  // namespace

TEST_CASE("muon's updates are those of its formula in double precision") {
  const MuonUses of = muon_uses();
  for (const bool reference : {true, false})
    for (const MuonOptions options :
         {MuonOptions{}, MuonOptions{10, MuonScale::spectral}, MuonOptions{1, MuonScale::match_rms}}) {
      const Values values = train(of, {}, options, reference);
      for (const ParamUse& use : of.uses) {
        CAPTURE(use.param, reference, options.steps);
        if (use.rule != UpdateRule::muon) continue;
        CHECK(error_of(of, use.param, values.at({use.param, StateRole::master}), options) < tolerance::kMuon);
        CHECK(!values.contains({use.param, StateRole::second_moment}));
      }
    }
}

TEST_CASE("muon has the same bits on every mesh, also where tensor parallelism cuts a matrix") {
  const MuonUses of = muon_uses();
  const Values plain = train(of, {}, {}, false);
  for (const int tensor : {1, 2})
    for (const int data : {1, 2, 3, 4})
      for (const int zero : {0, 1, 2, 3}) {
        if (zero >= 2 && kMuonLanes % data != 0) continue;
        CAPTURE(tensor, data, zero);
        CHECK(train(of, {data, tensor, zero}, {}, false) == plain);
      }
}

TEST_CASE("ten steps bring all singular values of a matrix to one") {
  Doubles x;
  for (int64_t i = 0; i < 8 * 5; ++i) x.push_back(muon_number(7, 0, i));
  const Doubles orthogonal = orthogonal_in_double(x, 5, 8, 10),
                gram = times(orthogonal, orthogonal, 5, 8, 5, true);
  for (int64_t i = 0; i < 25; ++i) CHECK(std::abs(gram[size_t(i)] - (i % 6 == 0)) < tolerance::kMuon);
}

TEST_CASE("matrices are dealt out by what their products cost") {
  CHECK(muon_cost({.name = "", .rows = 18, .cols = 6, .sections = {6, 6, 6}}) == 3 * 6 * 6 * 6);
  CHECK(muon_cost({.name = "", .rows = 4, .cols = 10}) == 4 * 10 * 4);
  CHECK(muon_cost({.name = "", .rows = 24, .cols = 10, .sections = {12, 6, 6}, .head_rows = 3}) ==
        8 * 3 * 10 * 3);
  CHECK(muon_scale(MuonScale::match_rms, 100, 25) == Approx(2));
  CHECK(muon_scale(MuonScale::spectral, 100, 25) == Approx(2));
  CHECK(muon_scale(MuonScale::spectral, 25, 100) == Approx(1));
}

}  // namespace trainctl::test
