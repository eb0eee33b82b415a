#include "kernels/cpu/product.h"

#include <malloc.h>
#include <omp.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>

#include "kernels/cpu/product_cut.h"
#include "kernels/cpu/scratch.h"
#include "kernels/host_memory.h"
#include "runtime/base/error.h"

namespace trainctl::kernels::cpu {

namespace {

using Desc = dnnl::memory::desc;

/// The description of a panel: panels with equal keys run the same code. open: the primitive is for any number
/// of rows, or of a left_transposed product any depth, which are 0 here.
struct PanelKey {
  int64_t m, n, k;
  int64_t left_stride, right_stride, out_stride;
  DType dtype, out_dtype;
  bool left_transposed, right_transposed, accumulate, bias, open;
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

/// The arguments of a primitive, with new data pointers for each panel.
struct Arguments {
  dnnl::memory left, right, out, bias, scratchpad;
  std::unordered_map<int, dnnl::memory> map;
};

struct Panel {
  PanelKey key;
  dnnl::matmul primitive;
  Desc scratchpad;
  std::vector<Arguments> of_worker;  ///< none of an open panel
};

Desc bias_desc(int64_t n) { return {{1, n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab}; }

/// key: of the panel, where that is open with the sizes that it has this time.
Arguments make_arguments(const PanelKey& key, const Panel& panel, const dnnl::engine& engine) {
  Arguments a;
  a.left = dnnl::memory(matrix_desc(key.m, key.k, key.dtype, key.left_transposed, key.left_stride), engine,
                        nullptr);
  a.right = dnnl::memory(matrix_desc(key.k, key.n, key.dtype, key.right_transposed, key.right_stride), engine,
                         nullptr);
  a.out = dnnl::memory(matrix_desc(key.m, key.n, key.out_dtype, false, key.out_stride), engine, nullptr);
  a.scratchpad = dnnl::memory(panel.scratchpad, engine, nullptr);
  a.map = {{DNNL_ARG_SRC, a.left},
           {DNNL_ARG_WEIGHTS, a.right},
           {DNNL_ARG_DST, a.out},
           {DNNL_ARG_SCRATCHPAD, a.scratchpad}};
  if (key.bias) {
    a.bias = dnnl::memory(bias_desc(key.n), engine, nullptr);
    a.map.emplace(DNNL_ARG_BIAS, a.bias);
  }
  return a;
}

/// Row strides are left open when the primitive is made: oneDNN then chooses the one implementation that
/// packs its operands, whatever their strides, and the order of its sums depends on (m, n, k) alone.
Panel make_panel(const PanelKey& key, const dnnl::engine& engine, int workers) {
  constexpr int64_t kAny = DNNL_RUNTIME_DIM_VAL;
  const int64_t m = key.open && !key.left_transposed ? kAny : key.m,
                k = key.open && key.left_transposed ? kAny : key.k;
  const Desc left = matrix_desc(m, k, key.dtype, key.left_transposed, kAny);
  const Desc right = matrix_desc(k, key.n, key.dtype, key.right_transposed, kAny);
  const Desc out = matrix_desc(m, key.n, key.out_dtype, false, kAny);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto description = key.bias ? dnnl::matmul::desc(left, right, bias_desc(key.n), out)
                                    : dnnl::matmul::desc(left, right, out);
  const dnnl::matmul::primitive_desc made(description, attributes, engine);
  Panel panel{key, dnnl::matmul(made), made.scratchpad_desc(), {}};
  for (int worker = 0; worker < workers && !key.open; ++worker)
    panel.of_worker.push_back(make_arguments(key, panel, engine));
  return panel;
}

/// Whether each panel of `right` is copied before it is multiplied, because its rows share the sets of a
/// cache: weights lie as they are sent and saved, without a gap. Two AVX2 cores, the input gradient of GPT-2 124M's
/// mlp_down: 85 ms, copied 69. Larger panels are left as they are, for the sake of memory.
bool copies_right(const ProductArguments& p, const ProductCut& cut) {
  constexpr size_t kLargest = size_t(16) << 20;
  return !p.right_transposed && rows_share_cache_sets(p.right.dtype, p.right.stride) &&
         size_t(cut.of.k * cut.cols) * sizeof(float) <= kLargest;
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

/// A product and its panels: all are equally large, but those at the bottom and at the right and last parts.
/// Only the first part adds the bias.
struct CutProduct {
  ProductArguments of;
  ProductCut cut;
  bool copied = false;  ///< copies_right
  PanelKey key = {};    ///< of all panels, but for their sizes
  enum Part { first, other, last, kPartCount };
  Panel* panels[2][2][kPartCount] = {};  ///< [at the bottom][at the right][part]

  Part part_of(int64_t part) const { return part == 0 ? first : part == cut.parts() - 1 ? last : other; }
  PanelKey key_at(int64_t i, int64_t j, int64_t part) const {
    PanelKey at = key;
    at.m = cut.rows_at(i), at.n = cut.cols_at(j), at.k = cut.depth_at(part);
    at.bias = key.bias && part == 0;
    if (copied) at.right_stride = at.n + kGapOfRows;
    return at;
  }
};

/// A part of panel (i, j) of a product.
struct PanelTask {
  size_t product = 0;
  int64_t i = 0, j = 0, part = 0;
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
  State(ThreadPool& p, const KernelTable& k) : pool(p), kernels(k), engine(dnnl::engine::kind::cpu, 0) {
    for (int worker = 0; worker < p.threads(); ++worker) {
      streams.emplace_back(engine);
    }
  }

  Panel& panel(PanelKey key) {
    if (key.open)
      (key.left_transposed ? key.k : key.m) = key.left_stride = key.right_stride = key.out_stride = 0;
    auto found = panels.find(key);
    if (found == panels.end()) {
      found = panels.emplace(key, make_panel(key, engine, pool.threads())).first;
    }
    return found->second;
  }
  const ProductCut& cut_of(const ProductShape& shape) {
    auto found = cut_of_shape.find(shape);
    if (found == cut_of_shape.end()) found = cut_of_shape.emplace(shape, cut_product(shape)).first;
    return found->second;
  }

  void add(const ProductArguments& p);
  void multiply();
  void run(const CutProduct& product, const PanelTask& task, int worker);
  float* partial_of(const ProductCut& cut, const PanelTask& task);
  void finish(const CutProduct& product, const PanelTask& task);

  ThreadPool& pool;
  const KernelTable& kernels;
  dnnl::engine engine;
  std::vector<dnnl::stream> streams;
  std::map<PanelKey, Panel> panels;
  std::map<ProductShape, ProductCut> cut_of_shape;
  std::vector<CutProduct> products;  ///< that are being multiplied
  std::vector<PanelTask> tasks;
  // Of the product that is cut in k, which is multiplied alone: the partial sums of its panels, and how many of
  // each are there.
  std::unique_ptr<HostBuffer> partial;
  std::array<std::atomic<int64_t>, kMostPartialTasks> parts_done;
  std::mutex mutex;
};

std::string product_library() {
  const dnnl::version_t& version = *dnnl::version();
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const char* name = name_of(isa);
  return fmt::format("oneDNN {}.{}.{} {}", version.major, version.minor, version.patch,
                     name ? std::string(name) : fmt::format("isa {:#x}", unsigned(isa)));
}

ProductEngine::ProductEngine(ThreadPool& pool, const KernelTable& kernels) {
  keep_freed_memory();
  state_ = std::make_unique<State>(pool, kernels);
}
ProductEngine::~ProductEngine() = default;

namespace {

char* element(const Matrix& m, int64_t r, int64_t c) {
  return static_cast<char*>(m.data) + (r * m.stride + c) * int64_t(size_of(m.dtype));
}

/// Where a task begins in the operands; out: its results.
struct Operands {
  void *left, *right, *out;
  const float* bias;
};

void execute(const Panel& panel, Arguments& a, const Operands& at, dnnl::stream& stream) {
  omp_set_num_threads(1);  // of this thread: oneDNN must not split the panel further
  a.left.set_data_handle(at.left);
  a.right.set_data_handle(at.right);
  a.out.set_data_handle(at.out);
  if (panel.key.bias) a.bias.set_data_handle(const_cast<float*>(at.bias));
  a.scratchpad.set_data_handle(scratch(ScratchUse::product, panel.scratchpad.get_size()));
  panel.primitive.execute(stream, a.map);
  stream.wait();
}

}  // namespace

void ProductEngine::multiply(std::span<const ProductArguments> products) {
  std::lock_guard lock(state_->mutex);
  state_->products.clear();
  bool all_added = false;
  try {
    for (const ProductArguments& p : products) state_->add(p);
    all_added = true;
    state_->multiply();
  } catch (const dnnl::error& e) {
    const auto sizes = [](const CutProduct& p) {
      const ProductShape& s = p.cut.of;
      return fmt::format("[{}, {}] by [{}, {}] in {}", s.m, s.k, s.k, s.n, name_of(p.of.left.dtype));
    };
    throw Error(
        ErrorCode::kHardware,
        fmt::format("oneDNN failed to multiply {}{}: {} (status {})",
                    sizes(all_added ? state_->products.front() : state_->products.back()),
                    all_added && state_->products.size() > 1 ? " and others" : "", e.message, int(e.status)));
  }
}

void ProductEngine::State::add(const ProductArguments& p) {
  const ProductShape shape{.m = p.out.rows,
                           .n = p.out.cols,
                           .k = p.left_transposed ? p.left.rows : p.left.cols,
                           .left_transposed = p.left_transposed,
                           .right_transposed = p.right_transposed};
  if (shape.m == 0 || shape.n == 0) return;
  ENSURE(shape.k > 0, "a product [{}, {}] over nothing", shape.m, shape.n);
  CutProduct product{.of = p, .cut = p.one_of_many ? cut_coarsely(shape) : cut_of(shape)};
  const ProductCut& cut = product.cut;
  const bool whole = cut.parts() == 1;
  product.copied = copies_right(p, cut);
  product.key = {.left_stride = p.left.stride,
                 .right_stride = p.right.stride,
                 .out_stride = whole ? p.out.stride : cut.cols,
                 .dtype = p.left.dtype,
                 .out_dtype = whole ? p.out.dtype : DType::f32,
                 .left_transposed = p.left_transposed,
                 .right_transposed = p.right_transposed,
                 .accumulate = p.accumulate && whole,
                 .bias = p.bias != nullptr,
                 .open = p.one_of_many};
  products.push_back(product);  // an error names it
  omp_set_num_threads(1);       // oneDNN makes a primitive for as many threads as it sees here
  for (int bottom = 0; bottom < 2; ++bottom)
    for (int right = 0; right < 2; ++right)
      for (const int64_t part : {int64_t(0), std::min<int64_t>(1, cut.parts() - 1), cut.parts() - 1})
        products.back().panels[bottom][right][product.part_of(part)] =
            &panel(product.key_at(bottom ? cut.down() - 1 : 0, right ? cut.across() - 1 : 0, part));
}

void ProductEngine::State::multiply() {
  tasks.clear();
  for (size_t number = 0; number < products.size(); ++number) {
    const ProductCut& cut = products[number].cut;
    for (int64_t i = 0; i < cut.down(); ++i)
      for (int64_t j = 0; j < cut.across(); ++j)
        for (int64_t part = 0; part < cut.parts(); ++part) tasks.push_back({number, i, j, part});
  }
  if (!products.empty() && products.front().cut.parts() > 1) {
    const ProductCut& cut = products.front().cut;
    ENSURE(products.size() == 1 && cut.tasks() <= kMostPartialTasks, "{} products, {} tasks", products.size(),
           cut.tasks());
    if (!partial || partial->bytes() < cut.partial_bytes()) {
      partial.reset();
      partial = std::make_unique<HostBuffer>(cut.partial_bytes());
    }
    for (std::atomic<int64_t>& done : parts_done) done.store(0, std::memory_order_relaxed);
  }
  pool.run(int64_t(tasks.size()), [&](int64_t number, int worker) {
    const PanelTask& task = tasks[size_t(number)];
    run(products[task.product], task, worker);
  });
}

/// Where the partial sums of a task begin; those of the panel's other parts follow those of the first.
float* ProductEngine::State::partial_of(const ProductCut& cut, const PanelTask& task) {
  const int64_t panel = task.i * cut.across() + task.j;
  return static_cast<float*>(static_cast<Buffer&>(*partial).data()) +
         (panel * cut.parts() + task.part) * cut.rows * cut.cols;
}

void ProductEngine::State::run(const CutProduct& product, const PanelTask& task, int worker) {
  const ProductArguments& p = product.of;
  const ProductCut& cut = product.cut;
  const int64_t row = task.i * cut.rows, col = task.j * cut.cols, from = task.part * cut.depth;
  const bool bottom = task.i == cut.down() - 1, at_right = task.j == cut.across() - 1;
  Panel& panel = *product.panels[bottom][at_right][product.part_of(task.part)];
  Operands at{.left = p.left_transposed ? element(p.left, from, row) : element(p.left, row, from),
              .right = p.right_transposed ? element(p.right, col, from) : element(p.right, from, col),
              .out = element(p.out, row, col),
              .bias = p.bias + (p.bias ? col : 0)};
  if (cut.parts() > 1) at.out = partial_of(cut, task);
  if (product.copied)
    at.right =
        spread(p.right.row_range(from, cut.depth_at(task.part)).columns(col, cut.cols_at(task.j))).data;
  dnnl::stream& stream = streams[size_t(worker)];
  if (panel.key.open) {
    Arguments arguments = make_arguments(product.key_at(task.i, task.j, task.part), panel, engine);
    execute(panel, arguments, at, stream);
  } else {
    execute(panel, panel.of_worker[size_t(worker)], at, stream);
  }
  if (cut.parts() > 1) finish(product, task);
}

/// The thread with the last part of a panel adds all of them in their order.
void ProductEngine::State::finish(const CutProduct& product, const PanelTask& task) {
  const ProductCut& cut = product.cut;
  std::atomic<int64_t>& done = parts_done[size_t(task.i * cut.across() + task.j)];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < cut.parts()) return;
  kernels.sum_parts({.parts = partial_of(cut, {.i = task.i, .j = task.j}),
                     .count = cut.parts(),
                     .part_size = cut.rows * cut.cols,
                     .stride = cut.cols,
                     .out = product.of.out.row_range(task.i * cut.rows, cut.rows_at(task.i))
                                .columns(task.j * cut.cols, cut.cols_at(task.j)),
                     .accumulate = product.of.accumulate});
}

}  // namespace trainctl::kernels::cpu
