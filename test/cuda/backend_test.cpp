// Goal: the CUDA backend fails in one sentence that says what to do, names the op that failed or those under way, takes memory once and
// exactly what is planned, and lets streams share its scratch.
// Method: an emulated GPU that fails on request; every op twice; counts of memory against the planned sizes.
#include <algorithm>
#include <cstdlib>

#include "kernels/cuda/ops.h"
#include "kernels/device.h"
#include "runtime/base/error.h"
#include "test/kernels/support.h"
#include "test/support/emulated_gpu/emulated_gpu.h"
#include "test/support/host_facing_backend.h"

namespace trainctl::kernels::test {

namespace {

using Catch::Matchers::Contains;

/// The sentence of the Error with this code that `work` throws; "" when it throws nothing.
template <typename Work>
std::string error_of(ErrorCode code, Work work) {
  try {
    work();
  } catch (const Error& e) {
    CHECK(e.code() == code);
    return e.what();
  }
  return "";
}

/// Every op that uses scratch, a product or a table, and some that use nothing, on device memory of its own.
class EveryOp {
 public:
  static constexpr int64_t B = 2, T = 48, M = B * T, C = 64, V = 80, H = 2;
  explicit EveryOp(Backend& backend) : backend_(backend), memory_(backend.allocate(size_t(kPieces * kPieceElements) * 4)) {}

  static ScratchShape shape() {
    return {.rows = M,
            .widest = C,
            .attention = {B, T, H, 1, C / H, 0.2f},
            .embedding_rows = V,
            .embedding_cols = C,
            .optimizer_elements = 2 * C * C,
            .optimizer_boxes = 2,
            .square_sums = {{3 * M * C, 3}}};
  }

  void run(Stream& s) {
    const auto activation = [&](int piece) { return matrix(at(piece), DType::bf16, M, C); };
    const auto row = [&](int piece) { return vector(at(piece), DType::f32, C); };
    const Matrix x = activation(0), y = activation(1), z = activation(2), w = matrix(at(3), DType::bf16, C, C), bias = row(4),
                 grad = matrix(at(5), DType::f32, C, C), table = matrix(at(6), DType::f32, V, C), half = activation(7).columns(0, C / H);
    auto* ids = static_cast<int32_t*>(at(8));
    auto* floats = static_cast<float*>(at(9));
    const auto packed = backend_.make_packed(C, C, DType::bf16);
    backend_.run(s, Pack{.w = w, .packed = packed.get()});
    backend_.run(s, Add{.src = x, .dst = y});
    backend_.run(s, LinearForward{.x = x, .w = packed.get(), .bias = bias, .y = y});
    backend_.run(s, LinearBackwardInput{.dy = y, .w = packed.get(), .dx = x});
    backend_.run(s, LinearGeluForward{.x = x, .w = packed.get(), .bias = bias, .pre = y, .y = z});
    backend_.run(s, LinearGeluBackwardInput{.dy = z, .w = packed.get(), .pre = y, .dx = x});
    backend_.run(s, LinearBackwardWeight{.dy = y, .x = x, .dw = grad, .dbias = bias, .accumulate = true});
    backend_.run(s, NormBackward{.kind = NormKind::layernorm, .dy = y, .x = x, .weight = bias,
                                 .stats = floats, .dx = z, .dweight = row(10), .dbias = row(11),
                                 .accumulate = true});
    backend_.run(s, AttentionBackward{.shape = shape().attention, .q = x, .k = half,
                                      .v = activation(12).columns(0, C / H), .out = y, .lse = floats,
                                      .dout = z, .dq = activation(13), .dk = activation(14).columns(0, C / H),
                                      .dv = activation(15).columns(0, C / H)});
    backend_.run(s, EmbeddingBackward{.ids = ids, .dout = x, .dtable = table});
    backend_.run(s, AddPositionBackward{.dx = x, .seq_len = T, .dtable = table, .positions = ids});
    backend_.run(s, GroupNormBackward{.dy = y,
                                      .x = x,
                                      .group = C / H,
                                      .count = C / H,
                                      .sums = floats,
                                      .dots = floats,
                                      .weight = bias.columns(0, C / H),
                                      .dx = z,
                                      .dweight = row(10).columns(0, C / H)});
    const UpdateBox boxes[] = {{f32(16), f32(17), f32(18), f32(5), C, w, 0.1f},
                               {f32(19), f32(20), f32(21), f32(5), C, w, 0.1f}};
    backend_.run(s, AdamW{.boxes = boxes, .step = {.lr = 1e-3f}});
    const Matrix grads[] = {grad, matrix(at(22), DType::f32, C, C)};
    const Matrix sections[] = {matrix(at(12), DType::f32, M, C), matrix(at(13), DType::f32, M, C),
                               matrix(at(14), DType::f32, M, C)};
    double sums[3], sum;
    backend_.run(s, SumSquares{.boxes = grads, .out = sums});
    backend_.run(s, SumSquares{.boxes = sections, .out = sums});
    backend_.run(s, Sum{.x = floats, .n = M, .out = &sum});
    s.synchronize();
  }

