#include "runtime/observe/clean_report.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr size_t kShownFiles = 20;

std::string share_text(uint64_t part, uint64_t whole) {
  return fmt::format("{:.1f} %", whole == 0 ? 0 : 100 * double(part) / double(whole));
}

OrderedJson json_of(const data::CleaningResult& r) {
  OrderedJson left_out = OrderedJson::array(), reasons = OrderedJson::array(), files = OrderedJson::array();
  for (const auto& record : r.left_out) left_out.push_back({{"place", record.place}, {"why", record.why}});
  for (const auto& reason : r.reasons)
    reasons.push_back(
        {{"reason", reason.name}, {"documents", reason.documents}, {"text_bytes", reason.text_bytes}});
  for (const auto& file : r.files)
    files.push_back(
        {{"input", file.input}, {"output", file.output}, {"documents", file.documents}, {"kept", file.kept}});
  return {{"v", 1},
          {"out", r.out},
          {"removed_file", r.removed_file},
          {"documents", r.documents},
          {"kept", r.kept},
          {"removed", r.removed()},
          {"text_bytes", r.text_bytes},
          {"kept_text_bytes", r.kept_text_bytes},
          {"empty_documents", r.empty_documents},
          {"replaced_documents", r.replaced_documents},
          {"left_out_records", r.left_out_count},
          {"left_out", left_out},
          {"reasons", reasons},
          {"files", files},
          {"seconds", r.seconds}};
}

std::string warning_of(const data::Mix::Row& row) {
  return fmt::format(
      "{} is read {:.1f} times; above {:g} epochs, repeated tokens are worth much less than new ones: "
      "lower its weight or the budget, or add text",
      row.source.name, row.epochs, data::kGoodEpochs);
}

}  // namespace

std::string render_cleaning(const data::CleaningResult& r, bool json) {
  if (json) return dump_json(json_of(r)) + "\n";
  std::string text = fmt::format("kept       {} of {}, {} of {} of text ({})\n", tally_text(r.kept),
                                 count_of(int64_t(r.documents), "document"), size_text(r.kept_text_bytes),
                                 size_text(r.text_bytes), share_text(r.kept_text_bytes, r.text_bytes));
  int64_t idle = 0;  // rules that removed nothing
  for (const auto& reason : r.reasons) {
    idle += reason.documents == 0;
    if (reason.documents > 0)
      text += fmt::format("removed    {:<30} {:>7} {:>8}, {}\n", reason.name, tally_text(reason.documents),
                          share_text(reason.documents, r.documents), size_text(reason.text_bytes));
  }
  if (idle > 0) text += fmt::format("removed    nothing for {}\n", count_of(idle, "other reason"));
  if (r.empty_documents > 0)
    text += fmt::format("left out   {}\n", count_of(int64_t(r.empty_documents), "empty document"));
  if (r.left_out_count > 0) {
    text +=
        fmt::format("left out   {} that could not be read\n", count_of(int64_t(r.left_out_count), "record"));
    for (const auto& record : r.left_out)
      text += fmt::format("           {}: {}\n", record.place, record.why);
  }
  if (r.replaced_documents > 0)
    text += fmt::format("warning    {} had bytes that are no UTF-8; they became U+FFFD\n",
                        count_of(int64_t(r.replaced_documents), "kept document"));
  for (size_t i = 0; i < std::min(kShownFiles, r.files.size()); ++i)
    text += fmt::format("file       {}: {} of {}\n", r.files[i].output, tally_text(r.files[i].kept),
                        tally_text(r.files[i].documents));
  if (r.files.size() > kShownFiles)
    text += fmt::format("           and {} more\n", r.files.size() - kShownFiles);
  text += fmt::format("each removed record, and why: {}\n", r.removed_file);
  text += fmt::format("time       {:.1f} s, {:.1f} MB/s\n", r.seconds,
                      double(r.text_bytes) / 1e6 / std::max(r.seconds, 1e-3));
  return text + fmt::format("next: trainctl data tokenize {}{} --out PREFIX\n",
                            shell_quoted(r.files[0].output), r.files.size() > 1 ? " ..." : "");
}

std::string render_mix(const data::Mix& mix, bool json) {
  if (json) {
    OrderedJson sources = OrderedJson::array(), warnings = OrderedJson::array();
    for (const auto& row : mix.rows) {
      sources.push_back({{"name", row.source.name},
                         {"tokens", row.source.tokens},
                         {"weight", row.source.weight},
                         {"share", row.share},
                         {"samples", row.samples},
                         {"drawn_tokens", row.drawn_tokens},
                         {"epochs", row.epochs}});
      if (row.source.samples > 0) sources.back()["padding"] = row.source.padding;
      if (row.epochs > data::kGoodEpochs) warnings.push_back(warning_of(row));
    }
    return dump_json(OrderedJson{{"v", 1},
                          {"seq_len", mix.seq_len},
                          {"samples", mix.samples},
                          {"tokens", mix.tokens()},
                          {"sources", sources},
                          {"warnings", warnings}}) +
           "\n";
  }
  size_t width = 6;
  for (const auto& row : mix.rows) width = std::max(width, row.source.name.size());
  std::string text = fmt::format("{:<{}}  {:>10}  {:>8}  {:>7}  {:>10}  {:>8}\n", "source", width, "tokens",
                                 "weight", "share", "drawn", "epochs");
  for (const auto& row : mix.rows)
    text += fmt::format("{:<{}}  {:>10}  {:>8.4g}  {:>5.1f} %  {:>10}  {:>8.2f}\n", row.source.name, width,
                        tally_text(row.source.tokens), row.source.weight, 100 * row.share,
                        tally_text(row.drawn_tokens), row.epochs);
  text += fmt::format("budget  {} tokens: {} of {} tokens\n", tally_text(mix.tokens()),
                      count_of(int64_t(mix.samples), "sample"), mix.seq_len);
  for (const auto& row : mix.rows)
    if (row.source.samples > 0)
      text += fmt::format("packed  {}: {} an epoch, {:.2f} % of their tokens are padding\n", row.source.name,
                          count_of(int64_t(row.source.samples), "sample"), 100 * row.source.padding);
  for (const auto& row : mix.rows)
    if (row.epochs > data::kGoodEpochs) text += "warning: " + warning_of(row) + "\n";
  return text;
}

}  // namespace trainctl
