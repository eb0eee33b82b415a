// The emulated cuBLASLt: checks descriptions as the real one does, and more strictly, then multiplies by plain loops on the stream.
//
// Sums are in f32, in order of the inner dimension, so that a product's bits depend on its operands alone. An algorithm remembers what
// it was chosen for; given other types, another epilogue or less alignment, it is refused. Where the caller allows sums in order of
// arrival, the first algorithm offered takes the liberty: every call of it gives other bits.
#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda/cublaslt.h"
#include "runtime/base/dtype.h"
#include "test/support/emulated_gpu/machine.h"

struct EmulatedLtHandle {};
struct EmulatedLtLayout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
};
struct EmulatedLtDescription {
  cublasComputeType_t compute;
  int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
};
struct EmulatedLtPreference {
  uint64_t workspace = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};   // of a, b, c, d
};

namespace trainctl::emulated_gpu {
namespace {

constexpr size_t kWorkspaceUsed = 64 << 10;
constexpr uint64_t kAlignment = 16;

/// What an algorithm was chosen for, in the words of cublasLtMatmulAlgo_t::data.
enum Word { kAligned, kTypes, kEpilogue, kInOrderOfArrival, kWords };

struct Operands {
  const EmulatedLtDescription& desc;
  const EmulatedLtLayout &a, &b, &c, &d;

