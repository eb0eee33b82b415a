// Goal: the rules of placements of the ops that a block may have: each accepts what is right on every axis and refuses a
// sum that is missing or a weight that a rank holds wrongly.
// Method: single ops on the twin, with tensors that are placed by hand.
#include <catch2/catch.hpp>

#include "parallel/placement.h"
#include "runtime/model/placement_twin.h"

namespace trainctl::placement_ops {

using namespace kernels;
using parallel::Placement;
using enum parallel::Placement;

namespace {

constexpr int64_t M = 4, C = 12, kGroup = 6;

/// A device of one rank, with tensors that hold nothing.
struct Twin {
  explicit Twin(int rank = 0) : placements(rank), backend(make_placement_backend(placements, false)) {}

  Matrix placed(Placement placement, int64_t rows = M, int64_t cols = C) {
    const Matrix m = fresh(rows, cols);
    placements.set(m, placement);
    return m;
  }
  Matrix fresh(int64_t rows = M, int64_t cols = C) {
    memory.push_back(backend->allocate(size_t(rows * cols) * 4));
    return matrix(memory.back()->data(), DType::f32, rows, cols);
  }
  /// The sentence that refuses the op, or "".
  std::string run(const Op& op) {
    try {
      backend->run(*stream, op);
    } catch (const parallel::placements::Misplaced& m) {
      return m.what;
    }
    return "";
  }

  Placements placements;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream = backend->create_stream();
  std::vector<std::unique_ptr<Buffer>> memory;
};

/// The four ops of a norm of groups over x, with sums that became `of_sums` before they are used.
struct GroupNorm {
  GroupNorm(Placement x, Placement weight, int64_t count, Placement of_sums,
            Placement of_weight_gradient = none)
      : x(twin.placed(x)),
        dy(twin.placed(x)),
        weight(twin.placed(weight, 1, kGroup)),
        sums(twin.fresh(M, C / kGroup)),
        dots(twin.fresh(M, C / kGroup)),
        y(twin.fresh()),
        dweight(twin.placed(of_weight_gradient, 1, kGroup)) {
    sentences[0] =
        twin.run(GroupNormSums{.x = this->x, .group = kGroup, .count = count, .sums = sums.as<float>()});
    sums_made = twin.placements.of(sums);
    twin.placements.set(sums, of_sums);
    sentences[1] = twin.run(GroupNormApply{.x = this->x,
                                           .group = kGroup,
                                           .count = count,
                                           .sums = sums.as<float>(),
                                           .weight = this->weight,
                                           .y = y});
    sentences[2] = twin.run(GroupNormDots{.dy = dy,
                                          .x = this->x,
                                          .group = kGroup,
                                          .count = count,
                                          .weight = this->weight,
                                          .dots = dots.as<float>()});
    dots_made = twin.placements.of(dots);
    twin.placements.set(dots, of_sums);
    sentences[3] = twin.run(GroupNormBackward{.dy = dy,
                                              .x = this->x,
                                              .group = kGroup,
                                              .count = count,
                                              .sums = sums.as<float>(),
                                              .dots = dots.as<float>(),
                                              .weight = this->weight,
                                              .dx = dy,
                                              .dweight = dweight,
                                              .accumulate = true});
  }
  bool accepted() const {
    for (const std::string& s : sentences) {
      if (!s.empty()) return false;
    }
    return true;
  }
  Placement of(const Matrix& m) const { return twin.placements.of(m); }

