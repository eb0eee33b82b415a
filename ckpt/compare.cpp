// Statistics of the numbers of a checkpoint, and the differences between two checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ckpt/manifest.h"
#include "ckpt/values.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

using Key = std::pair<std::string, Role>;
using BoxKey = std::tuple<int64_t, int64_t, int64_t, int64_t>;

/// The chunks of each tensor with their content hashes, in order of box.
std::map<Key, std::map<BoxKey, uint64_t>> chunks_of(const Checkpoint& checkpoint) {
  std::map<Key, std::map<BoxKey, uint64_t>> result;
  for (const ShardReceipt& file : checkpoint.files())
    for (const ShardReceipt::Entry& entry : file.entries)
      result[{entry.tensor, entry.role}][{entry.box.row_begin, entry.box.col_begin, entry.box.row_end,
                                          entry.box.col_end}] = entry.content_hash;
  return result;
}

parallel::Box box_of(const BoxKey& key) {
  const auto [row_begin, col_begin, row_end, col_end] = key;
  return {row_begin, row_end, col_begin, col_end};
}

/// The boxes of the chunks of one tensor, in an order that does not depend on which ranks wrote them.
std::vector<parallel::Box> sorted_boxes(const Checkpoint& checkpoint, const Tensor& tensor) {
  std::vector<parallel::Box> boxes;
  for (const ShardReceipt& file : checkpoint.files())
    for (const ShardReceipt::Entry& entry : file.entries)
      if (entry.role == tensor.role && entry.tensor == tensor.name) boxes.push_back(entry.box);
  std::sort(boxes.begin(), boxes.end(), [](const parallel::Box& a, const parallel::Box& b) {
    return std::pair(a.row_begin, a.col_begin) < std::pair(b.row_begin, b.col_begin);
  });
  return boxes;
}

std::vector<std::byte> read_box(Checkpoint& checkpoint, const Tensor& tensor, const parallel::Box& box) {
  std::vector<std::byte> data(size_t(box.count()) * size_of(tensor.dtype));
  checkpoint.read(tensor.name, tensor.role, box, data.data());
  return data;
}

void compare_values(const Tensor& tensor, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                    Difference& difference) {
  if (a == b) return;
  const size_t item = size_of(tensor.dtype);
  std::vector<double> left(a.size() / item);
  visit_values(tensor.dtype, a, [&](size_t i, double value) { left[i] = value; });
  visit_values(tensor.dtype, b, [&](size_t i, double value) {
    if (std::memcmp(a.data() + i * item, b.data() + i * item, item) == 0) return;
    ++difference.differing;
    // Not finite on one side or both, and different bits: they have no distance.
    const double distance = std::isfinite(value) && std::isfinite(left[i]) ? std::abs(value - left[i]) : INFINITY;
    difference.max_abs = std::max(difference.max_abs, distance);
  });
}

Difference compare_tensor(Checkpoint& a, Checkpoint& b, const Tensor& tensor,
                          const std::map<BoxKey, uint64_t>& chunks_a,
                          const std::map<BoxKey, uint64_t>& chunks_b) {
  Difference difference{.tensor = tensor.name, .role = tensor.role, .what = DifferenceIn::values};
  for (const auto& [key, hash] : chunks_a) {
    const auto other = chunks_b.find(key);
    if (other != chunks_b.end() && other->second == hash) continue;
    compare_values(tensor, read_box(a, tensor, box_of(key)), read_box(b, tensor, box_of(key)), difference);
  }
  return difference;
}

}  // namespace

TensorStats stats(Checkpoint& checkpoint, const Tensor& tensor) {
  TensorStats result;
  double count = 0, mean = 0,
         squares = 0;  // of the finite values; squares: sum of squared distances from the mean
  for (const parallel::Box& box : sorted_boxes(checkpoint, tensor)) {
    double chunk_count = 0, sum = 0, chunk_squares = 0;
    const std::vector<std::byte> data = read_box(checkpoint, tensor, box);
    visit_values(tensor.dtype, data, [&](size_t, double value) {
      result.nan_values += std::isnan(value);
      result.infinite_values += std::isinf(value);
      result.zeros += value == 0;
      if (!std::isfinite(value)) return;
      ++chunk_count;
      sum += value;
      result.abs_max = std::max(result.abs_max, std::abs(value));
    });
    if (chunk_count == 0) continue;
    const double chunk_mean = sum / chunk_count;
    visit_values(tensor.dtype, data, [&](size_t, double value) {
      if (std::isfinite(value)) chunk_squares += (value - chunk_mean) * (value - chunk_mean);
    });
    // Chan, Golub, LeVeque: merging the moments of two sets.
    const double delta = chunk_mean - mean, total = count + chunk_count;
    squares += chunk_squares + delta * delta * count * chunk_count / total;
    mean += delta * chunk_count / total;
    count = total;
  }
  result.mean = mean;
  result.std = count > 0 ? std::sqrt(squares / count) : 0;
  return result;
}

std::vector<Difference> diff(Checkpoint& a, Checkpoint& b) {
  const auto chunks_a = chunks_of(a), chunks_b = chunks_of(b);
  std::map<Key, const Tensor*> in_a, in_b;
  for (const Tensor& tensor : a.tensors()) in_a[{tensor.name, tensor.role}] = &tensor;
  for (const Tensor& tensor : b.tensors()) in_b[{tensor.name, tensor.role}] = &tensor;
  std::vector<Difference> result;
  for (const Tensor& tensor : a.tensors()) {
    const Key key{tensor.name, tensor.role};
    const auto other = in_b.find(key);
    if (other == in_b.end())
      result.push_back({tensor.name, tensor.role, DifferenceIn::only_in_a});
    else if (other->second->shape != tensor.shape)
      result.push_back({tensor.name, tensor.role, DifferenceIn::shape});
    else if (other->second->dtype != tensor.dtype)
      result.push_back({tensor.name, tensor.role, DifferenceIn::dtype});
    else if (!chunks_a.count(key))
      continue;  // no elements, no chunks
    else if (Difference found = compare_tensor(a, b, tensor, chunks_a.at(key), chunks_b.at(key));
             found.differing > 0)
      result.push_back(std::move(found));
  }
  for (const Tensor& tensor : b.tensors())
    if (!in_a.count({tensor.name, tensor.role}))
      result.push_back({tensor.name, tensor.role, DifferenceIn::only_in_b});
  return result;
}

}  // namespace trainctl::ckpt
