// Times two ways of experts' results home, on one core in bf16, for a rank whose tokens choose evenly
// among the experts of all ranks, and as many rows of whose own experts come from others. Rows: each
// of a token's k rows goes to its rank and they are added there. Tree: of each token the ranks of its
// experts add their rows, and their sums go to its rank and are added there. Prints one JSON line for
// each model and number of ranks, with the bytes that leave a rank and milliseconds of each way: of
// its sums, and of a copy of what leaves it, which is what a rank of the same node does. Times are
// those of the thread, of which the least of the turns counts.
//
//   bench_way_home [turns]
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::kernels {
namespace {

constexpr int64_t kTokens = 1024;

struct Case {
  const char* model;
  int64_t experts, top_k, hidden;
};
constexpr Case kCases[] = {{"Qwen3-30B-A3B", 128, 8, 2048}, {"gpt-oss-120b", 128, 4, 2880}};

double thread_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e3 + double(t.tv_nsec) * 1e-6;
}

class WayHome {
 public:
  WayHome(Backend& backend, const Case& c, int ranks)
      : backend_(backend), stream_(backend.create_stream()), case_(c), ranks_(ranks) {
    std::mt19937 random(7);
    std::vector<int> experts(size_t(c.experts));
    for (int64_t token = 0; token < kTokens; ++token) {
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), random);
      // All ranks have like tokens: what this rank's experts make is as if of its own tokens.
      std::vector<std::vector<int32_t>> of_rank;
      of_rank.resize(size_t(ranks));
      for (int64_t j = 0; j < c.top_k; ++j)
        of_rank[size_t(experts[size_t(j)] * ranks / c.experts)].push_back(int32_t(token * c.top_k + j));
      int64_t met = 0;
      for (std::vector<int32_t>& rows : of_rank) {
        if (rows.empty()) continue;
        rows.resize(size_t(c.top_k), -1);
        summed_.insert(summed_.end(), rows.begin(), rows.end());
        home_.push_back(int32_t(sums_++));
        ++met;
      }
      home_.insert(home_.end(), size_t(c.top_k - met), -1);
    }
    plain_.resize(size_t(kTokens * c.top_k));
    std::iota(plain_.begin(), plain_.end(), 0);
    rows_ = take(kTokens * c.top_k), moved_ = take(kTokens * c.top_k), partial_ = take(sums_);
    out_ = take(kTokens);
  }

  void measure(int turns) {
    double rows_ms = 1e30, tree_ms = 1e30;
    for (int turn = 0; turn <= turns; ++turn) {  // the first one warms up
      const double begin = thread_ms();
      const Matrix home = move(rows_);
      combine(home, plain_, out_);
      const double middle = thread_ms();
      combine(rows_, summed_, partial_);
      combine(move(partial_), home_, out_);
      const double end = thread_ms();
      if (turn > 0) rows_ms = std::min(rows_ms, middle - begin), tree_ms = std::min(tree_ms, end - middle);
    }
    const double away = double(ranks_ - 1) / ranks_ * double(case_.hidden) * 2;
    fmt::print(
        "{{\"model\":\"{}\",\"ranks\":{},\"met\":{:.2f},\"rows_mib\":{:.1f},\"tree_mib\":{:.1f},"
        "\"rows_ms\":{:.2f},\"tree_ms\":{:.2f}}}\n",
        case_.model, ranks_, double(sums_) / double(kTokens), double(kTokens * case_.top_k) * away / 1048576,
        double(sums_) * away / 1048576, rows_ms, tree_ms);
    std::fflush(stdout);
  }

 private:
  /// What goes to other ranks is copied, the rest lies where it is.
  Matrix move(const Matrix& from) {
    const Matrix to = matrix(moved_.data, DType::bf16, from.rows, from.cols);
    const int64_t away = from.rows * (ranks_ - 1) / ranks_;
    std::memcpy(to.data, from.data, size_t(away * from.cols) * sizeof(bf16));
    return to;
  }
  void combine(const Matrix& x, std::vector<int32_t>& rows, const Matrix& out) {
    backend_.run(
        *stream_,
        CombineRows{.x = x, .rows = vector(rows.data(), DType::i32, int64_t(rows.size())), .out = out});
  }
  Matrix take(int64_t rows) {
    buffers_.push_back(backend_.allocate(size_t(rows * case_.hidden) * sizeof(bf16)));
    std::memset(buffers_.back()->data(), 0, size_t(rows * case_.hidden) * sizeof(bf16));
    return matrix(buffers_.back()->data(), DType::bf16, rows, case_.hidden);
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  const Case case_;
  const int ranks_;
  int64_t sums_ = 0;
  std::vector<int32_t> summed_, home_, plain_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Matrix rows_, moved_, partial_, out_;
};

}  // namespace
}  // namespace trainctl::kernels

int main(int argc, char** argv) {
  using namespace trainctl::kernels;
  const auto backend = make_cpu_backend(1);
  for (const Case& c : kCases)
    for (const int ranks : {4, 8, 16, 64})
      WayHome(*backend, c, ranks).measure(argc > 1 ? std::atoi(argv[1]) : 5);
}
