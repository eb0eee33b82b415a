#include "kernels/cpu/product.h"

#include <malloc.h>
#include <omp.h>

#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>

#include "kernels/cpu/scratch.h"
#include "runtime/base/error.h"

namespace trainctl::kernels::cpu {

namespace {

using Desc = dnnl::memory::desc;

/// The description of a panel: panels with equal keys run the same code.
struct PanelKey {
  int64_t m, n, k;
  int64_t left_stride, right_stride, out_stride;
  DType dtype, out_dtype;
  bool left_transposed, right_transposed, accumulate, bias;
  auto operator<=>(const PanelKey&) const = default;
};

dnnl::memory::data_type dnnl_type(DType d) {
  return d == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

Desc matrix_desc(int64_t rows, int64_t cols, DType dtype, bool transposed, int64_t stride) {
  return {{rows, cols}, dnnl_type(dtype), transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

const char* name_of(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41: return "sse41";
    case dnnl::cpu_isa::avx: return "avx";
    case dnnl::cpu_isa::avx2: return "avx2";
    case dnnl::cpu_isa::avx2_vnni: return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core: return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni: return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16: return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx: return "avx512_core_amx";
    default: return nullptr;
  }
}

/// The arguments of one worker for a primitive: made once, with new data pointers for each panel.
struct Arguments {
  dnnl::memory left, right, out, bias, scratchpad;
  std::unordered_map<int, dnnl::memory> map;
};

struct Panel {
  dnnl::matmul primitive;
  size_t scratch_bytes = 0;
  std::vector<Arguments> of_worker;
};

/// Row strides are left open when the primitive is made: oneDNN then chooses the one implementation that
/// packs its operands, whatever their strides, and the order of its sums depends on (m, n, k) alone.
Panel make_panel(const PanelKey& key, const dnnl::engine& engine, int workers) {
  constexpr int64_t kAny = DNNL_RUNTIME_DIM_VAL;
  const Desc bias({1, key.n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  const Desc left = matrix_desc(key.m, key.k, key.dtype, key.left_transposed, kAny);
  const Desc right = matrix_desc(key.k, key.n, key.dtype, key.right_transposed, kAny);
  const Desc out = matrix_desc(key.m, key.n, key.out_dtype, false, kAny);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto description =
      key.bias ? dnnl::matmul::desc(left, right, bias, out) : dnnl::matmul::desc(left, right, out);
  const dnnl::matmul::primitive_desc made(description, attributes, engine);
  Panel panel{dnnl::matmul(made), made.scratchpad_desc().get_size(), {}};
  for (int worker = 0; worker < workers; ++worker) {
    Arguments a;
    a.left = dnnl::memory(matrix_desc(key.m, key.k, key.dtype, key.left_transposed, key.left_stride), engine, nullptr);
    a.right =
        dnnl::memory(matrix_desc(key.k, key.n, key.dtype, key.right_transposed, key.right_stride), engine, nullptr);
    a.out = dnnl::memory(matrix_desc(key.m, key.n, key.out_dtype, false, key.out_stride), engine, nullptr);
    a.scratchpad = dnnl::memory(made.scratchpad_desc(), engine, nullptr);
    a.map = {{DNNL_ARG_SRC, a.left},
             {DNNL_ARG_WEIGHTS, a.right},
             {DNNL_ARG_DST, a.out},
             {DNNL_ARG_SCRATCHPAD, a.scratchpad}};
    if (key.bias) {
      a.bias = dnnl::memory(bias, engine, nullptr);
      a.map.emplace(DNNL_ARG_BIAS, a.bias);
    }
    panel.of_worker.push_back(std::move(a));
  }
  return panel;
}

/// Cuts n into pieces of about `limit`, as equal as multiples of 48 allow (the width of oneDNN's innermost tile). The
/// last is never a single row or column: for those oneDNN uses a matrix-vector product, whose sums depend
/// on strides.
int64_t piece(int64_t n, int64_t limit) {
  constexpr int64_t kTile = 48;
  const int64_t pieces = (n + limit - 1) / limit;
  const int64_t even = (n + pieces - 1) / pieces;
  int64_t size = (even + kTile - 1) / kTile * kTile;
  while (size < n && n % size == 1) {
    size += kTile;
  }
  return std::min(n, size);
}

// Measured on Zen 4: large enough that packing costs a few percent, small enough that 768 x 768 feeds several cores.
constexpr int64_t kPanelRows = 512;
constexpr int64_t kPanelCols = 384;
constexpr int64_t kGradientRows = 384;
// A vocabulary's weights and their gradients: there are panels enough for every core, and larger ones pack
// less (two AVX2 cores, GPT-2's 50,257 tokens: the products 71 -> 73, the gradients 65 -> 73 GFLOP/s).
constexpr int64_t kVocabulary = 16384;
constexpr int64_t kVocabularyPanel = 1536;

/// Whether each panel of `right` is copied before it is multiplied, because its rows share the sets of a
/// cache: weights lie as they are sent and saved, without a gap. Two AVX2 cores, the input gradient of GPT-2 124M's
/// mlp_down: 85 ms, copied 69. Larger panels are left as they are, for the sake of memory.
bool copies_right(const ProductArguments& p, int64_t k, int64_t panel_cols) {
  constexpr size_t kLargest = size_t(16) << 20;
  return !p.right_transposed && rows_share_cache_sets(p.right.dtype, p.right.stride) &&
         size_t(k * panel_cols) * sizeof(float) <= kLargest;
}

Matrix spread(const Matrix& from) {
  const int64_t stride = from.cols + kGapOfRows;
  float* room = scratch_floats(ScratchUse::spread, size_t(from.rows * stride));
  const Matrix to = matrix(room, DType::f32, from.rows, stride).columns(0, from.cols);
  for (int64_t r = 0; r < from.rows; ++r) {
    std::memcpy(to.row_range(r, 1).data, from.row_range(r, 1).data, size_t(from.cols) * sizeof(float));
  }
  return to;
}

/// A product and its panels: all are equally large, but those at the bottom and at the right.
struct CutProduct {
  ProductArguments of;
  int64_t m = 0, n = 0, k = 0;
  int64_t rows = 0, cols = 0;  ///< of a panel
  bool copied = false;         ///< copies_right
  Panel* panels[2][2] = {};    ///< [at the bottom][at the right]
  int64_t down() const { return (m + rows - 1) / rows; }
  int64_t across() const { return (n + cols - 1) / cols; }
  int64_t last_rows() const { return m - (down() - 1) * rows; }
  int64_t last_cols() const { return n - (across() - 1) * cols; }
};

/// Panel (i, j) of the products from `begin` to `end`, which have one `out`.
struct PanelTask {
  size_t begin = 0, end = 0;
  int64_t i = 0, j = 0;
};

/// oneDNN's packing buffers are allocated and freed by every product; this keeps the C library from giving their pages
/// back to the system each time, which would halve the speed of small products.
void keep_freed_memory() {
  constexpr int kLargestFromHeap = 32 << 20;
  constexpr int kKept = 512 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargestFromHeap);
  mallopt(M_TRIM_THRESHOLD, kKept);
}

}  // namespace

struct ProductEngine::State {
  explicit State(ThreadPool& p) : pool(p), engine(dnnl::engine::kind::cpu, 0) {
    for (int worker = 0; worker < p.threads(); ++worker) {
      streams.emplace_back(engine);
    }
  }

  Panel& panel(const PanelKey& key) {
    auto found = panels.find(key);
    if (found == panels.end()) {
      found = panels.emplace(key, make_panel(key, engine, pool.threads())).first;
    }
    return found->second;
  }

  void add(const ProductArguments& p);
  void multiply();
  void run(const CutProduct& cut, int64_t i, int64_t j, int worker);

  ThreadPool& pool;
  dnnl::engine engine;
  std::vector<dnnl::stream> streams;
  std::map<PanelKey, Panel> panels;
  std::vector<CutProduct> cuts;  ///< of the products that are being multiplied
  std::vector<PanelTask> tasks;
  std::mutex mutex;
};

std::string product_library() {
  const dnnl::version_t& version = *dnnl::version();
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const char* name = name_of(isa);
  return fmt::format("oneDNN {}.{}.{} {}", version.major, version.minor, version.patch,
                     name ? std::string(name) : fmt::format("isa {:#x}", unsigned(isa)));
}

ProductEngine::ProductEngine(ThreadPool& pool) {
  keep_freed_memory();
  state_ = std::make_unique<State>(pool);
}
ProductEngine::~ProductEngine() = default;

namespace {

char* element(const Matrix& m, int64_t r, int64_t c) {
  return static_cast<char*>(m.data) + (r * m.stride + c) * int64_t(size_of(m.dtype));
}

/// right: the operand's first element of the panel.
void execute(const ProductArguments& p, Panel& panel, int64_t row, int64_t col, void* right, int worker,
             dnnl::stream& stream) {
  omp_set_num_threads(1);  // of this thread: oneDNN must not split the panel further
  Arguments& a = panel.of_worker[size_t(worker)];
  a.left.set_data_handle(p.left_transposed ? element(p.left, 0, row) : element(p.left, row, 0));
  a.right.set_data_handle(right);
  a.out.set_data_handle(element(p.out, row, col));
  if (p.bias != nullptr) {
    a.bias.set_data_handle(const_cast<float*>(p.bias + col));
  }
  a.scratchpad.set_data_handle(scratch(ScratchUse::product, panel.scratch_bytes));
  panel.primitive.execute(stream, a.map);
  stream.wait();
}

}  // namespace

void ProductEngine::multiply(std::span<const ProductArguments> products) {
  std::lock_guard lock(state_->mutex);
  state_->cuts.clear();
  bool all_added = false;
  try {
    for (const ProductArguments& p : products) state_->add(p);
    all_added = true;
    state_->multiply();
  } catch (const dnnl::error& e) {
    const auto sizes = [](const CutProduct& c) {
      return fmt::format("[{}, {}] by [{}, {}] in {}", c.m, c.k, c.k, c.n, name_of(c.of.left.dtype));
    };
    throw Error(
        ErrorCode::kHardware,
        fmt::format("oneDNN failed to multiply {}{}: {} (status {})",
                    sizes(all_added ? state_->cuts.front() : state_->cuts.back()),
                    all_added && state_->cuts.size() > 1 ? " and others" : "", e.message, int(e.status)));
  }
}

void ProductEngine::State::add(const ProductArguments& p) {
  CutProduct cut{
      .of = p, .m = p.out.rows, .n = p.out.cols, .k = p.left_transposed ? p.left.rows : p.left.cols};
  if (cut.m == 0 || cut.n == 0) {
    return;
  }
  ENSURE(cut.k > 0, "a product [{}, {}] over nothing", cut.m, cut.n);
  const int64_t gradient_rows = cut.m < kVocabulary ? kGradientRows : kVocabularyPanel;
  cut.rows = piece(cut.m, p.left_transposed ? gradient_rows : kPanelRows);
  cut.cols = piece(cut.n, p.right_transposed && cut.n >= kVocabulary ? kVocabularyPanel : kPanelCols);
  cut.copied = copies_right(p, cut.k, cut.cols);
  const auto key_of = [&](int64_t panel_rows, int64_t panel_cols) {
    return PanelKey{.m = panel_rows,
                    .n = panel_cols,
                    .k = cut.k,
                    .left_stride = p.left.stride,
                    .right_stride = cut.copied ? panel_cols + kGapOfRows : p.right.stride,
                    .out_stride = p.out.stride,
                    .dtype = p.left.dtype,
                    .out_dtype = p.out.dtype,
                    .left_transposed = p.left_transposed,
                    .right_transposed = p.right_transposed,
                    .accumulate = p.accumulate,
                    .bias = p.bias != nullptr};
  };
  cuts.push_back(cut);     // an error names it
  omp_set_num_threads(1);  // oneDNN makes a primitive for as many threads as it sees here
  for (int bottom = 0; bottom < 2; ++bottom) {
    for (int right = 0; right < 2; ++right) {
      cuts.back().panels[bottom][right] =
          &panel(key_of(bottom ? cut.last_rows() : cut.rows, right ? cut.last_cols() : cut.cols));
    }
  }
}

void ProductEngine::State::multiply() {
  tasks.clear();
  for (size_t begin = 0, end = 1; begin < cuts.size(); begin = end++) {
    const CutProduct& first = cuts[begin];
    while (end < cuts.size() && cuts[end].of.out.data == first.of.out.data) {
      ENSURE(cuts[end].m == first.m && cuts[end].n == first.n && cuts[end].rows == first.rows &&
             cuts[end].cols == first.cols);
      ++end;
    }
    for (int64_t i = 0; i < first.down(); ++i)
      for (int64_t j = 0; j < first.across(); ++j) tasks.push_back({begin, end, i, j});
  }
  pool.run(int64_t(tasks.size()), [&](int64_t number, int worker) {
    const PanelTask& task = tasks[size_t(number)];
    for (size_t product = task.begin; product < task.end; ++product)
      run(cuts[product], task.i, task.j, worker);
  });
}

void ProductEngine::State::run(const CutProduct& cut, int64_t i, int64_t j, int worker) {
  const ProductArguments& p = cut.of;
  const bool bottom = i == cut.down() - 1, at_right = j == cut.across() - 1;
  const int64_t col = j * cut.cols;
  void* right = p.right_transposed ? element(p.right, col, 0) : element(p.right, 0, col);
  if (cut.copied) {
    right = spread(p.right.columns(col, at_right ? cut.last_cols() : cut.cols)).data;
  }
  execute(p, *cut.panels[bottom][at_right], i * cut.rows, col, right, worker, streams[size_t(worker)]);
}

}  // namespace trainctl::kernels::cpu