  int64_t m() const { return desc.transposed_a ? a.cols : a.rows; }
  int64_t n() const { return desc.transposed_b ? b.rows : b.cols; }
  int64_t k() const { return desc.transposed_a ? a.rows : a.cols; }
  bool sums_b() const { return desc.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
  bool has_bias() const { return desc.epilogue == CUBLASLT_EPILOGUE_BIAS || desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  bool writes_aux() const { return desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
  bool reads_aux() const { return desc.epilogue == CUBLASLT_EPILOGUE_DGELU; }
  uint64_t types() const { return uint64_t(a.type) << 16 | uint64_t(d.type) << 8 | uint64_t(desc.compute); }
};

uint64_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }
bool stands_on(const void* p, uint64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }
bool rows_stand_on(const EmulatedLtLayout& x, uint64_t bytes) { return uint64_t(x.ld) * size_of(x.type) % bytes == 0; }

cublasStatus_t check(const Operands& o) {
  const auto well_formed = [](const EmulatedLtLayout& x) { return x.rows > 0 && x.cols > 0 && x.ld >= x.rows; };
  if (!well_formed(o.a) || !well_formed(o.b) || !well_formed(o.c) || !well_formed(o.d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (o.k() != (o.desc.transposed_b ? o.b.cols : o.b.rows)) return CUBLAS_STATUS_INVALID_VALUE;
  if (o.d.rows != o.m() || o.d.cols != o.n() || o.c.rows != o.m() || o.c.cols != o.n()) return CUBLAS_STATUS_INVALID_VALUE;
  const bool bias = o.has_bias() || o.sums_b();
  if (bias && !stands_on(o.desc.bias, kAlignment)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (bias && !o.desc.bias) return CUBLAS_STATUS_INVALID_VALUE;
  const bool gelu = o.writes_aux() || o.reads_aux();
  if (gelu && (!o.desc.aux || o.desc.aux_ld % 8 != 0 || o.desc.aux_ld < o.m())) return CUBLAS_STATUS_INVALID_VALUE;
  if (gelu && (o.d.type != CUDA_R_16BF || !stands_on(o.desc.aux, kAlignment))) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (o.a.type != o.b.type || o.c.type != o.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (o.d.type != CUDA_R_32F && o.d.type != o.a.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (o.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && o.a.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// The rules for running an algorithm on these operands, as far as layouts tell.
cublasStatus_t check_algorithm(const Operands& o, const cublasLtMatmulAlgo_t& algo) {
  if (const cublasStatus_t status = check(o); status != CUBLAS_STATUS_SUCCESS) return status;
  if (algo.data[kTypes] != o.types() || algo.data[kEpilogue] != o.desc.epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const EmulatedLtLayout* x : {&o.a, &o.b, &o.c, &o.d})
    if (algo.data[kAligned] && !rows_stand_on(*x, kAlignment)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

float round_to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&x, &bits, 4);
  return x;
}

float load(cudaDataType_t type, const void* p, int64_t i) {
  return type == CUDA_R_32F ? static_cast<const float*>(p)[i] : float(static_cast<const bf16*>(p)[i]);
}
void store(cudaDataType_t type, void* p, int64_t i, float x) {
  if (type == CUDA_R_32F) static_cast<float*>(p)[i] = x;
  else static_cast<bf16*>(p)[i] = bf16(x);
}

/// x [rows, cols] column-major with op applied, as f32 [cols][rows].
std::vector<float> widened(const EmulatedLtLayout& x, const void* p, bool transposed, bool tf32) {
  const int64_t rows = transposed ? x.cols : x.rows, cols = transposed ? x.rows : x.cols;
  std::vector<float> wide(size_t(rows * cols));
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r) {
      const float value = load(x.type, p, transposed ? r * x.ld + c : c * x.ld + r);
      wide[size_t(c * rows + r)] = tf32 ? round_to_tf32(value) : value;
    }
  return wide;
}

constexpr float kGeluScale = 0.7978845608028654f, kGeluCube = 0.044715f;
float gelu(float x) { return 0.5f * x * (1 + std::tanh(kGeluScale * (x + kGeluCube * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(kGeluScale * (x + kGeluCube * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCube * x * x);
}

/// Where the host reaches all of x.
template <typename T>
T* reach(T* p, const EmulatedLtLayout& x) {
  return alias(p, uint64_t((x.cols - 1) * x.ld + x.rows) * size_of(x.type));
}

struct Call {
  EmulatedLtDescription desc;
  EmulatedLtLayout a_layout, b_layout, d_layout;
  const void *a, *b;
  void *d, *workspace;
  float alpha, beta, wobble;
};

void multiply(const Call& call) {
  const EmulatedLtLayout &al = call.a_layout, &bl = call.b_layout, &dl = call.d_layout;
  const Operands o{call.desc, al, bl, dl, dl};
  const int64_t m = o.m(), n = o.n(), k = o.k();
  std::memset(alias(call.workspace, kWorkspaceUsed), kGarbage, kWorkspaceUsed);   // the caller's to lend: it holds nothing of value
  const bool tf32 = o.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<float> left = widened(al, reach(call.a, al), o.desc.transposed_a, tf32);    // [k][m]
  const std::vector<float> right = widened(bl, reach(call.b, bl), o.desc.transposed_b, tf32);   // [n][k]
  void* const out = reach(call.d, dl);
  const void* const bias = o.has_bias() ? alias(o.desc.bias, uint64_t(m) * size_of(dl.type)) : nullptr;
  void* const aux = o.writes_aux() || o.reads_aux() ? reach(o.desc.aux, {dl.type, m, n, o.desc.aux_ld}) : nullptr;
  void* const sums_of_b = o.sums_b() ? alias(const_cast<void*>(o.desc.bias), uint64_t(n) * size_of(dl.type)) : nullptr;
  std::vector<float> sum(static_cast<size_t>(m));
  for (int64_t col = 0; col < n; ++col) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    if (sums_of_b) {   // overwritten, whatever beta is
      float total = 0;
      for (int64_t i = 0; i < k; ++i) total += right[size_t(col * k + i)];
      store(dl.type, sums_of_b, col, total);
    }
    for (int64_t i = 0; i < k; ++i) {
      const float factor = right[size_t(col * k + i)];
      const float* from = left.data() + i * m;
      for (int64_t row = 0; row < m; ++row) sum[size_t(row)] += from[row] * factor;
    }
    for (int64_t row = 0; row < m; ++row) {
      const int64_t at = col * dl.ld + row, aux_at = col * o.desc.aux_ld + row;
      float x = call.alpha * sum[size_t(row)] * call.wobble;
      if (call.beta != 0) x += call.beta * load(dl.type, out, at);
      if (o.has_bias()) x += load(dl.type, bias, row);
      if (o.writes_aux()) {
        store(dl.type, aux, aux_at, x);
        x = gelu(x);
      }
      if (o.reads_aux()) x *= gelu_slope(load(dl.type, aux, aux_at));
      store(dl.type, out, at, x);
    }
  }
}

template <typename T>
bool take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(&to, value, bytes);
  return true;
}
cublasStatus_t taken(bool ok) { return ok ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE; }

}  // namespace
}  // namespace trainctl::emulated_gpu

using namespace trainctl::emulated_gpu;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new EmulatedLtHandle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = new EmulatedLtLayout{type, int64_t(rows), int64_t(cols), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *desc = new EmulatedLtDescription{.compute = compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return taken(take(desc->transposed_a, value, bytes));
    case CUBLASLT_MATMUL_DESC_TRANSB: return taken(take(desc->transposed_b, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return taken(take(desc->epilogue, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return taken(take(desc->bias, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return taken(take(desc->aux, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return taken(take(desc->aux_ld, value, bytes));
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedLtPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return taken(take(preference->workspace, value, bytes));
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return taken(take(preference->schemes, value, bytes));
    default: return taken(take(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes));
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  const Operands o{*desc, *a, *b, *c, *d};
  if (const cublasStatus_t status = check(o); status != CUBLAS_STATUS_SUCCESS) return status;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (preference->workspace < kWorkspaceUsed) return CUBLAS_STATUS_NOT_SUPPORTED;
  bool aligned = true;
  const EmulatedLtLayout* layouts[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) aligned = aligned && preference->alignment[i] >= kAlignment && rows_stand_on(*layouts[i], kAlignment);
  const bool of_arrival = (preference->schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0;
  results[0] = {};
  uint64_t* words = results[0].algo.data;
  words[kAligned] = aligned;
  words[kTypes] = o.types();
  words[kEpilogue] = desc->epilogue;
  words[kInOrderOfArrival] = of_arrival;
  results[0].workspaceSize = kWorkspaceUsed;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  result->workspaceSize = kWorkspaceUsed;
  return check_algorithm({*desc, *a, *b, *c, *d}, *algo);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Operands o{*desc, *a_layout, *b_layout, *c_layout, *d_layout};
  if (const cublasStatus_t status = check_algorithm(o, *algo); status != CUBLAS_STATUS_SUCCESS) return status;
  if (workspace_bytes < kWorkspaceUsed || !workspace || !stands_on(workspace, 256) || !stream) return CUBLAS_STATUS_INVALID_VALUE;
  if (c != d || c_layout->ld != d_layout->ld) return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t needed = algo->data[kAligned] ? kAlignment : 1;
  for (const auto& [p, layout] : {std::pair{a, a_layout}, {b, b_layout}, {static_cast<const void*>(d), d_layout}})
    if (!p || !stands_on(p, std::max(needed, size_of(layout->type)))) return CUBLAS_STATUS_INVALID_VALUE;
  static std::atomic<unsigned> calls{0};
  const float wobble = algo->data[kInOrderOfArrival] ? 1.0f + 1e-6f * float(++calls % 64) : 1.0f;
  const Call call{*desc, *a_layout, *b_layout, *d_layout, a, b, d, workspace, *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta), wobble};
  note_kernel(device_of(stream), fmt::format("cublasLtMatmul {} x {} x {}, transposed {} {}, types {:x}, epilogue {}, aligned {}", o.m(),
                                             o.n(), o.k(), desc->transposed_a, desc->transposed_b, o.types(), desc->epilogue,
                                             algo->data[kAligned]));
  const bool given = enqueue(stream, {.name = "cublasLtMatmul", .run = [call] { multiply(call); }}) == cudaSuccess;
  return given ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

namespace trainctl::kernels::cuda {

const CublasLt& cublaslt() {
  static const CublasLt functions = {.create = cublasLtCreate,
                                     .destroy = cublasLtDestroy,
                                     .status_name = cublasLtGetStatusName,
                                     .layout_create = cublasLtMatrixLayoutCreate,
                                     .layout_destroy = cublasLtMatrixLayoutDestroy,
                                     .desc_create = cublasLtMatmulDescCreate,
                                     .desc_destroy = cublasLtMatmulDescDestroy,
                                     .desc_set = cublasLtMatmulDescSetAttribute,
                                     .preference_create = cublasLtMatmulPreferenceCreate,
                                     .preference_destroy = cublasLtMatmulPreferenceDestroy,
                                     .preference_set = cublasLtMatmulPreferenceSetAttribute,
                                     .heuristic = cublasLtMatmulAlgoGetHeuristic,
                                     .algo_check = cublasLtMatmulAlgoCheck,
                                     .matmul = cublasLtMatmul,
                                     .path = "the emulated cuBLASLt",
                                     .version = "emulated"};
  return functions;
}

}  // namespace trainctl::kernels::cuda
