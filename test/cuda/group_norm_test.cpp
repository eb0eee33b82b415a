// Goal: norms of groups of columns on the GPU are the reference's; their bits depend neither on alignment nor on the order of threads;
// nothing is written but the outputs.
// Method: groups of one lane to groups of several packs a lane, in every layout.
#include "checked_op.h"

namespace trainctl::kernels::test {

TEST_CASE("norms of groups by launchers are the reference's") {
  Random random(14);
  struct GroupShape {
    int64_t rows, groups, group;
  };
  for (DType dtype : kActivationTypes) {
    // from one lane a group to all, and to groups of several packs a lane; more groups than a block sums
    for (const auto [rows, groups, group] :
         {GroupShape{3, 2, 2}, {7, 3, 31}, {65, 5, 64}, {40, 2, 128}, {4, 3, 97}, {3, 1, 1000}}) {
      for (const bool accumulate : {false, true}) {
        INFO(groups << " groups of " << group);
        const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
        const int64_t cols = groups * group, count = 2 * group;
        const Storage x = random.normal(dtype, rows, cols, 0, 2.0f, 0.5f);
        Storage sums(DType::f32, rows, groups, 0), dots = sums;
        const Storage dy = random.normal(dtype, rows, cols),
                      weight = random.normal(DType::f32, 1, group, 0, 0.2f, 1.0f);
        const auto stream = reference().create_stream();
        reference().run(*stream, GroupNormSums{.x = x, .group = group, .count = count, .sums = sums.f32()});
        reference().run(
            *stream,
            GroupNormDots{
                .dy = dy, .x = x, .group = group, .count = count, .weight = weight, .dots = dots.f32()});
        check_op(
            {input(x), input(dy), input(weight), contiguous(poisoned(DType::f32, rows, groups, f)),
             contiguous(poisoned(DType::f32, rows, groups, f)), poisoned(dtype, rows, cols, t)},
            [&](Backend& b, Stream& s, const Matrices& m) {
              b.run(s, GroupNormSums{.x = m[0], .group = group, .count = count, .sums = m[3].as<float>()});
              b.run(s, GroupNormDots{.dy = m[1],
                                     .x = m[0],
                                     .group = group,
                                     .count = count,
                                     .weight = m[2],
                                     .weight_offset = 1.0f,
                                     .dots = m[4].as<float>()});
              b.run(s, GroupNormApply{.x = m[0],
                                      .group = group,
                                      .count = count,
                                      .sums = m[3].as<float>(),
                                      .weight = m[2],
                                      .weight_offset = 1.0f,
                                      .eps = 1e-5f,
                                      .y = m[5]});
            },
            [&](const Queue& q, const Matrices& m, void*) {
              cuda::enqueue(
                  q, GroupNormSums{.x = m[0], .group = group, .count = count, .sums = m[3].as<float>()});
              cuda::enqueue(q, GroupNormDots{.dy = m[1],
                                             .x = m[0],
                                             .group = group,
                                             .count = count,
                                             .weight = m[2],
                                             .weight_offset = 1.0f,
                                             .dots = m[4].as<float>()});
              cuda::enqueue(q, GroupNormApply{.x = m[0],
                                              .group = group,
                                              .count = count,
                                              .sums = m[3].as<float>(),
                                              .weight = m[2],
                                              .weight_offset = 1.0f,
                                              .eps = 1e-5f,
                                              .y = m[5]});
            });
        check_op({input(dy),
                  input(x),
                  input(weight),
                  contiguous(input(sums)),
                  contiguous(input(dots)),
                  poisoned(dtype, rows, cols, t),
                  {random.normal(DType::f32, 1, group), f}},
                 [&](const Matrices& m) {
                   return GroupNormBackward{.dy = m[0],
                                            .x = m[1],
                                            .group = group,
                                            .count = count,
                                            .sums = m[3].as<const float>(),
                                            .dots = m[4].as<const float>(),
                                            .weight = m[2],
                                            .eps = 1e-5f,
                                            .dx = m[5],
                                            .dweight = m[6],
                                            .accumulate = accumulate};
                 },
                 {.scratch_bytes = cuda::group_norm_backward_scratch(rows, cols, group)});
      }
    }
  }
}

}  // namespace trainctl::kernels::test