 private:
  static constexpr int kPieces = 23;
  static constexpr int64_t kPieceElements = M * C;
  void* at(int piece) { return static_cast<char*>(memory_->data()) + piece * kPieceElements * 4; }
  float* f32(int piece) { return static_cast<float*>(at(piece)); }
  Backend& backend_;
  std::unique_ptr<Buffer> memory_;
};

}  // namespace

TEST_CASE("a machine without a usable GPU says why, and what to do") {
  const auto problem = [](const emulated_gpu::Options& options, int device = 0) {
    emulated_gpu::reset(options);
    return error_of(ErrorCode::kPreflight, [&] { (void)make_cuda_backend({.device = device}); });
  };
  CHECK_THAT(problem({.devices = {}}), Contains("the NVIDIA driver sees no GPU") && Contains("nvidia-smi"));
  CHECK_THAT(problem({.devices = {{}, {}}}, 2), Contains("GPU 2 was asked for, but there are 2 here"));
  CHECK_THAT(problem({.devices = {{.name = "Emulated T4", .major = 7, .minor = 5}}}),
             Contains("GPU 0 (Emulated T4) has compute capability 7.5; trainctl needs 8.0"));
  CHECK(problem({}) == "");

  emulated_gpu::reset({.driver_version = 0});
  emulated_gpu::fail_call("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
  CHECK_THAT(cuda_status().problem, Contains("no NVIDIA driver is loaded here; install driver 580 or later"));
  CHECK_FALSE(cuda_status().driver_too_old);
  emulated_gpu::reset({.driver_version = 12020});
  CHECK_THAT(problem({.driver_version = 12020}), Contains("serves CUDA 12.2") && Contains("built with CUDA 13.0, needs driver 580 or later"));
  CHECK(cuda_status().driver_too_old);
  CHECK(cuda_status().devices == 0);
  emulated_gpu::reset({});
  CHECK(cuda_status().devices == 1);
  CHECK(cuda_status().problem == "");
  CHECK(gpu_facts(0).name == "Emulated H100");
  CHECK_THAT(error_of(ErrorCode::kPreflight, [] { (void)gpu_facts(1); }), Contains("GPU 1 was asked for"));
}

TEST_CASE("memory that is not there is refused with the numbers") {
  emulated_gpu::reset({.devices = {{.memory_bytes = size_t{64} << 20}}});
  const auto backend = make_cuda_backend({});
  const auto kept = backend->allocate(size_t{40} << 20);
  CHECK(backend->allocated_bytes() == size_t{40} << 20);
  const std::string sentence = error_of(ErrorCode::kHardware, [&] { (void)backend->allocate(size_t{40} << 20); });
  CHECK_THAT(sentence, Contains("cannot allocate 41943040 bytes on GPU 0") && Contains("41943040 are this process's") &&
                           Contains("use a smaller micro-batch"));
  CHECK(backend->allocated_bytes() == size_t{40} << 20);
  (void)backend->allocate(size_t{10} << 20);   // and the device goes on
  CHECK(backend->peak_allocated_bytes() == size_t{50} << 20);
}

TEST_CASE("a failure that is seen late names the ops under way; with check_each_op, the one") {
  for (const char* environment : {"", "1"}) {
    for (const bool check : {false, true}) {
      emulated_gpu::reset({});
      setenv("TRAINCTL_CUDA_CHECK", environment, 1);
      const auto backend = make_cuda_backend({.check_each_op = check});
      unsetenv("TRAINCTL_CUDA_CHECK");
      const auto stream = backend->create_stream();
      const auto memory = backend->allocate(4096);
      const Matrix x = matrix(memory->data(), DType::f32, 8, 64), y = matrix(memory->data(), DType::f32, 8, 64);
      backend->run(*stream, FillZero{.data = memory->data(), .size = 4096});
      stream->synchronize();
      emulated_gpu::fail_kernel("activation_forward", 1, cudaErrorIllegalAddress);
      const std::string sentence = error_of(ErrorCode::kHardware, [&] {
        backend->run(*stream, Add{.src = x, .dst = y});
        backend->run(*stream, Add{.src = x, .dst = y});
        backend->run(*stream, ActivationForward{.x = x, .y = y});
        backend->run(*stream, GatedForward{.gate = x, .up = x, .y = y});
        stream->synchronize();
      });
      if (check || *environment) {
        CHECK_THAT(sentence,
                   Catch::Matchers::StartsWith(
                       "activation_forward: cudaStreamSynchronize on GPU 0: cudaErrorIllegalAddress"));
        CHECK_THAT(sentence, !Contains("under way"));
      } else {
        CHECK_THAT(sentence,
                   Contains("add (2 times), activation_forward, gated_forward") && !Contains("fill_zero"));
        CHECK_THAT(sentence, Contains("on GPU 0: cudaErrorIllegalAddress") && Contains("TRAINCTL_CUDA_CHECK=1"));
      }
      // The context is lost: whatever comes next says so, too.
      CHECK_THAT(error_of(ErrorCode::kHardware, [&] { backend->run(*stream, Add{.src = x, .dst = y}); }),
                 Contains(" on GPU 0: cudaErrorIllegalAddress") && Contains("activation_forward"));
    }
  }
  emulated_gpu::reset({});
}

TEST_CASE("what only a broken device reports has a code of its own") {
  for (const auto& [error, code] : {std::pair{cudaErrorECCUncorrectable, ErrorCode::kDevice},
                                    std::pair{cudaErrorNvlinkUncorrectable, ErrorCode::kDevice},
                                    std::pair{cudaErrorLaunchFailure, ErrorCode::kHardware}}) {
    emulated_gpu::reset({});
    const auto backend = make_cuda_backend({});
    const auto stream = backend->create_stream();
    const auto memory = backend->allocate(4096);
    const Matrix x = matrix(memory->data(), DType::f32, 8, 64);
    emulated_gpu::fail_call("cudaLaunchKernelEx", 1, error);
    CHECK_THAT(error_of(code, [&] { backend->run(*stream, Add{.src = x, .dst = x}); }),
               Catch::Matchers::StartsWith("add: cudaLaunchKernelEx on GPU 0: "));
  }
  emulated_gpu::reset({});
}

TEST_CASE("a launch that fails at once names its op") {
  emulated_gpu::reset({});
  const auto backend = make_cuda_backend({});
  const auto stream = backend->create_stream();
  const auto memory = backend->allocate(4096);
  const Matrix x = matrix(memory->data(), DType::f32, 8, 64);
  emulated_gpu::fail_call("cudaLaunchKernelEx", 1, cudaErrorNoKernelImageForDevice);
  CHECK_THAT(error_of(ErrorCode::kHardware, [&] { backend->run(*stream, Add{.src = x, .dst = x}); }),
             Catch::Matchers::StartsWith("add: cudaLaunchKernelEx on GPU 0: cudaErrorNoKernelImageForDevice") &&
                 Contains("CMAKE_CUDA_ARCHITECTURES"));
  backend->run(*stream, Add{.src = x, .dst = x});
  stream->synchronize();
}

TEST_CASE("no op allocates once it has run with the same shapes") {
  emulated_gpu::reset({});
  const auto backend = make_cuda_backend({});
  const auto stream = backend->create_stream();
  EveryOp ops(*backend);
  const size_t before = backend->allocated_bytes();
  ops.run(*stream);
  const size_t after = backend->allocated_bytes();
  CHECK(after > before);
  emulated_gpu::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  ops.run(*stream);
  CHECK(backend->allocated_bytes() == after);
}

TEST_CASE("reserve_scratch takes what is planned, and ops of those shapes need nothing more") {
  emulated_gpu::reset({});
  const auto backend = make_cuda_backend({});
  const auto stream = backend->create_stream();
  EveryOp ops(*backend);
  const size_t before = backend->allocated_bytes();
  backend->reserve_scratch(EveryOp::shape());
  CHECK(backend->allocated_bytes() - before == cuda_scratch_bytes(EveryOp::shape()) + cuda_workspace_bytes());
  emulated_gpu::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  ops.run(*stream);
  emulated_gpu::reset({});
}

TEST_CASE("a table of tiles is never longer than planned") {
  Random random(81);
  for (int64_t rows : {1, 2, 3, 5, 17, 100, 777}) {
    for (int64_t cols : {1, 7, 64, 1000, 5462, 8193, 16384, 16385, 50257}) {
      const Matrix boxes[] = {matrix(nullptr, DType::f32, rows, cols), matrix(nullptr, DType::f32, cols, rows)};
      CHECK(int64_t(cuda::tiles_of(boxes).size()) <= cuda::most_tiles(2 * rows * cols, 2));
    }
  }
}

TEST_CASE("streams that use scratch in turn do not disturb each other") {
  Random random(82);
  const int64_t rows = 70, cols = 24;
  std::vector<Storage> dy, x;   // of each stream, so that scratch of the wrong one is seen
  for (int i = 0; i < 3; ++i) {
    dy.push_back(random.normal(DType::f32, rows, cols));
    x.push_back(random.normal(DType::f32, rows, cols));
  }
  std::vector<std::vector<char>> expected;
  for (const emulated_gpu::StreamMode mode :
       {emulated_gpu::StreamMode::eager, emulated_gpu::StreamMode::lazy, emulated_gpu::StreamMode::random}) {
    for (uint64_t seed = 1; seed <= (mode == emulated_gpu::StreamMode::random ? 8u : 1u); ++seed) {
      emulated_gpu::reset({.stream_mode = mode, .seed = seed});
      const auto backend = make_cuda_backend({});
      constexpr size_t kStreams = 3;
      std::vector<std::unique_ptr<Stream>> streams;
      std::vector<std::unique_ptr<Buffer>> memory;
      const size_t bytes = size_t(rows * cols) * 4;
      const auto view = [&](Buffer& b, size_t piece) { return matrix(static_cast<char*>(b.data()) + piece * bytes, DType::f32, rows, cols); };
      for (size_t i = 0; i < kStreams; ++i) {
        streams.push_back(backend->create_stream());
        memory.push_back(backend->allocate(3 * bytes));
        backend->copy_to_device(*streams.back(), view(*memory[i], 0).data, dy[i]->data, bytes);
        backend->copy_to_device(*streams.back(), view(*memory[i], 1).data, x[i]->data, bytes);
      }
      for (size_t i = 0; i < kStreams; ++i) {
        const Matrix dw = view(*memory[i], 2).row_range(0, cols), db = view(*memory[i], 2).row_range(cols, 1);
        backend->run(*streams[i], LinearBackwardWeight{.dy = view(*memory[i], 0), .x = view(*memory[i], 1),
                                                       .dw = dw, .dbias = db});
        if (i == 1) streams[i].reset();   // a stream may end before its work does
      }
      std::vector<std::vector<char>> got;
      for (size_t i = 0; i < kStreams; ++i) {
        std::vector<char> host(bytes);
        const auto reader = backend->create_stream();
        if (streams[i]) streams[i]->synchronize();
        else REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        backend->copy_to_host(*reader, host.data(), view(*memory[i], 2).data, bytes);
        reader->synchronize();
        got.push_back(host);
      }
      if (expected.empty()) expected = got;
      CHECK(got == expected);
    }
  }
  emulated_gpu::reset({});
}

TEST_CASE("a GPU's numerics name its architecture, its size and the library, without a context") {
  emulated_gpu::reset();
  CHECK(cuda_numerics(0) == "cuda sm_90 3 SMs cuBLASLt emulated");
  CHECK(make_cuda_backend({})->numerics() == cuda_numerics(0));
  CHECK_THAT(error_of(ErrorCode::kPreflight, [] { (void)cuda_numerics(7); }), Contains("GPU 7 was asked for"));
}

TEST_CASE("bias gradients by an epilogue of the product are the reference's, and dy is not read again") {
  emulated_gpu::reset();
  const auto cuda = make_host_facing(make_cuda_backend({.bias_gradients_by_product = true}));
  const auto on_gpu = cuda->create_stream(), on_host = reference().create_stream();
  Random random(71);
  for (const DType dtype : kActivationTypes) {
    for (const bool accumulate : {false, true}) {
      for (const int64_t n : {24, 31}) {   // 31: rows that do not begin on 16 bytes, where the epilogue is not asked for
        INFO(name_of(dtype) << ", accumulate " << accumulate << ", N " << n);
        const Storage dy = random.normal(dtype, 70, n, 0), x = random.normal(dtype, 70, 40, 0);
        Storage dw = random.normal(DType::f32, n, 40, 0), dbias = random.normal(DType::f32, 1, n, 0), dw_expected = dw,
                dbias_expected = dbias;
        const uint64_t passes = emulated_gpu::launches_of("column_sum");
        cuda->run(*on_gpu, LinearBackwardWeight{.dy = dy, .x = x, .dw = dw, .dbias = dbias,
                                                .accumulate = accumulate});
        reference().run(*on_host, LinearBackwardWeight{.dy = dy, .x = x, .dw = dw_expected,
                                                       .dbias = dbias_expected, .accumulate = accumulate});
        CHECK(relative_error(dw, dw_expected) < tolerance::kOpF32);
        CHECK(relative_error(dbias, dbias_expected) < tolerance::kOpF32);
        CHECK((emulated_gpu::launches_of("column_sum") == passes) == (n == 24));
      }
    }
  }
}

}  // namespace trainctl::kernels::test
