// Goal: tensor shards tile every parameter; the chunk grid tiles it too, knows nothing of the mesh, and every
// chunk lies wholly in one piece of each rank that holds it; chunks are spread evenly over their owners. Method: exhaustive over small matrices (rows, columns, cuts, sections, raggedness,
// degrees, chunk sizes), each local matrix filled cell by cell; seeded random sizes for owners, and the
// balance bound that the rule implies.
#include "parallel/layout.h"
#include "test/support/seed.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

namespace trainctl::parallel {
namespace {

using Cells = std::vector<int>;  // row-major, one counter or value per cell

void count_box(Cells& cells, int64_t cols, const Box& box) {
  for (int64_t r = box.row_begin; r < box.row_end; ++r)
    for (int64_t c = box.col_begin; c < box.col_end; ++c) ++cells[static_cast<size_t>(r * cols + c)];
}

bool all_equal(const Cells& cells, int value) {
  return std::all_of(cells.begin(), cells.end(), [=](int cell) { return cell == value; });
}

/// Every small parameter worth trying.
std::vector<ParamLayout> small_params() {
  std::vector<ParamLayout> params;
  for (int64_t cols = 1; cols <= 6; ++cols) {
    for (int64_t rows = 1; rows <= 8; ++rows) {
      params.push_back({"plain", rows, cols, Cut::none, {}, false});
      params.push_back({"rows", rows, cols, Cut::rows, {}, false});
      params.push_back({"ragged", rows, cols, Cut::rows, {}, true});
      params.push_back({"cols", rows, cols, Cut::cols, {}, false});
      params.push_back({"ragged cols", rows, cols, Cut::cols, {}, true});
    }
    for (int64_t q = 1; q <= 6; ++q) {
      for (int64_t kv = 1; kv <= 4; ++kv) {
        params.push_back({"qkv", q + 2 * kv, cols, Cut::rows, {q, kv, kv}, false});
        params.push_back({"ragged qkv", q + 2 * kv, cols, Cut::rows, {q, kv, kv}, true});
      }
    }
  }
  return params;
}

/// The local matrix of a rank as global cell indices; -1 where no piece stands.
Cells local_cells(const ParamLayout& param, const LocalShard& shard) {
  Cells cells(static_cast<size_t>(shard.rows * shard.cols), -1);
  for (const Piece& piece : shard.pieces)
    for (int64_t r = 0; r < piece.global.rows(); ++r)
      for (int64_t c = 0; c < piece.global.cols(); ++c) {
        int& cell = cells.at(static_cast<size_t>((piece.local_row + r) * shard.cols + piece.local_col + c));
        const bool free = cell == -1;
        cell = free ? static_cast<int>((piece.global.row_begin + r) * param.cols + piece.global.col_begin + c)
                    : -2;
      }
  return cells;
}

TEST_CASE("intersect of boxes counts common cells") {
  for (int64_t a = 0; a < 5; ++a)
    for (int64_t b = a; b < 5; ++b)
      for (int64_t c = 0; c < 5; ++c)
        for (int64_t d = c; d < 5; ++d) {
          int64_t common = 0;
          for (int64_t x = 0; x < 5; ++x) common += x >= a && x < b && x >= c && x < d;
          CHECK(intersect({a, b, 0, 2}, {c, d, 1, 3}).count() == common);
          CHECK(intersect({0, 2, a, b}, {1, 3, c, d}).count() == common);
        }
}

TEST_CASE("shards tile every parameter and fill their local matrices") {
  for (const ParamLayout& param : small_params()) {
    for (int tp : legal_tensor_degrees({param}, 12)) {
      Cells seen(static_cast<size_t>(param.rows * param.cols), 0);
      bool dense = true;
      for (int rank = 0; rank < tp; ++rank) {
        const LocalShard shard = local_shard(param, tp, rank);
        const Cells cells = local_cells(param, shard);
        dense = dense && std::all_of(cells.begin(), cells.end(), [](int cell) { return cell >= 0; });
        dense = dense && std::is_sorted(cells.begin(), cells.end());
        for (const Piece& piece : shard.pieces) count_box(seen, param.cols, piece.global);
      }
      INFO(param.name << " [" << param.rows << ", " << param.cols << "] tp " << tp);
      REQUIRE(dense);
      REQUIRE(all_equal(seen, param.cut == Cut::none ? tp : 1));
    }
  }
}

TEST_CASE("each tp rank holds its part of every section") {
  const ParamLayout qkv{"qkv", 16, 2, Cut::rows, {8, 4, 4}, false};
  const LocalShard shard = local_shard(qkv, 2, 1);
  REQUIRE(shard.rows == 8);
  REQUIRE(shard.cols == 2);
  REQUIRE(shard.pieces.size() == 3);
  CHECK(shard.pieces[0].global == Box{4, 8, 0, 2});
  CHECK(shard.pieces[1].global == Box{10, 12, 0, 2});
  CHECK(shard.pieces[2].global == Box{14, 16, 0, 2});
  CHECK(shard.pieces[2].local_row == 6);

  const ParamLayout vocabulary{"vocabulary", 7, 3, Cut::rows, {}, true};
  CHECK(local_shard(vocabulary, 4, 0).pieces.at(0).global == Box{0, 1, 0, 3});
  CHECK(local_shard(vocabulary, 4, 3).pieces.at(0).global == Box{5, 7, 0, 3});

  const ParamLayout expert{"expert", 3, 7, Cut::cols, {}, true};
  CHECK(local_shard(expert, 4, 0).pieces.at(0).global == Box{0, 3, 0, 1});
  CHECK(local_shard(expert, 4, 3).pieces.at(0).global == Box{0, 3, 5, 7});
}

TEST_CASE("legal degrees divide the key-value heads and every even cut") {
  const ParamLayout qkv{"qkv", 48, 4, Cut::rows, {24, 12, 12}, false};
  const ParamLayout down{"down", 4, 18, Cut::cols, {}, false};
  const ParamLayout vocabulary{"vocabulary", 7, 4, Cut::rows, {}, true};
  const ParamLayout norm{"norm", 5, 1, Cut::none, {}, false};
  CHECK(legal_tensor_degrees({}, 12) == std::vector<int>{1, 2, 3, 4, 6, 12});
  CHECK(legal_tensor_degrees({vocabulary, norm}, 4) == std::vector<int>{1, 2, 4});
  CHECK(legal_tensor_degrees({qkv, vocabulary}, 12) == std::vector<int>{1, 2, 3, 4, 6, 12});
  CHECK(legal_tensor_degrees({qkv, down}, 12) == std::vector<int>{1, 2, 3, 6});
  CHECK(legal_tensor_degrees({qkv, down}, 1) == std::vector<int>{1});
}

TEST_CASE("degrees beyond the key-value heads are multiples of them that divide heads and cuts") {
  const ParamLayout qkv{"qkv",     48 + 2 * 16,  4,
                        Cut::rows, {48, 16, 16}, false};  // 12 heads and 4 of 4 channels
  const ParamLayout norm{"norm", 5, 1, Cut::none, {}, false};
  const auto wide = [&](int64_t heads, int64_t kv_heads, int64_t widest) {
    return wide_tensor_degrees({qkv, norm}, {{heads, kv_heads}}, widest);
  };
  CHECK(wide(48, 4, 100) == std::vector<int>{8, 16});  // 12, 24 and 48 do not divide 16 rows
  CHECK(wide(12, 4, 100).empty());                     // nor 12
  CHECK(wide(48, 4, 15) == std::vector<int>{8});
  CHECK(wide(48, 4, 4).empty());
  CHECK(wide(16, 1, 16) == std::vector<int>{2, 4, 8, 16});
  CHECK(wide_tensor_degrees({norm}, {{12, 12}, {12, 2}}, 12) == std::vector<int>{4, 6, 12});
  CHECK(wide_tensor_degrees({norm}, {{12, 12}, {6, 2}}, 12) == std::vector<int>{6});
  CHECK(wide_tensor_degrees({norm}, {}, 12).empty());
  // A rank's queries are of the head that it shares with its neighbours.
  for (const int tp : wide(48, 4, 100))
    for (int r = 0; r < tp; ++r) {
      const LocalShard shard = local_shard(qkv, tp, r);
      REQUIRE(shard.pieces.size() == 3);
      const auto head_of = [&](size_t piece, int64_t begin, int64_t rows_of_head) {
        const Box& box = shard.pieces[piece].global;
        CHECK((box.row_begin - begin) / rows_of_head == (box.row_end - 1 - begin) / rows_of_head);
        return (box.row_begin - begin) / rows_of_head;
      };
      CHECK(head_of(1, 48, 4) == head_of(0, 0, 12));
      CHECK(head_of(2, 64, 4) == head_of(0, 0, 12));
    }
}

TEST_CASE("the chunk grid tiles a parameter in row-major order, within the limit") {
  for (const ParamLayout& param : small_params()) {
    const std::vector<int> degrees = legal_tensor_degrees({param}, 12);
    for (int64_t limit : {1, 2, 3, 5, 8, 1000}) {
      const std::vector<Box> grid = chunk_grid(param, degrees, limit);
      Cells seen(static_cast<size_t>(param.rows * param.cols), 0);
      bool within = true;
      for (const Box& box : grid) {
        count_box(seen, param.cols, box);
        within = within && box.count() > 0 && (box.count() <= limit || box.rows() == 1);
      }
      const bool ordered = std::is_sorted(grid.begin(), grid.end(), [](const Box& a, const Box& b) {
        return std::pair(a.row_begin, a.col_begin) < std::pair(b.row_begin, b.col_begin);
      });
      INFO(param.name << " [" << param.rows << ", " << param.cols << "] limit " << limit);
      REQUIRE(all_equal(seen, 1));
      REQUIRE(within);
      REQUIRE(ordered);
    }
  }
}

TEST_CASE("one grid serves every legal degree: each chunk stands wholly in one piece of its holders") {
  for (const ParamLayout& param : small_params()) {
    const std::vector<int> degrees = legal_tensor_degrees({param}, 12);
    for (int64_t limit : {1, 3, 8, 1000}) {
      const std::vector<Box> grid = chunk_grid(param, degrees, limit);
      for (int tp : degrees) {
        Cells holders(grid.size(), 0);
        bool right = true;
        for (int rank = 0; rank < tp; ++rank) {
          const LocalShard shard = local_shard(param, tp, rank);
          const Cells cells = local_cells(param, shard);
          int64_t elements = 0;
          int last = -1;
          for (const LocalChunk& chunk : local_chunks(param, 5, grid, tp, rank)) {
            right = right && chunk.param == 5 && chunk.chunk > last && grid.at(chunk.chunk) == chunk.global;
            last = chunk.chunk;
            ++holders[static_cast<size_t>(chunk.chunk)];
            elements += chunk.global.count();
            for (int64_t r = 0; r < chunk.global.rows(); ++r)
              for (int64_t c = 0; c < chunk.global.cols(); ++c)
                right = right && cells.at((chunk.local_row + r) * shard.cols + chunk.local_col + c) ==
                                     (chunk.global.row_begin + r) * param.cols + chunk.global.col_begin + c;
          }
          right = right && elements == shard.rows * shard.cols;
        }
        INFO(param.name << " [" << param.rows << ", " << param.cols << "] tp " << tp << " limit " << limit);
        REQUIRE(right);
        REQUIRE(all_equal(holders, param.cut == Cut::none ? tp : 1));
      }
    }
  }
}

TEST_CASE("large parameters neither overflow nor leave gaps") {
  const ParamLayout embedding{"embedding", 256'000, 16'384, Cut::rows, {}, true};
  const std::vector<int> degrees = legal_tensor_degrees({embedding}, 8);
  const std::vector<Box> grid = chunk_grid(embedding, degrees, 4 << 20);
  int64_t elements = 0, next = 0;
  for (const Box& box : grid) {
    CHECK(box.row_begin == next);
    CHECK(box.count() <= 4 << 20);
    next = box.row_end;
    elements += box.count();
  }
  CHECK(elements == 256'000LL * 16'384);
}

/// What the rule promises: within dp, shares no further apart than the largest chunk, and of any run of equal neighbours every rank
/// has about as many as any other.
void check_owners(const std::vector<int64_t>& sizes, int dp) {
  const std::vector<int> owners = deal_owners(sizes, dp);
  REQUIRE(owners.size() == sizes.size());
  if (sizes.empty()) return;
  std::vector<int64_t> share(size_t(dp), 0);
  for (size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE((owners[i] >= 0 && owners[i] < dp));
    share[size_t(owners[i])] += sizes[i];
  }
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  REQUIRE(*std::max_element(share.begin(), share.end()) - *std::min_element(share.begin(), share.end()) <= largest);
  if (std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; }) && sizes[0] > 0)
    for (size_t i = size_t(dp); i < sizes.size(); ++i) REQUIRE(owners[i] == owners[i - size_t(dp)]);
}

