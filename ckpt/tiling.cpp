// Checks that the written chunks tile every tensor exactly.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "ckpt/fail.h"
#include "ckpt/manifest.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

struct Written {
  parallel::Box box;
  const ShardReceipt* file = nullptr;
};

/// Whether the chunks are bands of rows from top to bottom, each cut into columns from left to right, as the
/// grids of parallel::chunk_grid are. Sorts them.
bool tiles_in_bands(const parallel::Box& whole, std::vector<Written>& chunks) {
  std::stable_sort(chunks.begin(), chunks.end(), [](const Written& a, const Written& b) {
    return std::pair(a.box.row_begin, a.box.col_begin) < std::pair(b.box.row_begin, b.box.col_begin);
  });
  int64_t row = whole.row_begin;
  for (auto chunk = chunks.begin(); chunk != chunks.end();) {
    const parallel::Box band = chunk->box;
    if (band.row_begin != row || band.rows() <= 0) return false;
    int64_t column = whole.col_begin;
    for (; chunk != chunks.end() && chunk->box.row_begin == row; ++chunk) {
      if (chunk->box.row_end != band.row_end || chunk->box.col_begin != column || chunk->box.cols() <= 0)
        return false;
      column = chunk->box.col_end;
    }
    if (column != whole.col_end) return false;
    row = band.row_end;
  }
  return row == whole.row_end;
}

/// Sweeps down the rows. Between two neighbouring row cuts the open boxes, in order of column, must touch without gap.
void check_tensor(const Tensor& tensor, std::vector<Written>& chunks) {
  const parallel::Box whole = whole_box(tensor.shape);
  if (tiles_in_bands(whole, chunks)) return;
  std::map<int64_t, std::vector<const Written*>> begins, ends;
  std::set<int64_t> cuts{whole.row_begin, whole.row_end};
  for (const Written& chunk : chunks) {
    if (!is_inside(chunk.box, whole))
      fail(fmt::format("{} writes {} of {}, which reaches beyond the tensor's {}", chunk.file->file,
                       box_text(tensor.shape, chunk.box), tensor_text(tensor.name, tensor.role),
                       box_text(tensor.shape, whole)));
    if (chunk.box.count() == 0) continue;
    begins[chunk.box.row_begin].push_back(&chunk);
    ends[chunk.box.row_end].push_back(&chunk);
    cuts.insert({chunk.box.row_begin, chunk.box.row_end});
  }
  const auto by_column = [](const Written* a, const Written* b) { return a->box.col_begin < b->box.col_begin; };
  std::multiset<const Written*, decltype(by_column)> open(by_column);
  for (auto cut = cuts.begin(); *cut != whole.row_end; ++cut) {
    for (const Written* chunk : ends[*cut]) {
      auto [at, last] = open.equal_range(chunk);
      open.erase(std::find(at, last, chunk));
    }
    for (const Written* chunk : begins[*cut]) open.insert(chunk);
    int64_t column = whole.col_begin;
    const Written* before = nullptr;
    for (const Written* chunk : open) {
      if (chunk->box.col_begin < column)
        fail(fmt::format("{} and {} both write row {}, column {} of {}", before->file->file,
                         chunk->file->file, *cut, chunk->box.col_begin,
                         tensor_text(tensor.name, tensor.role)));
      if (chunk->box.col_begin > column) break;
      column = chunk->box.col_end;
      before = chunk;
    }
    if (column < whole.col_end)
      fail(fmt::format("no shard writes row {}, column {} of {}", *cut, column,
                       tensor_text(tensor.name, tensor.role)));
  }
}

}  // namespace

void check_tiling(std::span<const Tensor> tensors, std::span<const ShardReceipt> files) {
  struct Known {
    const Tensor* tensor;
    std::vector<Written> chunks;
  };
  std::map<std::pair<std::string_view, Role>, Known> known;
  for (const Tensor& tensor : tensors)
    if (!known.try_emplace({tensor.name, tensor.role}, Known{&tensor, {}}).second)
      fail(fmt::format("{} is listed twice", tensor_text(tensor.name, tensor.role)));
  for (const ShardReceipt& file : files)
    for (const ShardReceipt::Entry& entry : file.entries) {
      const auto found = known.find({entry.tensor, entry.role});
      if (found == known.end())
        fail(fmt::format("{} holds {}, which is no tensor of this checkpoint", file.file,
                         tensor_text(entry.tensor, entry.role)));
      const Tensor& tensor = *found->second.tensor;
      if (tensor.dtype != entry.dtype || tensor.shape != entry.shape)
        fail(fmt::format("{} holds {} as {} [{}], but the checkpoint has it as {} [{}]", file.file,
                         tensor_text(entry.tensor, entry.role), name_of(entry.dtype), fmt::join(entry.shape, ","),
                         name_of(tensor.dtype), fmt::join(tensor.shape, ",")));
      found->second.chunks.push_back({entry.box, &file});
    }
  for (const Tensor& tensor : tensors) check_tensor(tensor, known.at({tensor.name, tensor.role}).chunks);
}

}  // namespace trainctl::ckpt
