// Goal: layers are cut so that no other cut has a cheaper dearest stage, and the costs are the counted ones.
// Method: every small model (layers, stages, virtual stages, costs of embedding and head) against all cuts
// that are allowed: cost of the dearest stage, evenness of the stages, evenness within a stage. Known cuts by
// hand and of a published model. Parts' FLOPs against the whole's for every preset.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

#include "runtime/model/stage_layers.h"
#include "runtime/model/stage_uses.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

using Counts = std::vector<int64_t>;

/// What one cut costs, worked out layer by layer.
struct Judged {
  std::vector<double> stages;
  std::vector<std::vector<double>> virtual_stages;  // of each stage

  Judged(const Counts& counts, int stage_count, const PartFlops& costs)
      : stages(size_t(stage_count)), virtual_stages(size_t(stage_count)) {
    auto layer = costs.layers.begin();
    for (size_t c = 0; c < counts.size(); ++c) {
      double cost = (c == 0 ? costs.embedding : 0) + (c + 1 == counts.size() ? costs.head : 0);
      for (int64_t l = 0; l < counts[c]; ++l) cost += *layer++;
      stages[c % size_t(stage_count)] += cost;
      virtual_stages[c % size_t(stage_count)].push_back(cost);
    }
  }
  double dearest() const { return *std::max_element(stages.begin(), stages.end()); }
  static double unevenness(const std::vector<double>& costs) {
    return std::inner_product(costs.begin(), costs.end(), costs.begin(), 0.0);
  }
};

/// Calls each(counts) for every cut that gives each virtual stage something to compute.
template <typename Each>
void for_each_cut(int64_t layers, int virtual_stages, const Each& each, Counts begun = {}) {
  const size_t at = begun.size();
  const bool ends = at == 0 || int(at) + 1 == virtual_stages;
  if (int(at) + 1 == virtual_stages) {
    begun.push_back(layers);
    return each(begun);
  }
  for (int64_t n = ends ? 0 : 1; n <= layers; ++n) {
    Counts more = begun;
    more.push_back(n);
    for_each_cut(layers - n, virtual_stages, each, more);
  }
}

PartFlops alike(double embedding, int64_t layers, double layer, double head) {
  return {embedding, std::vector<double>(size_t(layers), layer), head};
}

}  // namespace

TEST_CASE("no cut has a cheaper dearest stage, nor more even stages") {
  int cuts = 0;
  for (const int stages : {1, 2, 3, 4})
    for (const int virtual_stages : {1, 2, 3})
      for (int64_t layers = 1; layers <= 7; ++layers)
        for (const double embedding : {0.0, 0.7})
          for (const double head : {0.0, 0.4, 2.0, 5.3}) {
            const int all = stages * virtual_stages;
            if (layers + 2 < all || (stages == 1 && virtual_stages > 1)) continue;
            const PartFlops costs = alike(embedding, layers, 1, head);
            CAPTURE(stages, virtual_stages, layers, embedding, head);
            const Counts found = balanced_layers(costs, {stages, virtual_stages});
            CAPTURE(found);
            REQUIRE(int(found.size()) == all);
            const Judged judged(found, stages, costs);
            bool allowed = false;
            for_each_cut(layers, all, [&](const Counts& cut) {
              ++cuts;
              allowed = allowed || cut == found;
              const Judged other(cut, stages, costs);
              const double slack = tolerance::kFormula;
              REQUIRE(judged.dearest() <= other.dearest() + slack);
              REQUIRE(Judged::unevenness(judged.stages) <= Judged::unevenness(other.stages) + slack);
              for (size_t s = 0; s < size_t(stages); ++s)  // with as many layers on this stage
                if (std::abs(other.stages[s] - judged.stages[s]) < slack)
                  REQUIRE(Judged::unevenness(judged.virtual_stages[s]) <=
                          Judged::unevenness(other.virtual_stages[s]) + slack);
            });
            REQUIRE(allowed);
          }
  CHECK(cuts > 4000);
}

TEST_CASE("cuts by hand") {
  CHECK(balanced_layers(alike(0, 12, 1, 5.4), {1, 1}) == Counts{12});
  CHECK(balanced_layers(alike(0, 12, 1, 0), {4, 1}) == Counts{3, 3, 3, 3});
  CHECK(balanced_layers(alike(0, 5, 1, 0), {2, 1}) ==
        Counts{2, 3});  // the later stage holds fewer micro-batches
  CHECK(balanced_layers(alike(0, 12, 1, 5.4), {4, 1}) == Counts{4, 4, 4, 0});
  CHECK(balanced_layers(alike(0, 12, 1, 2.1), {4, 1}) == Counts{3, 4, 4, 1});
  CHECK(balanced_layers(alike(0, 12, 1, 5.4), {2, 2}) == Counts{4, 3, 5, 0});
  CHECK(balanced_layers(alike(0, 2, 1, 0.5), {4, 1}) == Counts{0, 1, 1, 0});
  // In a V the first stage has the embedding and the head, and so fewer layers.
  CHECK(balanced_layers(alike(0, 12, 1, 2), {2, 2, true}) == Counts{3, 3, 4, 2});
  CHECK(balanced_layers(alike(0, 12, 1, 4), {4, 2, true}) == Counts{0, 2, 2, 2, 2, 2, 2, 0});
  // Llama 3 405B on 16 stages of 8 virtual stages, arXiv:2407.21783, section 3.3.2: the first holds only the
  // embedding, the last only the head.
  Counts llama(128, 1);
  llama.front() = llama.back() = 0;
  CHECK(balanced_layers(alike(0, 126, 3.4, 2.1), {16, 8}) == llama);
}

