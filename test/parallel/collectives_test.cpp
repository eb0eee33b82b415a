// Goal: collectives give every rank the right bytes and, for sums, exactly the bits of a serial balanced tree in rank order,
// whatever the number of ranks, the size, the dtype and the way (one round or two) chosen for a size.
// Method: all sizes around the borders, on 1, 2, 3, 4 and 8 rank threads, with canaries around every buffer; the same checks
// run under mpirun (mpi_ranks.cpp).
#include <catch2/catch.hpp>
#include <cmath>

#include "parallel/exact_sum.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"
#include "test/support/sanitized.h"

namespace trainctl::test {

TEST_CASE("the inputs tell a tree from a running sum") {
  int differ = 0;
  for (int64_t i = 0; i < 1000; i++) {
    std::vector<float> values;
    float running = 0;
    for (int r = 0; r < 8; r++) {
      values.push_back(input_value(r, i));
      running += values.back();
    }
    differ += running != serial_tree(values);
  }
  CHECK(differ > 200);
}

TEST_CASE("collectives have the bits of the serial computation") {
  const int size = GENERATE(1, 2, 3, 4, 8);
  const size_t piece_bytes = GENERATE(0, 1000, 4 << 20);
  if (kSanitized && (size == 1 || size == 4 || piece_bytes > 1000)) return;
  CAPTURE(size);
  const auto backend = kernels::make_reference_backend();
  Wrap wrap;
  if (piece_bytes)
    wrap = [&backend, piece_bytes](auto host) { return parallel::make_staged_communicator(std::move(host), *backend, piece_bytes); };
  on_rank_threads(
      size, kLongS, [&](Communicator& comm) { check_collectives(comm, *backend); }, wrap);
}

TEST_CASE("a gather brings every rank's bytes to one rank, in order, and to no other") {
  const int size = GENERATE(1, 2, 3, 4, 8);
  for (int root = 0; root < size; ++root)
    on_rank_threads(size, kLongS, [&](Communicator& comm) {
      for (const size_t bytes : {size_t(1), size_t(104), size_t(100000)}) {
        std::vector<unsigned char> own(bytes), all(size_t(size) * bytes + 1, 0x5a);
        for (size_t i = 0; i < bytes; ++i) own[i] = (unsigned char)mix(uint64_t(comm.rank()), i);
        parallel::gather(comm, root, own.data(), all.data(), bytes, 3);
        for (size_t at = 0; at < size_t(size) * bytes; ++at)
          require(all[at] == (comm.rank() == root ? (unsigned char)mix(int(at / bytes), at % bytes) : 0x5a),
                  "gather to {} on rank {} of {}: byte {} differs", root, comm.rank(), size, at);
        require(all.back() == 0x5a, "gather wrote past its end");
      }
    });
}

TEST_CASE("an exact sum over ranks is the serial one on every rank, whatever their number") {
  for (int size = 1; size <= 9; ++size)
    on_rank_threads(size, kLongS, [&](Communicator& comm) {
      const auto value_of = [](int rank) {
        return std::ldexp(double(mix(uint64_t(rank), 7) % 1000) - 499.5, int(mix(uint64_t(rank), 8) % 200) - 100);
      };
      ExactSum sum, scratch, serial;
      sum.add(value_of(comm.rank()));
      const auto add = [](void* own, const void* other, size_t) {
        static_cast<ExactSum*>(own)->add(*static_cast<const ExactSum*>(other));
      };
      parallel::all_combine(comm, &sum, &scratch, sizeof sum, add, 5, "sum");
      for (int r = 0; r < size; ++r) serial.add(value_of(r));
      require(sum == serial, "rank {} of {}: {:a}, not {:a}", comm.rank(), size, sum.value(), serial.value());
    });
}

TEST_CASE("all_reduce on one rank needs no scratch and sends nothing") {
  const auto backend = kernels::make_reference_backend();
  on_rank_threads(1, kLongS, [&](Communicator& comm) {
    const auto stream = backend->create_stream();
    std::vector<float> data(100000, 1.5f);
    parallel::all_reduce(comm, *backend, *stream, data.data(), nullptr, DType::f32, int64_t(data.size()));
    require(data[99999] == 1.5f && comm.sent_bytes() == 0, "{} bytes sent", comm.sent_bytes());
  });
}

TEST_CASE("a reduce-scatter whose peers are missing names them") {
  const auto backend = kernels::make_reference_backend();
  std::string message;
  try {
    on_rank_threads(3, 0.05, [&](Communicator& comm) {
      if (comm.rank() != 0) return;
      check_reduce_scatter(comm, *backend, DType::f32, 10, false);
    });
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kPeerLost);
    message = e.what();
  }
  CHECK(message == "world: reduce-scatter: ranks 1, 2 (world) did not arrive within 0.05 s");
}

}  // namespace trainctl::test

// A sum that is small goes in one round and needs more room than a larger one that goes by slices: scratch sized for n elements
// must do for every m <= n.
TEST_CASE("all_reduce scratch for n elements is enough for fewer") {
  for (const int size : {2, 3, 4, 8})
    for (const trainctl::DType dtype : {trainctl::DType::f32, trainctl::DType::bf16}) {
      size_t most = 0;
      for (int64_t n = 1; n < 70000; n += n < 100 ? 1 : 97) {
        const size_t bytes = trainctl::parallel::all_reduce_scratch_bytes(size, dtype, n);
        CHECK(bytes >= most);
        most = std::max(most, bytes);
      }
    }
}
