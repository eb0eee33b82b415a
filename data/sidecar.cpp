#include "data/sidecar.h"


#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

constexpr const char* kMark = "trainctl_tokens";
constexpr int kVersion = 1;

}  // namespace

std::string sidecar_path(const std::string& token_path) {
  const size_t n = token_path.size();
  const bool has_extension = n > 4 && (token_path.substr(n - 4) == ".idx" || token_path.substr(n - 4) == ".bin");
  return (has_extension ? token_path.substr(0, n - 4) : token_path) + ".json";
}

std::string sidecar_json(const Sidecar& s) {
  const nlohmann::ordered_json j{{kMark, kVersion},
                                 {"tokenizer", s.tokenizer},
                                 {"tokenizer_sha256", s.tokenizer_sha256},
                                 {"vocab_size", s.vocab_size},
                                 {"end_of_text", s.end_of_text},
                                 {"format", s.format},
                                 {"tokens", s.tokens},
                                 {"documents", s.documents},
                                 {"text_bytes", s.text_bytes},
                                 {"fingerprint", s.fingerprint},
                                 {"inputs", s.inputs}};
  return dump_json(j, 2) + "\n";
}

std::optional<Sidecar> read_sidecar(const std::string& token_path) {
  const std::string path = sidecar_path(token_path);
  auto& fs = real_file_system();
  if (!fs.exists(path) || fs.is_directory(path)) return std::nullopt;
  const auto j = try_parse_json(fs.read_text(path));
  if (!j.is_object() || !j.contains(kMark)) return std::nullopt;
  try {
    if (j.at(kMark).get<int>() != kVersion)
      throw Error(ErrorCode::kData, fmt::format("{}: version {} of the sidecar; this program reads {}", path,
                                                dump_json(j.at(kMark)), kVersion));
    Sidecar s;
    j.at("tokenizer").get_to(s.tokenizer);
    j.at("tokenizer_sha256").get_to(s.tokenizer_sha256);
    j.at("vocab_size").get_to(s.vocab_size);
    j.at("end_of_text").get_to(s.end_of_text);
    j.at("format").get_to(s.format);
    j.at("tokens").get_to(s.tokens);
    j.at("documents").get_to(s.documents);
    j.at("text_bytes").get_to(s.text_bytes);
    j.at("fingerprint").get_to(s.fingerprint);
    j.at("inputs").get_to(s.inputs);
    return s;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kData, fmt::format("{} is damaged ({}); delete it to go without, or tokenize again", path, e.what()));
  }
}

void check_sidecars(const FileSource& source, const std::string& name, int64_t vocab_size) {
  for (const TokenFile& file : source.token_files()) {
    const auto sidecar = read_sidecar(file.path());
    if (sidecar && sidecar->vocab_size > vocab_size)
      throw Error(ErrorCode::kData,
                  fmt::format("data source {}: {} was tokenized with vocab {} (tokenizer {}), but model.vocab_size is {}; set it to "
                              "{} or tokenize with the model's tokenizer", name, file.path(), sidecar->vocab_size,
                              sidecar->tokenizer, vocab_size, sidecar->vocab_size));
  }
}

}  // namespace trainctl::data
