// How far a result may be from what a test expects, each with its reason. What must be equal is compared bit for bit, without any of
// these. A new number belongs here, with the reason why the result cannot be equal.
//
// Errors of ops are relative in the Frobenius norm, ||got - expected|| / ||expected||, against the reference backend, which adds in
// double precision. Errors of losses are absolute: a loss is about 5 at the start of a run.
#pragma once
#include "runtime/base/dtype.h"

namespace trainctl::test::tolerance {

// ---- ops against the reference backend
/// An f32 result: a few roundings of 6e-8 for each sum of some hundred terms.
inline constexpr double kOpF32 = 1e-5;
/// A bf16 result: each number is rounded to 8 bits, 4e-3.
inline constexpr double kOpBf16 = 1e-2;
/// An f16 result: to 11 bits, 5e-4; numbers below 2^-14 have fewer.
inline constexpr double kOpF16 = 1.5e-3;
inline double of_op(DType dtype) {
  return dtype == DType::f32 ? kOpF32 : dtype == DType::f16 ? kOpF16 : kOpBf16;
}
/// Statistics of a softmax joined from slices: three f32 operations a row, no long sum.
inline constexpr double kJoinedSlices = 1e-6;
/// Attention whose logits differ by hundreds: exp() turns a rounding of the logit, 100 * 6e-8, into a relative error of its weight, and
/// few weights carry the sum.
inline constexpr double kSharpAttention = 1e-3;
/// A sum of squares, or of numbers, in double precision: another order of at most 90,000 additions of 1e-16.
inline constexpr double kDoubleSum = 1e-12;
/// The same over boxes whose partial sums are joined in a tree: the roundings grow with its depth.
inline constexpr double kDoubleTreeSum = 1e-13;
/// The gradient of a weight without any row: zero, so what remains is an absolute error.
inline constexpr double kNoRows = 1e-9;
/// The gradient of the logits of a single class is zero: softmax is 1 up to a rounding of f32 and its factor 1/8.
inline constexpr double kZeroGradient = 1e-6;
/// The derivative of a saturated activation is zero or a subnormal.
inline constexpr double kSaturated = 1e-20;
/// A row of an embedding's gradient that adds 33 to 70 rows of normal numbers in another order.
inline constexpr double kEmbeddingRow = 1e-4;
/// A central difference with h = 1e-2 in f32: the curvature's h^2 = 1e-4 and a rounding of 6e-8 / h, times numbers of up to 3.
inline constexpr double kFiniteDifference = 2e-3;
/// An initial weight, relative, or the difference of two weights of up to 2: some roundings of f32.
inline constexpr double kInitialWeight = 1e-6;
/// No limit: for an output that is checked in another way.
inline constexpr double kUnchecked = 1e30;

/// A moment's code of at most 1: four roundings of f32.
inline constexpr double kMomentCode = 1e-6;
/// A stored moment is a neighbour of the computed one, which f32 and the test round, in steps of about 1 /
/// 128 of it.
inline constexpr double kMomentSteps = 1e-3;

/// Three updates by Muon in f32 against double: a rounding of 6e-8 in a small singular value grows by up to 3.4^5 = 485 in a step.
inline constexpr double kMuon = 1e-3;

// ---- the loss curve of a run
/// f32 on the CPU against PyTorch, or against another tensor-parallel width: sums of f32 in another order, over 20 steps.
inline constexpr double kLossF32 = 2e-4;
/// f32 on the GPU against PyTorch: in addition its exp and its order of additions.
inline constexpr double kLossGpuF32 = 5e-4;
/// f32 in another order of additions over at most four steps: CPU against GPU, sums by the transport.
inline constexpr double kLossFewSteps = 1e-4;
/// Experts in f32 cut over two tensor ranks or whole, relative: their products add in another order, over four steps.
inline constexpr double kLossWholeExperts = 1e-5;
/// bf16 keeps 8 bits of each number: the relative rounding of a logit is 2^-9, about 0.01 of a loss near 5; averaged over 256 targets
/// and 20 steps of drift the curves stay within 0.02.
inline constexpr double kLossBf16 = 0.02;
/// f16 keeps 11 bits of each number, an eighth of bf16's rounding; over 20 steps the curves stay within this.
inline constexpr double kLossF16 = 0.004;
/// Of the gradient norm of a first step, relative, under two loss scales: what f16 loses below 2^-14.
inline constexpr double kGradNormOfScales = 1e-4;
/// Of a loss whose products are in FP8, or of its gradients, relative.
inline constexpr double kLossFp8 = 0.02;
/// Of a share of 61,440 values drawn by chance: five times its deviation of 0.002.
inline constexpr double kShareDrawn = 0.01;
/// f32 with Muon against another tensor-parallel width, over 20 steps: the first five Newton-Schulz steps multiply a small singular value,
/// and the rounding in it, by up to 3.4^5 = 485.
inline constexpr double kLossMuonTensor = 2e-2;
/// The slope of log(change of the logits) over log(width) by muP, whose limit is 0: 0.02 to 0.06 with AdamW
/// at widths of 32 to 256; without muP it is above 1.
inline constexpr double kCoordinateSlope = 0.2;
/// A first step in f32 of a job drawn by chance, relative, against the reference or one tensor rank: sums
/// in another order in a few layers; the norm's gradients come through norms of few channels, which enlarge
/// a rounding.
inline constexpr double kFirstStepOfAny = 1e-5, kFirstNormOfAny = 2e-4;
/// The gradient norm of a run in f32, relative: a sum over all gradients, which differ by kGradient and drift over 20 steps.
inline constexpr double kGradNorm = 2e-3;
/// The gradients of the first step in f32 against PyTorch, relative, the worst tensor.
inline constexpr double kGradient = 1e-4;
/// The same three for the tiny models of each family (test/golden/blocks), over 12 steps. The worst seen are 5e-7,
/// 9e-6 and 4.5e-6, of norms whose inputs cancel.
inline constexpr double kBlockLoss = 5e-6, kBlockGradNorm = 3e-5, kBlockGradient = 1.5e-5;
/// Their logits before any step, of the largest one.
inline constexpr double kBlockLogits = 1e-5;
/// Logits of one token behind a cache of keys against those of the whole window: products of one row are
/// summed in another order.
inline constexpr double kCachedLogits = 1e-5;
/// A validation loss in f32 where micro-batches have other sizes: products are summed in another order.
inline constexpr double kLossOfSizes = 2e-6;
/// Losses of six steps on two tensor ranks against one, relative: a product's sum is cut.
inline constexpr double kLossOfWidths = 1e-5;
/// The parameters after 20 steps of AdamW: where a gradient is near zero, its sign decides the update.
inline constexpr double kFinalParameter = 5e-3;

// ---- formulas in double precision
/// One formula computed in two orders of a few operations.
inline constexpr double kFormula = 1e-12;
/// The learning rate of the golden curves, computed by Python with the same formula: the last bits of cos().
inline constexpr double kLearningRate = 1e-14;
/// A bias of an expert: a float of a number of about 1, less a mean.
inline constexpr double kQuantileBias = 1e-6;
/// One product: its last bit.
inline constexpr double kProduct = 1e-15;

/// A published number of six digits.
inline constexpr double kSixDigits = 1e-5;
/// Counts of samples against real shares of up to 2000.
inline constexpr double kShare = 1e-9;

// ---- measured against planned
/// Memory: pages, stacks and libraries are measured and not planned.
inline constexpr double kPlannedMemory = 0.05;
/// PMIx gives each rank two files of 4 MiB. Some kernels count what a rank touches of them (a few pages), others
/// (6.18 with large folios) all of it.
inline constexpr double kMappedFileBytes = 8 << 20;
/// The parts of a run's wall time against the whole.
inline constexpr double kWallTime = 0.001;
/// A sum of some hundred differences of times since 1970, in seconds.
inline constexpr double kUnixTimes = 1e-5;

// ---- times of a clock that the test winds; how late a tick notices something belongs to the test that ticks
/// Rounding of a sum of many small steps.
inline constexpr double kClockSumS = 1e-9;
/// Rounding of times that were written as text with six decimals, or wound on by 1e-6 s.
inline constexpr double kClockTextS = 1e-6;
/// What a clock that gains 1e-4 s in a second gains within the shortest of some round trips, of less than a
/// millisecond.
inline constexpr double kClockRounding = 1e-7;

// ---- predicted times
/// The bubble of a pipeline whose first and last stage have a small embedding, norm and head besides their layers.
inline constexpr double kStagesAlmostAlike = 0.06;
/// A time of 100,000 micro-batches from those of 1000: sums of doubles of different length.
inline constexpr double kExtrapolatedTime = 1e-6;
/// A number of a cluster file, which has six digits, in a corrected one.
inline constexpr double kClusterDigits = 1e-4;

}  // namespace trainctl::test::tolerance