TEST_CASE(
    "where layers differ, no cut into single virtual stages has a cheaper dearest stage, and no shift "
    "helps") {
  int cuts = 0;
  for (const int stages : {2, 3, 4})
    for (const int virtual_stages : {1, 2})
      for (const std::vector<double>& layers : std::vector<std::vector<double>>{{1, 4, 1, 4, 1, 4, 1},
                                                                                {4, 1, 1, 1, 1, 1, 1},
                                                                                {1, 1, 1, 1, 1, 1, 9},
                                                                                {1, 2, 3, 4, 5, 6, 7},
                                                                                {7, 1, 2, 1, 2, 1, 7}})
        for (const double head : {0.0, 2.0, 8.0}) {
          const int all = stages * virtual_stages;
          const PartFlops costs{0.5, layers, head};
          const Counts found = balanced_layers(costs, {stages, virtual_stages});
          CAPTURE(stages, virtual_stages, layers, head, found);
          const Judged judged(found, stages, costs);
          for_each_cut(int64_t(layers.size()), all, [&](const Counts& cut) {
            ++cuts;
            const double dearest = Judged(cut, stages, costs).dearest();
            if (virtual_stages == 1) REQUIRE(judged.dearest() <= dearest + tolerance::kFormula);
            int64_t shifted = 0;
            for (size_t c = 0; c < cut.size(); ++c) shifted += std::abs(cut[c] - found[c]);
            if (shifted <= 2) REQUIRE(judged.dearest() <= dearest + tolerance::kFormula);
          });
        }
  CHECK(cuts > 1000);
}

TEST_CASE("the costs of a model's parts are those of the whole") {
  for (const std::string& name : preset_names()) {
    const ParsedJob parsed = parse_job({.text = starter_job(name), .file = "starter"});
    REQUIRE(parsed.ok());
    const ModelSpec& model = parsed.job.model;
    const int64_t seq_len = parsed.job.data.seq_len;
    const ModelPlan plan = model_plan(model);
    const PartFlops parts = part_flops(plan, seq_len);
    CAPTURE(name);
    REQUIRE(int64_t(parts.layers.size()) == model.num_layers);
    CHECK(parts.layers.front() > 0);
    // Only a window shorter than the sequence, and experts, change the cost of a layer.
    const auto kind = [&](size_t l) {
      const bool windowed = has_window(model.kind_of_layer(int64_t(l))) && model.layer.window < seq_len;
      return std::pair(windowed, model.has_experts(int64_t(l)));
    };
    for (size_t l = 0; l < parts.layers.size(); ++l)
      CHECK((parts.layers[l] == parts.layers[0]) == (kind(l) == kind(0)));
    CHECK(parts.head == 6.0 * double(model.vocab_size * model.hidden_size));
    CHECK(std::accumulate(parts.layers.begin(), parts.layers.end(), parts.embedding + parts.head) ==
          Approx(flops_per_token(plan, seq_len).causal).epsilon(tolerance::kFormula));
  }
}

TEST_CASE("stages have the layers that the spec gives, and shares of the work that add up") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.parallelism.pipeline = 2;
  job.parallelism.virtual_stages = 2;
  const PartFlops costs = part_flops(model_plan(job.model), job.data.seq_len);
  for (const Counts& given : {Counts{}, Counts{1, 1, 1, 1}, Counts{0, 3, 1, 0}, Counts{2, 1, 1, 0}}) {
    CAPTURE(given);
    job.parallelism.stage_layers = given;
    const ModelTables tables = model_tables(job);
    const Counts& counts = tables.stage_layers;
    if (!given.empty()) CHECK(counts == given);
    if (given.empty()) CHECK(counts == balanced_layers(costs, {2, 2}));
    const std::vector<StageWork> work = stage_work(counts, {2, 2}, costs);
    REQUIRE(work.size() == 2);
    CHECK(work[0].share + work[1].share == Approx(1).epsilon(tolerance::kFormula));
    CHECK(work[1].share - work[0].share ==
          Approx((double(counts[1] + counts[3] - counts[0] - counts[2]) * costs.layers[0] + costs.head) /
                 (4 * costs.layers[0] + costs.head)));
    int64_t next = 0;
    for (int c = 0; c < 4; ++c) {
      const VirtualStageUses uses = stage_uses(tables, job, {.pp = c % 2}).virtual_stages[size_t(c / 2)];
      CHECK(work[size_t(c % 2)].layers[size_t(c / 2)] == counts[size_t(c)]);
      CHECK(int64_t(uses.layers.size()) == counts[size_t(c)]);
      CHECK(uses.first_layer == next);
      next += counts[size_t(c)];
    }
    CHECK(next == 4);
  }
}
