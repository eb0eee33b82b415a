#include "runtime/sources/text_sources.h"

#include <fmt/format.h>

#include "data/corpus/corpus_reader.h"

namespace trainctl {

TextSources::TextSources(FileSystem& fs, const ObjectAccess& access, const std::vector<std::string>& inputs,
                         CacheOptions cache)
    : found_(find_inputs(access, inputs, data::has_known_ending)),
      cache_(fs, access, std::move(cache), found_.objects),
      files_(fs, cache_) {}

std::vector<std::string> TextSources::versions() const {
  std::map<std::string, std::string> of_url;
  for (const StoredObject& object : found_.objects) of_url[object.url] = object.version;
  std::vector<std::string> versions;
  for (const std::string& path : found_.paths) {
    const auto at = of_url.find(path);
    versions.push_back(at == of_url.end() ? "" : at->second);
  }
  return versions;
}

std::string TextSources::left_out_text() const {
  constexpr size_t kShown = 5;
  const std::vector<std::string>& names = found_.left_out;
  if (names.empty()) return "";
  const std::vector<std::string> shown(names.begin(),
                                       names.begin() + std::ptrdiff_t(std::min(names.size(), kShown)));
  return fmt::format("left out, because their names do not end as those of texts: {}{}",
                     fmt::join(shown, ", "),
                     names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

}  // namespace trainctl
