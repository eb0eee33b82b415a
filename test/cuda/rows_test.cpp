// Goal: copies, sums, norms, activations and bias gradients on the GPU are the reference's; their bits depend neither on alignment nor
// on the order of threads; nothing is written but the outputs.
// Method: each launcher on ragged shapes whose matrices are contiguous, columns of wider ones on 16 bytes, and columns off 16 bytes;
// poisoned outputs and scratch, several orders of threads.
#include "checked_op.h"

namespace trainctl::kernels::test {

TEST_CASE("copy by launchers converts any layout into any other") {
  Random random(1);
  for (DType from : kActivationTypes) {
    for (DType to : kActivationTypes) {
      for (const auto [rows, cols] : {Shape{1, 1}, {3, 31}, {65, 64}, {130, 97}, {1, 20001}}) {
        for (const bool flat_source : {false, true}) {
          Argument source = input(random.normal(from, rows, cols));
          source.contiguous = flat_source;
          check_op({source, poisoned(to, rows, cols, kExact)},
                   [](const Matrices& m) { return Copy{.src = m[0], .dst = m[1]}; });
        }
      }
    }
  }
}

TEST_CASE("copy keeps the bits of a NaN between equal types") {
  for (DType dtype : kActivationTypes) {
    Storage content(dtype, 1, 100, 0);
    auto* bytes = static_cast<unsigned char*>(content->data);
    for (size_t i = 0; i < 100 * size_of(dtype); ++i) bytes[i] = i % size_of(dtype) >= size_of(dtype) - 2 ? 0xff : 0x17;
    check_op({input(content), poisoned(dtype, 1, 100, kExact)},
             [](Backend&, Stream&, const Matrices& m) { std::memcpy(m[1].data, m[0].data, 100 * size_of(m[0].dtype)); },
             [](const Queue& q, const Matrices& m, void*) { cuda::enqueue(q, Copy{.src = m[0], .dst = m[1]}); });
  }
}

TEST_CASE("add by launchers rounds once") {
  Random random(2);
  for (DType dtype : kActivationTypes) {
    for (const auto [rows, cols] : kShapes) {
      check_op({input(random.normal(dtype, rows, cols)), {random.normal(dtype, rows, cols), kExact}},
               [](const Matrices& m) { return Add{.src = m[0], .dst = m[1]}; });
    }
  }
}

TEST_CASE("add_rounded by launchers rounds its operands to bf16, and the sum once") {
  Random random(4);
  for (DType in : kActivationTypes) {
    for (DType to : kActivationTypes) {
      for (const auto [rows, cols] : kShapes) {
        check_op(
            {input(random.normal(in, rows, cols)), input(random.normal(in, rows, cols)),
             poisoned(to, rows, cols, kExact)},
            [](const Matrices& m) { return AddRounded{.left = m[0], .right = m[1], .out = m[2]}; });
      }
    }
  }
}

TEST_CASE("tree_sum by launchers has the bits of the balanced tree") {
  Random random(3);
  std::vector<int> widths = {63, 64, 65, 300, cuda::kMostTreeInputs};
  for (int n = 1; n <= 20; ++n) widths.push_back(n);
  for (DType dtype : kActivationTypes) {
    for (const int n : widths) {
      for (const int onto : {-1, 0, n - 1}) {   // a matrix of its own, the first input, the last input
        INFO(n << " inputs onto " << onto);
        const int64_t count = n == 7 ? 2100 : 37;
        std::vector<Argument> arguments;
        for (int i = 0; i < n; ++i) {
          const float scale = std::pow(10.0f, float(i % 5) - 2.0f);
          arguments.push_back({random.normal(dtype, 1, count, 0, scale), i == onto ? kExact : kInput});
        }
        if (onto < 0) arguments.push_back(poisoned(dtype, 1, count, kExact));
        std::vector<const void*> inputs(size_t(n), nullptr);
        const size_t out = size_t(onto < 0 ? n : onto);
        check_op(arguments,
                 [&](const Matrices& m) {
                   for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = m[i].data;
                   return TreeSum{.inputs = inputs, .out = m[out].data, .dtype = dtype, .count = count};
                 },
                 {.seeds = 0});
      }
    }
  }
}

namespace {

const NormKind kNormKinds[] = {NormKind::rmsnorm, NormKind::layernorm};
/// Every way in which a row lies across threads, to the ones too long for registers (8192 and 16384 channels in bf16).
const Shape kNormShapes[] = {{1, 1},   {3, 31},   {65, 64},  {130, 97}, {33, 300}, {5, 768},
                             {3, 1000}, {2, 2056}, {35, 2500}, {1, 5000}, {34, 8300}, {2, 16500}};

}  // namespace

TEST_CASE("norm_forward and norm_apply by launchers are the reference's, and each other's bit for bit") {
  Random random(11);
  for (DType dtype : kActivationTypes) {
    for (NormKind kind : kNormKinds) {
      for (const auto [rows, cols] : kNormShapes) {
        for (const bool adds : {true, false}) {
          INFO("norm " << int(kind) << " adds " << adds);
          const double t = tolerance::of_op(dtype);
          const bool layernorm = kind == NormKind::layernorm;
          const std::vector<Argument> arguments = {
              input(random.normal(dtype, rows, cols, 0, 2.0f, 0.5f)), input(random.normal(dtype, rows, cols)),
              input(random.normal(DType::f32, 1, cols, 0, 0.2f, 1.0f)), input(random.normal(DType::f32, 1, cols)),
              poisoned(dtype, rows, cols, adds ? kExact : kInput), poisoned(dtype, rows, cols, t),
              contiguous(poisoned(DType::f32, rows, 2, tolerance::kOpF32)), poisoned(dtype, rows, cols, t)};
          check_op(arguments,
                   [&](Backend& b, Stream& s, const Matrices& m) {
                     const Matrix bias = layernorm ? m[3] : Matrix{}, delta = adds ? m[1] : Matrix{}, sum = adds ? m[4] : Matrix{};
                     b.run(s, NormForward{.kind = kind, .x = m[0], .delta = delta, .weight = m[2],
                                          .bias = bias, .eps = 1e-5f, .sum = sum, .y = m[5],
                                          .stats = m[6].as<float>()});
                     b.run(s, Copy{.src = m[5], .dst = m[7]});
                   },
                   [&](const Queue& q, const Matrices& m, void*) {
                     const Matrix bias = layernorm ? m[3] : Matrix{}, delta = adds ? m[1] : Matrix{}, sum = adds ? m[4] : Matrix{};
                     cuda::enqueue(q, NormForward{.kind = kind, .x = m[0], .delta = delta, .weight = m[2],
                                                  .bias = bias, .eps = 1e-5f, .sum = sum, .y = m[5],
                                                  .stats = m[6].as<float>()});
                     cuda::enqueue(q, NormApply{.kind = kind, .x = adds ? m[4] : m[0],
                                                .stats = m[6].as<float>(), .weight = m[2], .bias = bias,
                                                .y = m[7]});
                   },
                   {.same_bits = {{5, 7}}, .seeds = rows * cols < 10000 ? 1 : 0});
        }
      }
    }
  }
}

TEST_CASE("norm_backward by launchers is the reference's") {
  Random random(12);
  for (DType dtype : kActivationTypes) {
    for (NormKind kind : kNormKinds) {
      for (const auto [rows, cols] : kNormShapes) {
        for (const bool residual : {true, false}) {
          if (cols == 1 && !residual) continue;   // the exact gradient of one channel is 0: nothing but rounding
          const bool accumulate = residual;
          INFO("norm " << int(kind) << " residual " << residual);
          const double t = tolerance::of_op(dtype);
          const bool layernorm = kind == NormKind::layernorm;
          const Storage x = random.normal(dtype, rows, cols, 0, 2.0f, 0.5f), weight = random.normal(DType::f32, 1, cols, 0, 0.2f, 1.0f);
          Storage stats(DType::f32, rows, 2, 0), y = x;
          const auto stream = reference().create_stream();
          reference().run(*stream, NormForward{.kind = kind, .x = x, .weight = weight, .eps = 1e-5f, .y = y,
                                               .stats = stats.f32()});
          const std::vector<Argument> arguments = {
              input(random.normal(dtype, rows, cols)), input(x), input(weight), contiguous(input(stats)),
              input(random.normal(dtype, rows, cols)), poisoned(dtype, rows, cols, t),
              {random.normal(DType::f32, 1, cols), tolerance::kOpF32},
              {random.normal(DType::f32, 1, cols), layernorm ? tolerance::kOpF32 : kInput}};
          check_op(arguments,
                   [&](const Matrices& m) {
                     return NormBackward{.kind = kind, .dy = m[0], .x = m[1], .weight = m[2],
                                         .stats = m[3].as<const float>(),
                                         .dresidual = residual ? m[4] : Matrix{}, .dx = m[5], .dweight = m[6],
                                         .dbias = layernorm ? m[7] : Matrix{}, .accumulate = accumulate};
                   },
                   {.scratch_bytes = cuda::norm_backward_scratch(rows, cols), .seeds = rows * cols < 10000 ? 1 : 0});
        }
      }
    }
  }
}

TEST_CASE("norms by launchers work in place") {
  Random random(13);
  for (DType dtype : kActivationTypes) {
    for (const auto [rows, cols] : {Shape{9, 50}, {34, 1100}, {3, 16500}}) {
      const double t = tolerance::of_op(dtype);
      const std::vector<Argument> arguments = {
          {random.normal(dtype, rows, cols), kExact}, input(random.normal(dtype, rows, cols)),
          input(random.normal(DType::f32, 1, cols)),  poisoned(dtype, rows, cols, t),
          contiguous(poisoned(DType::f32, rows, 2, tolerance::kOpF32)), {random.normal(dtype, rows, cols), t},
          {random.normal(DType::f32, 1, cols), tolerance::kOpF32}};
      check_op(arguments,
               [](Backend& b, Stream& s, const Matrices& m) {
                 b.run(s, NormForward{.kind = NormKind::rmsnorm, .x = m[0], .delta = m[1], .weight = m[2],
                                      .eps = 1e-6f, .sum = m[0], .y = m[3], .stats = m[4].as<float>()});
                 b.run(s, NormBackward{.kind = NormKind::rmsnorm, .dy = m[1], .x = m[0], .weight = m[2],
                                       .stats = m[4].as<float>(), .dresidual = m[5], .dx = m[5],
                                       .dweight = m[6], .accumulate = true});
               },
               [](const Queue& q, const Matrices& m, void* scratch) {
                 cuda::enqueue(q, NormForward{.kind = NormKind::rmsnorm, .x = m[0], .delta = m[1],
                                              .weight = m[2], .eps = 1e-6f, .sum = m[0], .y = m[3],
                                              .stats = m[4].as<float>()});
                 cuda::enqueue(q, NormBackward{.kind = NormKind::rmsnorm, .dy = m[1], .x = m[0],
                                               .weight = m[2], .stats = m[4].as<float>(), .dresidual = m[5],
                                               .dx = m[5], .dweight = m[6], .accumulate = true}, scratch);
               },
               {.scratch_bytes = cuda::norm_backward_scratch(rows, cols), .seeds = 0});
    }
  }
}

TEST_CASE("activations and gates by launchers are the reference's") {
  Random random(31);
  for (DType dtype : kActivationTypes) {
    for (const auto [rows, cols] : kShapes) {
      const double t = tolerance::of_op(dtype);
      for (const int kind : {0, 1, 2, 3}) {  // of activations and of gates
        INFO("kind " << kind);
        const auto run = [&](const Matrices& m, auto each) {
          const auto activation = Activation(kind);
          const auto gate = Gate(kind);
          each(ActivationForward{.kind = activation, .x = m[0], .y = m[3]});
          each(GatedForward{.kind = gate, .gate = m[0], .up = m[1], .y = m[4], .limit = 1.5f, .alpha = 1.7f});
          each(GatedBackward{.kind = gate,
                             .gate = m[0],
                             .up = m[1],
                             .dy = m[2],
                             .dgate = m[5],
                             .dup = m[6],
                             .limit = 1.5f,
                             .alpha = 1.7f});
          each(ActivationBackward{.kind = activation, .x = m[0], .dy = m[7], .dx = m[7]});
          each(SigmoidGateForward{.x = m[1], .gate = m[0], .y = m[8]});
          each(SigmoidGateBackward{.x = m[1], .gate = m[0], .dy = m[2], .dx = m[9], .dgate = m[10]});
        };
        std::vector<Argument> arguments = {input(random.normal(dtype, rows, cols, 0, 2.0f)),
                                           input(random.normal(dtype, rows, cols)),
                                           input(random.normal(dtype, rows, cols))};
        for (int i = 3; i <= 10; ++i) arguments.push_back(poisoned(dtype, rows, cols, t));
        arguments[7] = {random.normal(dtype, rows, cols), t};
        check_op(
            arguments,
            [&](Backend& b, Stream& s, const Matrices& m) { run(m, [&](const auto& op) { b.run(s, op); }); },
            [&](const Queue& q, const Matrices& m, void*) {
              run(m, [&](const auto& op) { cuda::enqueue(q, op); });
            },
            {.seeds = 0});
      }
    }
  }
}

TEST_CASE("rope by launchers is the reference's, and its inverse") {
  Random random(41);
  for (DType dtype : kActivationTypes) {
    for (const auto& [head_dim, rotary_dim] :
         {std::pair{2, 2}, {6, 4}, {16, 16}, {64, 32}, {128, 128}, {20, 16}}) {
      for (const int64_t heads : {1, 3}) {
        for (const bool inverse : {false, true}) {
          for (const bool interleaved : {false, true}) {
            INFO(rotary_dim << " of " << head_dim << " interleaved " << interleaved);
            const int64_t rows = 37, seq_len = 11;
            check_op({{random.normal(dtype, rows, heads * head_dim), tolerance::of_op(dtype)},
                      contiguous(input(random.normal(DType::f32, seq_len, rotary_dim)))},
                     [&](const Matrices& m) {
                       return Rope{.x = m[0],
                                   .head_dim = head_dim,
                                   .seq_len = seq_len,
                                   .cos_sin = m[1].as<float>(),
                                   .inverse = inverse,
                                   .rotary_dim = rotary_dim,
                                   .interleaved = interleaved};
                     },
                     {.seeds = 0});
          }
        }
      }
    }
  }
}

TEST_CASE("column_sum by launchers is the bias gradient of the reference") {
  Random random(51);
  for (DType dtype : kActivationTypes) {
    for (const auto [rows, cols] : {Shape{1, 1}, {3, 31}, {128, 64}, {130, 300}, {300, 97}, {4300, 5}}) {
      for (const bool accumulate : {false, true}) {
        Storage x(dtype, rows, 1, 0), dw(DType::f32, cols, 1, 0);
        x.fill(1.0f);
        Argument dbias{random.normal(DType::f32, 1, cols), tolerance::kOpF32};
        if (!accumulate) dbias.content.fill(kPoison);
        check_op({input(random.normal(dtype, rows, cols)), dbias},
                 [&](Backend& b, Stream& s, const Matrices& m) {
                   b.run(s, LinearBackwardWeight{.dy = m[0], .x = x, .dw = dw, .dbias = m[1], .accumulate = accumulate});
                 },
                 [&](const Queue& q, const Matrices& m, void* scratch) { cuda::column_sum(q, m[0], m[1], accumulate, scratch); },
                 {.scratch_bytes = cuda::column_sum_scratch(rows, cols)});
      }
    }
  }
}

}  // namespace trainctl::kernels::test
