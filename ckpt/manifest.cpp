#include "ckpt/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::f64: return "F64";
    case DType::i32: return "I32";
    case DType::u16: return "U16";
    case DType::u32: return "U32";
    case DType::i8: return "I8";
    case DType::u8: return "U8";
  }
  return "?";
}

auto box_key(const parallel::Box& box) {
  return std::tuple(box.row_begin, box.col_begin, box.row_end, box.col_end);
}

/// File order: widest elements first, so that all are naturally aligned; then name, role, box.
bool stands_before(const ShardReceipt::Entry& a, const ShardReceipt::Entry& b) {
  if (a.dtype != b.dtype)
    return std::tuple(-int(size_of(a.dtype)), a.dtype) < std::tuple(-int(size_of(b.dtype)), b.dtype);
  if (const int order = a.tensor.compare(b.tensor)) return order < 0;
  return std::tuple(a.role, box_key(a.box)) < std::tuple(b.role, box_key(b.box));
}

std::vector<SafetensorsEntry> safetensors_entries(const ShardReceipt& shard) {
  std::vector<SafetensorsEntry> result;
  for (const ShardReceipt::Entry& entry : shard.entries) {
    SafetensorsEntry row{.name = entry_name(entry), .dtype = safetensors_name(entry.dtype), .bytes = entry.bytes};
    row.shape = {entry.box.rows()};
    if (entry.shape.size() == 2) row.shape.push_back(entry.box.cols());
    result.push_back(std::move(row));
  }
  return result;
}

}  // namespace

parallel::Box whole_box(const std::vector<int64_t>& shape) {
  ENSURE(shape.size() == 1 || shape.size() == 2, "a tensor of {} dimensions", shape.size());
  return {0, shape[0], 0, shape.size() == 2 ? shape[1] : 1};
}

bool is_inside(const parallel::Box& inner, const parallel::Box& outer) {
  return outer.row_begin <= inner.row_begin && inner.row_begin <= inner.row_end && inner.row_end <= outer.row_end &&
         outer.col_begin <= inner.col_begin && inner.col_begin <= inner.col_end && inner.col_end <= outer.col_end;
}

std::string box_text(const std::vector<int64_t>& shape, const parallel::Box& box) {
  if (shape.size() == 1) return fmt::format("[{}:{}]", box.row_begin, box.row_end);
  return fmt::format("[{}:{},{}:{}]", box.row_begin, box.row_end, box.col_begin, box.col_end);
}

std::string tensor_text(const std::string& name, Role role) {
  return role == Role::master ? name : fmt::format("{} {}", name, name_of(role));
}

std::string chunk_text(const ShardReceipt::Entry& entry) {
  const std::string name = tensor_text(entry.tensor, entry.role);
  return entry.box == whole_box(entry.shape) ? name : fmt::format("{} {}", name, box_text(entry.shape, entry.box));
}

std::string entry_name(const ShardReceipt::Entry& entry) {
  std::string name = entry.tensor;
  if (entry.role != Role::master) name += fmt::format(".{}", name_of(entry.role));
  if (entry.box != whole_box(entry.shape)) name += box_text(entry.shape, entry.box);
  return name;
}

uint64_t identity_seed(const StateInfo& state, const std::string& tensor, Role role, const parallel::Box& box) {
  return xxh3(fmt::format("{}\n{}\n{}\n{}\n{},{},{},{}", state.run_id, state.step, tensor, name_of(role),
                          box.row_begin, box.row_end, box.col_begin, box.col_end));
}

std::string expected_header(const StateInfo& state, const ShardReceipt& shard) {
  return safetensors_header(safetensors_entries(shard),
                            {{"format", "pt"}, {"run_id", state.run_id}, {"step", std::to_string(state.step)}});
}

std::string lay_out_shard(const StateInfo& state, ShardReceipt& shard) {
  std::sort(shard.entries.begin(), shard.entries.end(), stands_before);
  for (ShardReceipt::Entry& entry : shard.entries) entry.bytes = uint64_t(entry.box.count()) * size_of(entry.dtype);
  const std::string header = expected_header(state, shard);
  shard.file_bytes = header.size();
  for (ShardReceipt::Entry& entry : shard.entries) {
    entry.offset = shard.file_bytes;
    shard.file_bytes += entry.bytes;
  }
  return header;
}

std::string root_hash(std::span<const ShardReceipt> files) {
  std::map<std::pair<std::string_view, Role>, std::vector<const ShardReceipt::Entry*>> tensors;
  for (const ShardReceipt& file : files)
    for (const ShardReceipt::Entry& entry : file.entries) tensors[{entry.tensor, entry.role}].push_back(&entry);
  std::string leaves;
  for (auto& [key, entries] : tensors) {
    std::sort(entries.begin(), entries.end(),
              [](const auto* a, const auto* b) { return box_key(a->box) < box_key(b->box); });
    std::string text = fmt::format("{}\n{}\n{}\n{}\n", key.first, name_of(key.second), name_of(entries[0]->dtype),
                                   fmt::join(entries[0]->shape, ","));
    for (const ShardReceipt::Entry* entry : entries) {
      const parallel::Box& box = entry->box;
      for (const int64_t edge : {box.row_begin, box.row_end, box.col_begin, box.col_end}) {
        const fmt::format_int number(edge);
        text.append(number.data(), number.size()) += ',';
      }
      text.back() = ' ';
      text.append(hex64(entry->content_hash)) += '\n';
    }
    leaves += sha256_hex(text) + "\n";
  }
  return sha256_hex(leaves);
}

}  // namespace trainctl::ckpt
