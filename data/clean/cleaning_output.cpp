#include "data/clean/cleaning_output.h"

#include <set>

#include "data/corpus/byte_stream.h"
#include "data/ordered_work.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

constexpr const char* kRemovedName = "removed.jsonl";
constexpr size_t kShownLeftOut = 10;

FileSystem& file_system_of(const CleaningOptions& options) {
  return options.file_system != nullptr ? *options.file_system : real_file_system();
}

}  // namespace

std::vector<std::string> output_names(const std::vector<std::string>& inputs, bool zstd) {
  const std::string ending = zstd ? ".jsonl.zst" : ".jsonl";
  std::set<std::string> taken{kRemovedName, "removed.jsonl.zst"};
  std::vector<std::string> names;
  for (const std::string& input : inputs) {
    std::string name = name_unpacked(input.substr(input.rfind('/') + 1));
    if (const size_t dot = name.rfind('.'); dot != name.npos && dot > 0) name.resize(dot);
    std::string unique = name + ending;
    for (int n = 2; !taken.insert(unique).second; ++n) unique = fmt::format("{}-{}{}", name, n, ending);
    names.push_back(unique);
  }
  return names;
}

CleaningOutput::CleaningOutput(const CleaningOptions& options, std::vector<std::string> reasons)
    : fs_(file_system_of(options)),
      options_(options),
      folder_(fs_, options.out),
      names_(output_names(options.corpus.files, options.zstd)),
      removed_(fs_, folder_ / kRemovedName, 0) {
  std::string out = options.out;
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  result_.out = out;
  result_.removed_file = out + "/" + kRemovedName;
  for (std::string& name : reasons) result_.reasons.push_back({.name = std::move(name)});
  for (size_t i = 0; i < names_.size(); ++i)
    result_.files.push_back({.input = options.corpus.files[i], .output = out + "/" + names_[i]});
}

void CleaningOutput::go_to(size_t file) {
  while (next_file_ <= file) {
    if (writer_) writer_->complete();
    const int zstd_threads = options_.zstd ? thread_count(options_.threads) : 0;
    writer_ = std::make_unique<LineWriter>(fs_, folder_ / names_[next_file_++], zstd_threads);
  }
}

void CleaningOutput::keep(const CleanedRecord& record) {
  go_to(record.file);
  writer_->add(record.line);
  ++result_.files[record.file].documents;
  ++result_.files[record.file].kept;
  ++result_.documents;
  ++result_.kept;
  result_.text_bytes += record.text_bytes;
  result_.kept_text_bytes += record.text_bytes;
  result_.replaced_documents += record.is_replaced;
}

void CleaningOutput::remove(const CleanedRecord& record, const Removal& why) {
  CleaningResult::Reason& reason = result_.reasons[why.reason];
  removed_.add(fmt::format(R"({{"file":{},"{}":{},"{}":{},"reason":"{}"{}}})",
                           json_string(options_.corpus.files[record.file]), record.unit, record.number,
                           record.unit == "row" ? "index" : "offset", record.offset, reason.name,
                           why.details));
  ++reason.documents;
  reason.text_bytes += record.text_bytes;
  ++result_.files[record.file].documents;
  ++result_.documents;
  result_.text_bytes += record.text_bytes;
}

void CleaningOutput::leave_out(const LeftOut& record) {
  removed_.add(fmt::format(R"({{"place":{},"reason":"unreadable","why":{}}})", json_string(record.place),
                           json_string(record.why)));
  ++result_.left_out_count;
  if (result_.left_out.size() < kShownLeftOut) result_.left_out.push_back(record);
}

CleaningResult CleaningOutput::publish() {
  go_to(names_.size() - 1);
  writer_->complete();
  removed_.complete();
  folder_.publish();
  return std::move(result_);
}

}  // namespace trainctl::data
