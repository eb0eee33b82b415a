#include "kernels/cuda/product.h"

#include <algorithm>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/scratch.h"
#include "runtime/base/error.h"

namespace trainctl::kernels::cuda {

namespace {

using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, decltype(&cublasLtMatrixLayoutDestroy)>;
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, decltype(&cublasLtMatmulDescDestroy)>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(&cublasLtMatmulPreferenceDestroy)>;

constexpr int64_t kAlignment = 16;
constexpr int kChoices = 8;   ///< the most algorithms that the heuristic may offer; the first that runs is used

cudaDataType_t cuda_type(DType dtype) {
  ENSURE(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

bool has_bias(cublasLtEpilogue_t e) { return (int(e) & int(CUBLASLT_EPILOGUE_BIAS)) != 0 || e == CUBLASLT_EPILOGUE_BGRADB; }
bool has_aux(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_DGELU;
}

/// A matrix of one row may have any stride; the library requires at least the length of a row.
int64_t stride_of(const Matrix& m) { return std::max(m.stride, m.cols); }

/// The stride with which an algorithm is chosen for all strides of an alignment class: the smallest of the
/// class.
Matrix with_class_stride(Matrix m, bool aligned) {
  const int64_t step = kAlignment / int64_t(size_of(m.dtype));
  m.stride = aligned ? (m.cols + step - 1) / step * step : m.cols | 1;
  return m;
}

bool is_aligned(const Product& p) {
  return stands_on_16_bytes(p.left) && stands_on_16_bytes(p.right) && stands_on_16_bytes(p.out) && (!p.aux || stands_on_16_bytes(p.aux));
}

}  // namespace

bool stands_on_16_bytes(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % kAlignment == 0 && stride_of(m) * int64_t(size_of(m.dtype)) % kAlignment == 0;
}

/// The library's view of one product: row-major [rows, cols] is column-major [cols, rows], so out = L R is computed as out' = R' L'.
struct ProductEngine::Plan {
  Plan(Layout a, Layout b, Layout d, Description description)
      : a(std::move(a)), b(std::move(b)), d(std::move(d)), description(std::move(description)) {}
  Layout a, b, d;   // right, left, out
  Description description;
  Choice choice;
};

namespace {

void check(const CublasLt& f, cublasStatus_t status, const char* op, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error(ErrorCode::kHardware, fmt::format("{}: {}: {}", op, call, f.status_name(status)));
}

std::string describe(const Product& p) {
  return fmt::format("[{}, {}]{} times [{}, {}]{} into [{}, {}], {} to {}, strides {}, {}, {}", p.left.rows, p.left.cols,
                     p.left_transposed ? " transposed" : "", p.right.rows, p.right.cols, p.right_transposed ? " transposed" : "", p.out.rows,
                     p.out.cols, name_of(p.left.dtype), name_of(p.out.dtype), p.left.stride, p.right.stride, p.out.stride);
}

Layout make_layout(const CublasLt& f, const Product& p, const Matrix& m) {
  cublasLtMatrixLayout_t made = nullptr;
  check(f, f.layout_create(&made, cuda_type(m.dtype), uint64_t(m.cols), uint64_t(m.rows), stride_of(m)), p.op, "cublasLtMatrixLayoutCreate");
  return Layout(made, f.layout_destroy);
}

template <typename Value>
void set(const CublasLt& f, const Product& p, const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(f, f.desc_set(description.get(), attribute, &value, sizeof(value)), p.op, "cublasLtMatmulDescSetAttribute");
}

void set_pointers(const CublasLt& f, const Product& p, const Description& description, const void* bias, const void* aux) {
  if (has_bias(p.epilogue)) set(f, p, description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (has_aux(p.epilogue)) set(f, p, description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
}

Description make_description(const CublasLt& f, const Product& p, bool tf32) {
  cublasLtMatmulDesc_t made = nullptr;
  const bool rounded = tf32 && p.left.dtype == DType::f32;
  check(f, f.desc_create(&made, rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F), p.op, "cublasLtMatmulDescCreate");
  Description description(made, f.desc_destroy);
  set(f, p, description, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(p.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(f, p, description, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(p.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(f, p, description, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(p.epilogue));
  if (has_aux(p.epilogue)) set(f, p, description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(stride_of(p.aux)));
  return description;
}

template <typename Value>
void prefer(const CublasLt& f, const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  check(f, f.preference_set(preference.get(), attribute, &value, sizeof(value)), "linear", "cublasLtMatmulPreferenceSetAttribute");
}

}  // namespace

ProductEngine::ProductEngine(bool tf32) : f_(cublaslt()), tf32_(tf32) { check(f_, f_.create(&handle_), "start", "cublasLtCreate"); }

ProductEngine::~ProductEngine() {
  plans_.clear();
  (void)f_.destroy(handle_);
}

std::unique_ptr<ProductEngine::Plan> ProductEngine::make_plan(const Product& p, const Choice* choice) const {
  auto plan = std::make_unique<Plan>(make_layout(f_, p, p.right), make_layout(f_, p, p.left), make_layout(f_, p, p.out),
                                     make_description(f_, p, tf32_));
  // The library derives alignment from these pointers; every plan passes the same values.
  const auto* placed = reinterpret_cast<const void*>(kAlignment);
  set_pointers(f_, p, plan->description, placed, placed);
  if (choice) plan->choice = *choice;
  return plan;
}

ProductEngine::Choice ProductEngine::choose(const Product& p, Plan& plan) const {
  cublasLtMatmulPreference_t made = nullptr;
  check(f_, f_.preference_create(&made), p.op, "cublasLtMatmulPreferenceCreate");
  const Preference preference(made, f_.preference_destroy);
  prefer(f_, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kProductWorkspaceBytes));
  // A second kernel adds split sums in f32, in order; they are never added in place as parts arrive, and
  // never in bf16.
  prefer(f_, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const bool aligned = is_aligned(p);
  const auto alignment = [&](const Matrix& m) { return aligned ? uint32_t(kAlignment) : uint32_t(size_of(m.dtype)); };
  prefer(f_, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.right));
  prefer(f_, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.left));
  prefer(f_, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.out));
  prefer(f_, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.out));
  cublasLtMatmulHeuristicResult_t offered[kChoices];
  int count = 0;
  const cublasStatus_t status = f_.heuristic(handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
                                             preference.get(), kChoices, offered, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(f_, status, p.op, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < (status == CUBLAS_STATUS_SUCCESS ? count : 0); ++i) {
    if (offered[i].state == CUBLAS_STATUS_SUCCESS && offered[i].workspaceSize <= kProductWorkspaceBytes) return {true, offered[i].algo};
  }
  return {};
}

bool ProductEngine::can_run(const Plan& plan) const {
  cublasLtMatmulHeuristicResult_t result{};
  return plan.choice.found &&
         f_.algo_check(handle_, plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(), &plan.choice.algorithm,
                       &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kProductWorkspaceBytes;
}

ProductEngine::Plan& ProductEngine::plan_of(const Product& p) {
  const bool aligned = is_aligned(p);
  const ShapeKey shape = {p.out.rows, p.out.cols, p.left_transposed ? p.left.rows : p.left.cols, int64_t(p.left_transposed),
                          int64_t(p.right_transposed), int64_t(p.left.dtype), int64_t(p.out.dtype), int64_t(p.epilogue), int64_t(aligned)};
  PlanKey key{};
  std::copy(shape.begin(), shape.end(), key.begin());
  std::copy_n(std::array{stride_of(p.left), stride_of(p.right), stride_of(p.out), p.aux ? stride_of(p.aux) : 0}.begin(), 4,
              key.begin() + shape.size());
  if (const auto known = plans_.find(key); known != plans_.end()) return *known->second;

  const auto [chosen, fresh] = choices_.try_emplace(shape);
  if (fresh) {
    Product same = p;
    for (Matrix* m : {&same.left, &same.right, &same.out, &same.aux}) *m = with_class_stride(*m, aligned);
    chosen->second = choose(same, *make_plan(same, nullptr));
  }
  auto plan = make_plan(p, &chosen->second);
  // An algorithm that refuses these strides is replaced for these strides only.
  if (chosen->second.found && !can_run(*plan)) plan->choice = choose(p, *plan);
  return *(plans_[key] = std::move(plan));
}

bool ProductEngine::multiply(cudaStream_t stream, const Product& p, void* workspace) {
  const Plan& plan = plan_of(p);
  if (!plan.choice.found) {
    if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
    throw Error(ErrorCode::kHardware, fmt::format("{}: cuBLASLt ({}) has no algorithm for {} on this GPU; try another version of it, named "
                                                  "in TRAINCTL_CUDA_LIBRARIES",
                                                  p.op, f_.path, describe(p)));
  }
  set_pointers(f_, p, plan.description, p.bias, p.aux.data);
  const float alpha = 1, beta = p.accumulate ? 1 : 0;
  const cublasStatus_t status =
      f_.matmul(handle_, plan.description.get(), &alpha, p.right.data, plan.a.get(), p.left.data, plan.b.get(), &beta, p.out.data,
                plan.d.get(), p.out.data, plan.d.get(), &plan.choice.algorithm, workspace, kProductWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  // A failure of earlier work may return any status here; the stream reports its cause.
  const cudaError_t state = cudaStreamQuery(stream);
  if (state != cudaSuccess && state != cudaErrorNotReady) throw_cuda_error(p.op, "cublasLtMatmul", state);
  throw Error(ErrorCode::kHardware, fmt::format("{}: cublasLtMatmul: {} for {}", p.op, f_.status_name(status), describe(p)));
}

}  // namespace trainctl::kernels::cuda
