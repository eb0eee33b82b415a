// Goal: lists of rows of which each tensor rank has its part are complete on all, and no rank sends more than
// its part to each other. Method: 1 to 8 rank threads with lists of no rows, of fewer than ranks and of
// uneven parts; every row is its own number, and what a rank does not have begins as another.
#include <catch2/catch.hpp>
#include <numeric>

#include "parallel/tensor_parallel.h"
#include "test/parallel/rank_threads.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("tensor ranks complete lists of which each has a part") {
  constexpr int64_t kCols = 3;
  const std::vector<int64_t> lengths = {5, 0, 1, 17, 2, 8};
  for (const int size : {1, 2, 3, 4, 8}) {
    std::vector<std::vector<std::vector<float>>> of_rank(static_cast<size_t>(size));
    std::vector<uint64_t> sent(size_t(size), 0), expected(size_t(size), 0);
    on_rank_threads(size, kLongS, [&](parallel::Communicator& comm) {
      const auto backend = kernels::make_reference_backend();
      const auto stream = backend->create_stream();
      parallel::TensorParallel tp(comm, *backend, *stream, true);
      auto& lists = of_rank[size_t(comm.rank())];
      std::vector<kernels::Matrix> matrices;
      for (const int64_t rows : lengths) {
        std::vector<float>& list = lists.emplace_back(size_t(rows * kCols), -1.0f);
        const auto part = tp.part_of(rows, comm.rank());
        for (int64_t i = part.first * kCols; i < (part.first + part.rows) * kCols; ++i)
          list[size_t(i)] = float(i);
        expected[size_t(comm.rank())] += uint64_t(part.rows * kCols * 4 * (size - 1));
      }
      for (size_t i = 0; i < lists.size(); ++i)
        matrices.push_back(kernels::matrix(lists[i].data(), DType::f32, lengths[i], kCols));
      const uint64_t before = comm.sent_bytes();
      tp.complete(matrices);
      sent[size_t(comm.rank())] = comm.sent_bytes() - before;
    });
    for (int rank = 0; rank < size; ++rank) {
      CAPTURE(size, rank);
      CHECK(sent[size_t(rank)] == expected[size_t(rank)]);
      for (size_t list = 0; list < lengths.size(); ++list) {
        std::vector<float> all(size_t(lengths[list] * kCols));
        std::iota(all.begin(), all.end(), 0.0f);
        CHECK(of_rank[size_t(rank)][list] == all);
      }
    }
  }
}