  Twin twin;
  Matrix x, dy, weight, sums, dots, y, dweight;
  Placement sums_made = none, dots_made = none;
  std::string sentences[4];
};

}  // namespace

TEST_CASE("a norm of whole heads stays with the ranks that have the heads") {
  const GroupNorm norm(cut_cols, replicated, kGroup, cut_cols);
  CHECK(norm.accepted());
  CHECK(norm.sums_made == cut_cols);
  CHECK(norm.dots_made == cut_cols);
  CHECK(norm.of(norm.y) == cut_cols);
  CHECK(norm.of(norm.dy) == cut_cols);
  CHECK(norm.of(norm.dweight) == partial);  // every rank has other heads of one weight
}

TEST_CASE("a norm over the columns of all ranks has sums that are added first") {
  const GroupNorm norm(cut_cols, cut_rows, 2 * kGroup, replicated);
  CHECK(norm.accepted());
  CHECK(norm.sums_made == partial);
  CHECK(norm.dots_made == partial);
  CHECK(norm.of(norm.y) == cut_cols);
  CHECK(norm.of(norm.dweight) == cut_rows);
  const GroupNorm forgotten(cut_cols, cut_rows, 2 * kGroup, partial);
  CHECK(forgotten.sentences[1].find("the sum over the ranks is missing") != std::string::npos);
  CHECK(forgotten.sentences[3].find("the sum over the ranks is missing") != std::string::npos);
  CHECK_FALSE(GroupNorm(cut_cols, cut_rows, 2 * kGroup, cut_cols).accepted());
}

TEST_CASE("along the axis of the data a norm of groups is of the rank's own rows") {
  for (const int64_t count : {kGroup, 2 * kGroup}) {
    const GroupNorm norm(varying, replicated, count, varying);
    CHECK(norm.accepted());
    CHECK(norm.sums_made == varying);
    CHECK(norm.of(norm.dweight) == partial);
  }
  const GroupNorm same(replicated, replicated, kGroup, replicated);
  CHECK(same.accepted());
  CHECK(same.of(same.dweight) == replicated);
}

TEST_CASE("a norm of groups refuses parts of sums and weights that do not fit") {
  CHECK_FALSE(GroupNorm(partial, replicated, kGroup, replicated).sentences[0].empty());
  CHECK_FALSE(GroupNorm(replicated, cut_rows, kGroup, replicated).sentences[1].empty());
  CHECK_FALSE(GroupNorm(cut_cols, replicated, kGroup, replicated).sentences[1].empty());
  CHECK_FALSE(GroupNorm(cut_cols, replicated, kGroup, cut_cols, replicated).sentences[3].empty());
}

TEST_CASE("gates and forms of logits refuse a part of a sum") {
  for (const Placement good : {replicated, varying, cut_cols, cut_rows}) {
    Twin t;
    const Matrix x = t.placed(good), gate = t.placed(good), y = t.fresh(), dgate = t.fresh();
    CHECK(t.run(SigmoidGateForward{.x = x, .gate = gate, .y = y}).empty());
    CHECK(t.placements.of(y) == good);
    CHECK(t.run(SigmoidGateBackward{.x = x, .gate = gate, .dy = y, .dx = y, .dgate = dgate}).empty());
    CHECK(t.placements.of(dgate) == good);
    CHECK(t.run(FormLogits{.logits = x}).empty());
    CHECK_FALSE(t.run(SigmoidGateForward{.x = x, .gate = t.placed(partial), .y = y}).empty());
  }
  Twin t;
  const Matrix part = t.placed(partial), y = t.fresh();
  CHECK_FALSE(t.run(SigmoidGateForward{.x = part, .gate = part, .y = y}).empty());
  CHECK_FALSE(t.run(GatedForward{.kind = Gate::geglu, .gate = part, .up = part, .y = y}).empty());
  CHECK_FALSE(t.run(FormLogits{.logits = part}).empty());
}

TEST_CASE("positions belong to the rows that a rank has") {
  const auto rope = [](Placement x, Placement of_positions) {
    Twin t;
    const Matrix rows = t.placed(x), positions = t.placed(of_positions, 1, M);
    return t.run(Rope{.x = rows, .head_dim = 4, .seq_len = M, .positions = positions.as<const int32_t>()});
  };
  CHECK(rope(cut_cols, replicated).empty());
  CHECK(rope(replicated, replicated).empty());
  CHECK(rope(varying, varying).empty());
  CHECK(rope(cut_rows, cut_rows).empty());
  CHECK_FALSE(rope(cut_rows, replicated).empty());
  CHECK_FALSE(rope(varying, replicated).empty());
  Twin t;
  const Matrix rows = t.placed(varying), same = t.placed(replicated, 1, M), table = t.placed(replicated);
  AddPosition add{.table = table, .seq_len = M, .x = rows, .positions = same.as<const int32_t>()};
  CHECK_FALSE(t.run(add).empty());
  add.positions = t.placed(varying, 1, M).as<const int32_t>();
  CHECK(t.run(add).empty());
}

TEST_CASE("weights of the loss belong to its rows") {
  const auto combine = [](Placement stats, Placement weights) {
    Twin t;
    const Matrix s = t.placed(stats, M, 3), w = t.placed(weights, 1, M), rows = t.fresh(2, M);
    return t.run(CrossEntropyCombine{.stats = s.as<float>(),
                                     .parts = 1,
                                     .m = M,
                                     .lse = rows.as<float>(),
                                     .loss = rows.as<float>() + M,
                                     .targets = w.as<const int32_t>(),
                                     .weights = w.as<const float>()});
  };
  CHECK(combine(replicated, replicated).empty());
  CHECK(combine(varying, varying).empty());
  CHECK_FALSE(combine(varying, replicated).empty());
  CHECK_FALSE(combine(cut_cols, replicated).empty());
}

}  // namespace trainctl::placement_ops
