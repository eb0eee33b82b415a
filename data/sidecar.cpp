#include "data/sidecar.h"

#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/record.h"

namespace trainctl::data {
std::string sidecar_path(const std::string& token_path) {
  const size_t n = token_path.size();
  const bool has_extension = n > 4 && (token_path.substr(n - 4) == ".idx" || token_path.substr(n - 4) == ".bin");
  return (has_extension ? token_path.substr(0, n - 4) : token_path) + ".json";
}

std::string sidecar_json(const Sidecar& s) {
  return dump_json(record_json<OrderedJson>(s), 2) + "\n";
}

std::optional<Sidecar> read_sidecar(const std::string& token_path) {
  const std::string path = sidecar_path(token_path);
  auto& fs = real_file_system();
  if (!fs.exists(path) || fs.is_directory(path)) return std::nullopt;
  return parse_sidecar(fs.read_text(path), path);
}

std::optional<Sidecar> parse_sidecar(const std::string& text, const std::string& path) {
  const auto j = try_parse_json(text);
  if (!j.is_object() || !j.contains(Sidecar::kMark)) return std::nullopt;
  const auto damaged = [&](const std::exception& e) {
    return Error(
        ErrorCode::kData,
        fmt::format("{} is damaged ({}); delete it to go without, or tokenize again", path, e.what()));
  };
  try {
    if (j.at(Sidecar::kMark).get<int>() != Sidecar::kVersion)
      throw Error(ErrorCode::kData, fmt::format("{}: version {} of the sidecar; this program reads {}", path,
                                                dump_json(j.at(Sidecar::kMark)), Sidecar::kVersion));
    return record_of<Sidecar>(j);
  } catch (const JsonError& e) {
    throw damaged(e);
  } catch (const BadRecord& e) {
    throw damaged(e);
  }
}

TokenizerChoice tokenizer_of(const Sidecar& sidecar, const std::string& token_path) {
  if (!sidecar.tokenizer.is_file()) return sidecar.tokenizer;
  const auto folder = std::filesystem::path(token_path).parent_path();
  return TokenizerChoice::file((folder / sidecar.tokenizer.path()).lexically_normal().string());
}

Problem other_tokenizer(FileSystem& fs, const Sidecar& sidecar, const std::string& token_path,
                        const TokenizerChoice& choice) {
  if (!choice.is_given() || (choice.is_file() && !fs.exists(choice.path()))) return Problem::none();
  const bool is_same = choice.is_file() ? sha256_hex(fs.read_text(choice.path())) == sidecar.tokenizer_sha256
                                        : sidecar.tokenizer.is_bytes();
  if (is_same) return Problem::none();
  const std::string own = tokenizer_of(sidecar, token_path).text();
  if (own == choice.text())
    return Problem(fmt::format("{} has changed since {} was tokenized with it", own, token_path));
  return Problem(fmt::format("{} was tokenized with {}, not with {}: its ids mean other text", token_path,
                             own, choice.text()));
}

Problem larger_vocabulary(const Sidecar& sidecar, const std::string& token_path, int64_t vocab_size) {
  if (sidecar.vocab_size <= vocab_size) return Problem::none();
  return Problem(
      fmt::format("{} was tokenized with vocab {} (tokenizer {}), but model.vocab_size is {}; set it to "
                  "{} or tokenize with the model's tokenizer",
                  token_path, sidecar.vocab_size, sidecar.tokenizer.text(), vocab_size, sidecar.vocab_size));
}

void check_sidecars(const FileSource& source, const std::string& name, int64_t vocab_size) {
  for (const TokenFile& file : source.token_files())
    if (const auto sidecar = read_sidecar(file.path()))
      if (const Problem problem = larger_vocabulary(*sidecar, file.path(), vocab_size); problem.exists())
        throw Error(ErrorCode::kData, fmt::format("data source {}: {}", name, problem.text()));
}

}  // namespace trainctl::data
