// A batch as rows: the arrays that belong to its tokens. A stage of the pipeline has those that it reads;
// all of them are made from samples where they are read, and none travels between stages.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/model/sublayers/rows_place.h"
#include "runtime/spec/fields/model_spec.h"

namespace trainctl {

/// mtp_*: of the modules of multi-token prediction, kMostMtpLayers of each one after another.
enum class BatchField : uint8_t {
  tokens,
  targets,
  document_start,
  positions,
  weights,
  mtp_tokens,
  mtp_targets = mtp_tokens + kMostMtpLayers,
  mtp_weights = mtp_targets + kMostMtpLayers
};
/// That of module `i`, from 0. first: mtp_tokens, mtp_targets or mtp_weights.
constexpr BatchField mtp_field(BatchField first, size_t i) { return BatchField(size_t(first) + i); }
/// Who reads a row: the stage with the embedding, the one with the head, or all stages, of jobs that mask
/// documents only, of jobs that do or cut sequences; the one with the head, of jobs that weigh targets only.
enum class ReadBy : uint8_t { first, last, all_of_documents, all_of_positions, last_of_weights };

/// What a row is made of: a token more than the sequence.
struct SampleTokens {
  std::span<const int32_t> tokens;
  /// As of data::Dataset::sample; empty where documents are ignored.
  std::span<const int32_t> document_start = {};
  std::span<const uint8_t> weights = {};  ///< as of data::Dataset::sample; empty: each target counts once
  bool counts_boundaries = false;         ///< data.count_boundary_targets
  /// How much the target of token t counts; 0 where it is of the next document.
  int weight(size_t t) const {
    const bool inside =
        document_start.empty() || counts_boundaries || document_start[t + 1] != int32_t(t + 1);
    return !inside ? 0 : weights.empty() ? 1 : weights[t + 1];
  }
  /// How much the target of module d = 1.. counts at token t, which is token t + d + 1; 0 where the sequence
  /// or the document of token t ends before. Where the boundaries of documents count, what the module has
  /// seen, up to token t + d, must be of the document, and the target need not.
  int weight(size_t t, size_t d) const {
    const size_t target = t + d + 1;
    if (target >= tokens.size()) return 0;
    const size_t last = counts_boundaries ? t + d : target;
    if (!document_start.empty() && document_start[last] > int32_t(t)) return 0;
    return weights.empty() ? 1 : weights[target];
  }
};

/// One array, with an element for each token.
struct BatchRow {
  BatchField field;
  DType dtype;
  ReadBy read_by;
  /// Writes its elements of one sample.
  void (*fill)(const SampleTokens& sample, int32_t* out);
  int mtp = 0;  ///< of module 1.. of multi-token prediction; 0: of none
};

/// The rows of module d. A token ahead that the sequence does not have is the last one: no target depends on
/// it.
template <size_t d>
void fill_mtp_tokens(const SampleTokens& sample, int32_t* out) {
  const size_t last = sample.tokens.size() - 1;
  for (size_t t = 0; t < last; ++t) out[t] = sample.tokens[std::min(t + d, last)];
}
template <size_t d>
void fill_mtp_targets(const SampleTokens& sample, int32_t* out) {
  for (size_t t = 0; t + 1 < sample.tokens.size(); ++t)
    out[t] = sample.weight(t, d) > 0 ? sample.tokens[t + d + 1] : -1;
}
template <size_t d>
void fill_mtp_weights(const SampleTokens& sample, int32_t* out) {
  for (size_t t = 0; t + 1 < sample.tokens.size(); ++t)
    out[t] = std::bit_cast<int32_t>(float(sample.weight(t, d)));
}
inline constexpr BatchRow kMtpRows[] = {
    {BatchField::mtp_tokens, DType::i32, ReadBy::last, fill_mtp_tokens<1>, 1},
    {mtp_field(BatchField::mtp_tokens, 1), DType::i32, ReadBy::last, fill_mtp_tokens<2>, 2},
    {mtp_field(BatchField::mtp_tokens, 2), DType::i32, ReadBy::last, fill_mtp_tokens<3>, 3},
    {mtp_field(BatchField::mtp_tokens, 3), DType::i32, ReadBy::last, fill_mtp_tokens<4>, 4},
    {BatchField::mtp_targets, DType::i32, ReadBy::last, fill_mtp_targets<1>, 1},
    {mtp_field(BatchField::mtp_targets, 1), DType::i32, ReadBy::last, fill_mtp_targets<2>, 2},
    {mtp_field(BatchField::mtp_targets, 2), DType::i32, ReadBy::last, fill_mtp_targets<3>, 3},
    {mtp_field(BatchField::mtp_targets, 3), DType::i32, ReadBy::last, fill_mtp_targets<4>, 4},
    {BatchField::mtp_weights, DType::f32, ReadBy::last_of_weights, fill_mtp_weights<1>, 1},
    {mtp_field(BatchField::mtp_weights, 1), DType::f32, ReadBy::last_of_weights, fill_mtp_weights<2>, 2},
    {mtp_field(BatchField::mtp_weights, 2), DType::f32, ReadBy::last_of_weights, fill_mtp_weights<3>, 3},
    {mtp_field(BatchField::mtp_weights, 3), DType::f32, ReadBy::last_of_weights, fill_mtp_weights<4>, 4}};
static_assert(std::size(kMtpRows) == 3 * kMostMtpLayers);

/// A target below 0 has no loss; weights multiply the loss of a target. document_start and positions: of each
/// token the first one of the sequence that is of its document, and how many are between.
inline constexpr BatchRow kModelRows[] = {
    {BatchField::tokens, DType::i32, ReadBy::first,
     [](const SampleTokens& sample, int32_t* out) {
       std::copy(sample.tokens.begin(), sample.tokens.end() - 1, out);
     }},
    {BatchField::targets, DType::i32, ReadBy::last,
     [](const SampleTokens& sample, int32_t* out) {
       for (size_t t = 0; t + 1 < sample.tokens.size(); ++t)
         out[t] = sample.weight(t) > 0 ? sample.tokens[t + 1] : -1;
     }},
    {BatchField::document_start, DType::i32, ReadBy::all_of_documents,
     [](const SampleTokens& sample, int32_t* out) {
       std::copy(sample.document_start.begin(), sample.document_start.end() - 1, out);
     }},
    {BatchField::positions, DType::i32, ReadBy::all_of_positions,
     [](const SampleTokens& sample, int32_t* out) {
       for (size_t t = 0; t + 1 < sample.tokens.size(); ++t)
         out[t] = int32_t(t) - (sample.document_start.empty() ? 0 : sample.document_start[t]);
     }},
    {BatchField::weights, DType::f32, ReadBy::last_of_weights, [](const SampleTokens& sample, int32_t* out) {
       for (size_t t = 0; t + 1 < sample.tokens.size(); ++t)
         out[t] = std::bit_cast<int32_t>(float(sample.weight(t)));
     }}};
inline constexpr auto kBatchRows = [] {
  std::array<BatchRow, std::size(kModelRows) + std::size(kMtpRows)> rows{};
  std::copy(std::begin(kModelRows), std::end(kModelRows), rows.begin());
  std::copy(std::begin(kMtpRows), std::end(kMtpRows), rows.begin() + std::size(kModelRows));
  return rows;
}();

/// A value for each field.
template <typename T>
class PerField {
 public:
  T& operator[](BatchField field) { return values_[size_t(field)]; }
  const T& operator[](BatchField field) const { return values_[size_t(field)]; }

