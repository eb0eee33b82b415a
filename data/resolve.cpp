#include <glob.h>

#include <algorithm>

#include "data/file_source.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {
namespace {

bool ends_with(const std::string& s, std::string_view tail) {
  return s.size() >= tail.size() && s.compare(s.size() - tail.size(), tail.size(), tail) == 0;
}

std::string without_extension(const std::string& path) {
  return ends_with(path, ".idx") || ends_with(path, ".bin") ? path.substr(0, path.size() - 4) : path;
}

bool is_file(const std::string& path) {
  auto& fs = real_file_system();
  return fs.exists(path) && !fs.is_directory(path);
}

std::vector<std::string> expand(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());  // the same order in every locale
  return paths;
}

/// The format of the existing file `path`, from its companions and its first bytes.
Format detect(const std::string& path, const SourceOptions& options) {
  if (is_file(without_extension(path) + ".idx")) return Format::megatron;
  const MappedFile file(path);
  if (file.size() == 0) throw Error(ErrorCode::kData, fmt::format("{} is empty", path));
  if (file.size() >= 4) {
    const auto magic = load<int32_t>(file.bytes(), 0);
    if (magic == kLlmcMagicU16 || magic == kLlmcMagicU32 || magic == kLlmcMagicEval) return Format::llmc;
  }
  if (options.dtype) return Format::raw;
  throw Error(ErrorCode::kData,
              fmt::format("{} is of no known format: there is no {}.idx beside it (Megatron), and it does not begin with the magic "
                          "of an llm.c shard; if it holds bare tokens, say \"format\": \"raw\" and \"dtype\": \"uint16\" or \"uint32\"; "
                          "text must first go through `trainctl data tokenize`", path, without_extension(path)));
}

/// The file for `path`, which may be a prefix; "" if there is none.
std::string existing(const std::string& path) {
  for (const char* extension : {"", ".idx", ".bin"})
    if (is_file(path + extension)) return path + extension;
  return "";
}

void check_dtype(const SourceOptions& options, Format format) {
  if (format == Format::raw && !options.dtype)
    throw Error(ErrorCode::kData, fmt::format("{} is raw tokens, and nothing in such a file tells their width; say \"dtype\": "
                                              "\"uint16\" or \"uint32\"", options.path));
}

}  // namespace

const char* name_of(Format format) {
  switch (format) {
    case Format::automatic: return "auto";
    case Format::megatron: return "megatron";
    case Format::llmc: return "llmc";
    case Format::raw: return "raw";
  }
  return "?";
}

ResolvedSource resolve(const SourceOptions& options) {
  const std::string& path = options.path;
  if (path.empty()) throw Error(ErrorCode::kData, "a data source has an empty path; give a file, a prefix or a glob");
  std::vector<std::string> found;
  if (const std::string one = existing(path); !one.empty()) {
    found = {one};
  } else if (real_file_system().is_directory(path)) {
    throw Error(ErrorCode::kData, fmt::format("{} is a folder; give a file, a prefix or a glob such as {}/*.bin", path, path));
  } else if (path.find_first_of("*?[") != std::string::npos) {
    found = expand(path);
    std::erase_if(found, [](const std::string& f) {
      return ends_with(f, ".json") || ends_with(f, ".loss") || !is_file(f);
    });
    if (found.empty()) throw Error(ErrorCode::kData, fmt::format("no file matches {}", path));
  } else {
    throw Error(ErrorCode::kData, fmt::format("there is no token file {}, also not with .idx or .bin behind its name", path));
  }

  ResolvedSource result;
  result.format = options.format == Format::automatic ? detect(found[0], options) : options.format;
  check_dtype(options, result.format);
  for (const std::string& file : found) {
    if (options.format == Format::automatic)
      if (const Format other = detect(file, options); other != result.format)
        throw Error(ErrorCode::kData, fmt::format("{} matches files of two formats: {} is {}, {} is {}; use one source for each",
                                                  path, found[0], name_of(result.format), file, name_of(other)));
    result.paths.push_back(result.format == Format::megatron ? without_extension(file) : file);
  }
  // A glob such as PREFIX* meets both files of a Megatron pair.
  std::sort(result.paths.begin(), result.paths.end());
  result.paths.erase(std::unique(result.paths.begin(), result.paths.end()), result.paths.end());
  return result;
}

}  // namespace trainctl::data