TEST_CASE("a chunk belongs to the rank that has least so far") {
  CHECK(deal_owners({1, 1, 1}, 2) == std::vector<int>{0, 1, 0});
  CHECK(deal_owners({4, 1, 1, 1}, 2) == std::vector<int>{0, 1, 1, 1});
  CHECK(deal_owners({1, 4, 1}, 3) == std::vector<int>{0, 1, 2});
  CHECK(deal_owners({3, 3}, 4) == std::vector<int>{0, 1});
  CHECK(deal_owners({0, 0}, 4) == std::vector<int>{0, 0});
  CHECK(deal_owners({5, 0}, 2) == std::vector<int>{0, 1});
  CHECK(deal_owners({}, 2).empty());
}

TEST_CASE("owners of chunks, every list of up to five sizes below 4") {
  for (int length = 0; length <= 5; ++length) {
    int lists = 1;
    for (int i = 0; i < length; ++i) lists *= 4;
    for (int code = 0; code < lists; ++code) {
      std::vector<int64_t> sizes;
      for (int i = 0, rest = code; i < length; ++i, rest /= 4) sizes.push_back(rest % 4);
      for (int dp = 1; dp <= 8; ++dp) check_owners(sizes, dp);
    }
  }
}

TEST_CASE("owners of chunks, random large sizes") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> sizes(1 + random() % 200);
    for (int64_t& size : sizes)
      size = static_cast<int64_t>(1 + random() % (int64_t{1} << (1 + random() % 40)));
    check_owners(sizes, static_cast<int>(1 + random() % 300));
  }
  check_owners(std::vector<int64_t>(1000, int64_t{1} << 45), 65536);
}

}  // namespace
}  // namespace trainctl::parallel