 private:
  std::array<T, std::size(kBatchRows)> values_{};
};

/// The rows that a rank reads.
struct BatchRows {
  bool first = false, last = false;  ///< it has the first virtual stage; the last
  bool documents = false;            ///< the job masks documents
  bool cuts = false;                 ///< it cuts sequences (parallelism.context_blocks)
  bool weights = false;              ///< the job weighs targets
  int mtp = 0;                       ///< modules of multi-token prediction
  bool has(const BatchRow& row) const {
    if (row.mtp > mtp) return false;
    switch (row.read_by) {
      case ReadBy::first: return first;
      case ReadBy::last: return last;
      case ReadBy::all_of_documents: return documents;
      case ReadBy::all_of_positions: return documents || cuts;
      case ReadBy::last_of_weights: return last && weights;
    }
    return false;
  }
  bool empty() const { return bytes_per_token() == 0; }
  size_t bytes_per_token() const {
    size_t bytes = 0;
    for (const BatchRow& row : kBatchRows) bytes += has(row) ? size_of(row.dtype) : 0;
    return bytes;
  }
};

/// Those of a batch of tasks: several texts in a sequence, each a document. Modules of multi-token prediction
/// do not see them.
inline BatchRows task_rows(BatchRows rows) {
  rows.documents = true;
  rows.mtp = 0;
  return rows;
}

/// A micro-batch of this rank: its number in the step, and its lane among the rank's lanes; with context
/// blocks the lane of its first block, and the others follow it.
struct MicroBatch {
  int index = 0, lane = 0;
  bool first_of_lane = true, last_of_lane = true;
  bool counts = true;  ///< it is of the step (StepCut::counted_micro_batches_of)
  /// Device [M], of the rows that the rank reads; unchanged until backward is done.
  PerField<const void*> arrays = {};
  float loss_scale = 1;  ///< a factor of every loss in its gradients, a power of two
  /// Of the loss of each module's target in its gradients, with loss_scale; see TargetCounts.
  std::array<float, kMostMtpLayers> mtp_scale = {};
  RowsPlace rows = {};
  const int32_t* ids(BatchField field) const { return static_cast<const int32_t*>(arrays[field]); }
  /// Of the loss of each target; null: each counts once.
  const float* weights() const { return static_cast<const float*>(arrays[BatchField::weights]); }
};

/// The rows of a micro-batch of `size` tokens that begins with this sequence. Behind it come documents of one
/// token, without targets. document_start: empty where the sequence is one document.
inline PerField<std::vector<int32_t>> padded_rows(std::span<const int32_t> tokens,
                                                  std::span<const int32_t> targets,
                                                  std::span<const int32_t> document_start, size_t size) {
  PerField<std::vector<int32_t>> rows;
  rows[BatchField::tokens].assign(size, 0);
  rows[BatchField::targets].assign(size, -1);
  rows[BatchField::positions].resize(size);
  std::vector<int32_t>& starts = rows[BatchField::document_start];
  for (size_t t = 0; t < size; ++t) starts.push_back(t < tokens.size() ? 0 : int32_t(t));
  std::copy(tokens.begin(), tokens.end(), rows[BatchField::tokens].begin());
  std::copy(targets.begin(), targets.end(), rows[BatchField::targets].begin());
  std::copy(document_start.begin(), document_start.end(), starts.begin());
  for (size_t t = 0; t < size; ++t) rows[BatchField::positions][t] = int32_t(t) - starts[t];
  return rows;
}

/// Sets all rows to one array of i32, which is so long: for passes whose values do not matter.
/// documents, weights: also those of jobs that mask documents, that weigh targets.
inline MicroBatch with_ids(MicroBatch mb, const int32_t* ids, bool documents = false, bool weights = false,
                           bool cuts = false) {
  const BatchRows rows{.first = true,
                       .last = true,
                       .documents = documents,
                       .cuts = cuts,
                       .weights = weights,
                       .mtp = kMostMtpLayers};
  for (const BatchRow& row : kBatchRows)
    if (rows.has(row)) mb.arrays[row.field] = ids;
  return mb;
}

}  // namespace trainctl
