#include "data/tokenize/token_sets.h"

#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl::data {
namespace {

namespace stdfs = std::filesystem;

/// "data/train (1.2 M tokens of tokenizer data/tokenizer.model, 2.4 MB)", "" if there is no such set.
std::string existing_set(FileSystem& fs, const std::string& prefix) {
  uint64_t bytes = 0;
  std::string found;
  for (const char* extension : {".bin", ".idx", ".json", ".loss"}) {
    const std::string file = prefix + extension;
    if (!fs.exists(file)) continue;
    found = found.empty() ? file : prefix;
    std::error_code ignored;
    if (stdfs::is_regular_file(file, ignored)) bytes += stdfs::file_size(file, ignored);
  }
  if (found.empty()) return "";
  std::optional<Sidecar> sidecar;
  try {
    sidecar = read_sidecar(prefix);
  } catch (const Error&) {  // damaged: its size says enough
  }
  if (!sidecar) return fmt::format("{} ({})", found, size_text(bytes));
  return fmt::format("{} ({} tokens of tokenizer {}, {})", found, short_number(double(sidecar->tokens)),
                     sidecar->tokenizer.text(), size_text(bytes));
}

/// Moves the files of one set. Each step is durable before the next one, so that what is left in `from`
/// says how far it came.
void publish_set(FileSystem& fs, const std::string& from, const std::string& prefix, bool has_weights) {
  const std::string folder = folder_of(prefix);
  if (fs.exists(from + ".bin")) {
    // An old index next to new tokens would look like a pair; so would one next to a new llm.c shard.
    for (const char* old : {".json", ".idx", ".bin"})
      if (fs.exists(prefix + old)) fs.remove_file(prefix + old);
    // Old weights would count for the new tokens; the new ones are there before those.
    if (fs.exists(from + ".loss"))
      fs.rename(from + ".loss", prefix + ".loss");
    else if (!has_weights && fs.exists(prefix + ".loss"))
      fs.remove_file(prefix + ".loss");
    fs.sync_directory(folder);
    fs.rename(from + ".bin", prefix + ".bin");
    fs.sync_directory(folder);
  }
  for (const char* ending : {".idx", ".json"}) {
    if (!fs.exists(from + ending)) continue;
    fs.rename(from + ending, prefix + ending);
    fs.sync_directory(folder);
  }
}

// The tokenizer's file must not be a file of the tokens: the later of the two would replace the other.
void refuse_shared_name(const TokenizeOptions& options) {
  const std::string model = stdfs::path(model_path(options)).lexically_normal().string();
  for (const std::string& prefix : prefixes(options)) {
    if (model != stdfs::path(prefix + ".json").lexically_normal().string()) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("--tokenizer-out {} is also the name of the file that describes the tokens of --out {}; "
                            "choose another name for the tokenizer",
                            model, options.out));
  }
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::string folder = stdfs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string model_path(const TokenizeOptions& options) {
  const bool is_json = options.train_kind == TrainedKind::bpe;
  const stdfs::path wanted = options.tokenizer_out.empty() ? folder_of(options.out) : options.tokenizer_out;
  const bool is_file = wanted.extension() == (is_json ? ".json" : ".model");
  return (is_file ? wanted : wanted / (is_json ? "tokenizer.json" : "tokenizer.model")).string();
}

std::vector<std::string> prefixes(const TokenizeOptions& options) {
  if (options.val_share > 0) return {options.out, options.out + "-val"};
  return {options.out};
}

void refuse_existing(FileSystem& fs, const TokenizeOptions& options) {
  if (options.train_vocab > 0) refuse_shared_name(options);
  if (options.force) return;
  std::vector<std::string> existing;
  for (const std::string& prefix : prefixes(options))
    if (const std::string found = existing_set(fs, prefix); !found.empty()) existing.push_back(found);
  const std::string model = model_path(options);
  const bool keeps_model = options.train_vocab <= 0 || !fs.exists(model);
  if (!keeps_model) existing.push_back(fmt::format("{} (a tokenizer)", model));
  if (existing.empty()) return;
  const bool is_one = existing.size() == 1;
  throw Error(
      ErrorCode::kUsage,
      fmt::format(
          "{} {} already; choose another --out{}, or replace {} with --force: runs on the old files could "
          "not be resumed then",
          fmt::join(existing, " and "), is_one ? "exists" : "exist", keeps_model ? "" : " or --tokenizer-out",
          is_one ? "it" : "them"));
}

void publish(FileSystem& fs, const TokenizeOptions& options, bool has_weights, Attempt& attempt) {
  if (fs.exists(attempt / "model")) {
    const std::string path = model_path(options);
    fs.make_directories(folder_of(path));
    fs.replace_text(path, fs.read_text(attempt / "model"));
  }
  const auto names = prefixes(options);
  for (size_t i = 0; i < names.size(); ++i) publish_set(fs, attempt / kSetNames[i], names[i], has_weights);
  for (const std::string& name : names)
    for (const std::string& ending : TokenWriter::endings(options.to, has_weights))
      if (!fs.exists(name + ending))
        throw Error(ErrorCode::kData,
                    fmt::format("{} is gone, and {} says that it was complete; remove that folder and "
                                "tokenize again",
                                name + ending, attempt.folder()));
}

}  // namespace trainctl::data
