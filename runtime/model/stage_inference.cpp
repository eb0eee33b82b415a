// StageModel without training: the logits and losses of one sequence.
#include "runtime/model/stage_impl.h"

namespace trainctl {

void StageModel::forward_alone(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                               std::span<const int32_t> document_start) {
  Impl& m = *impl_;
  const size_t rows = size_t(m.shape.rows);
  ENSURE(m.uses.virtual_stages.size() == 1 && m.tp.size() == 1 && !tokens.empty() &&
         int64_t(tokens.size()) <= m.shape.seq_len && m.shape.rows >= m.shape.seq_len);
  PerField<std::vector<int32_t>> padded = padded_rows(tokens, targets, document_start, rows);
  const BatchRows read{.first = true, .last = true, .documents = !document_start.empty()};
  const size_t bytes = rows * sizeof(int32_t);
  const auto on_device = m.backend.allocate(bytes * std::size(kBatchRows));
  MicroBatch mb;
  for (const BatchRow& row : kBatchRows) {
    if (!read.has(row)) continue;
    char* const array = static_cast<char*>(on_device->data()) + bytes * size_t(row.field);
    m.backend.copy_to_device(m.stream, array, padded[row.field].data(), bytes);
    mb.arrays[row.field] = array;
  }
  const auto loss = m.backend.allocate_host(sizeof(double));
  for (int part = 0; part < parts(0); ++part) take_weights(0, part);
  forward(0, 0, mb, false, static_cast<double*>(loss->data()));
  m.stream.synchronize();
}

void StageModel::logits(std::span<const int32_t> tokens, int64_t first, std::span<float> logits) {
  Impl& m = *impl_;
  const int64_t rows = int64_t(tokens.size()) - first,
                v = int64_t(logits.size()) / std::max<int64_t>(1, rows);
  ENSURE(first >= 0 && rows > 0 && v * rows == int64_t(logits.size()));
  forward_alone(tokens, {}, {});
  m.take_logits(m.memory.shared.logits.columns(0, v).row_range(first, rows), logits);
}

void StageModel::logits_behind(std::span<const Behind> sequences, std::span<float> logits) {
  Impl& m = *impl_;
  ENSURE(m.uses.virtual_stages.size() == 1 && m.tp.size() == 1 && m.shape.micro_sequences == 1);
  std::vector<CachedRows> rows;
  std::vector<int32_t> ids, positions;
  for (const Behind& of : sequences) {
    const int64_t count = int64_t(of.tokens.size()), begin = of.cache->begin();
    ENSURE(count >= 1 && begin + count <= m.shape.seq_len, "{} tokens behind {}", count, begin);
    rows.push_back({of.cache, count});
    ids.insert(ids.end(), of.tokens.begin(), of.tokens.end());
    for (int64_t i = 0; i < count; ++i) positions.push_back(int32_t(begin + i));
  }
  ENSURE(!rows.empty() && int64_t(ids.size()) <= m.shape.rows, "{} tokens of {} sequences", ids.size(),
         rows.size());
  ids.insert(ids.end(), positions.begin(), positions.end());
  const auto on_device = m.backend.allocate(ids.size() * sizeof(int32_t));
  m.backend.copy_to_device(m.stream, on_device->data(), ids.data(), ids.size() * sizeof(int32_t));
  for (int part = 0; part < parts(0); ++part) take_weights(0, part);
  m.take_logits(m.forward_behind(rows, static_cast<const int32_t*>(on_device->data()),
                                 int64_t(logits.size() / rows.size())),
                logits);
}

std::vector<float> StageModel::losses(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                                      std::span<const int32_t> document_start) {
  Impl& m = *impl_;
  ENSURE(targets.size() == tokens.size() &&
         (document_start.empty() || document_start.size() == tokens.size()));
  forward_alone(tokens, targets, document_start);
  std::vector<float> losses(tokens.size());
  m.backend.copy_to_host(m.stream, losses.data(), m.memory.shared.loss, losses.size() * sizeof(float));
  m.stream.synchronize();
  for (size_t t = 0; t < losses.size(); ++t)
    if (targets[t] < 0) losses[t] = 0;
  return losses;
}

}  // namespace trainctl
