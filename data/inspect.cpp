#include "data/inspect.h"

#include <algorithm>
#include <filesystem>

#include "data/file_source.h"
#include "data/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"

namespace trainctl::data {
namespace {

constexpr uint64_t kBlock = 1 << 16;
constexpr uint64_t kShownTokens = 200, kShownDocuments = 3;

/// The tokenizer of the sidecar, if its file exists and is unchanged.
TokenizerChoice usable_tokenizer(const Sidecar& sidecar, const std::string& token_path,
                                 std::vector<std::string>& warnings) {
  const TokenizerChoice tokenizer = tokenizer_of(sidecar, token_path);
  if (!tokenizer.is_file()) return tokenizer;
  const std::string& path = tokenizer.path();
  auto& fs = real_file_system();
  if (!fs.exists(path)) {
    warnings.push_back(fmt::format("the tokenizer {} is not there; give it with --tokenizer to see text", path));
    return {};
  }
  if (sha256_hex(fs.read_text(path)) != sidecar.tokenizer_sha256) {
    warnings.push_back(fmt::format("{} has changed since these tokens were made; text below may be wrong", path));
  }
  return tokenizer;
}

void show_documents(const FileSource& source, const Tokenizer& tokenizer, std::vector<std::string>& out) {
  const TokenFile& file = source.token_files()[0];
  const std::vector<uint64_t> lengths =
      file.index_map ? document_lengths(file, kShownDocuments) : std::vector<uint64_t>{file.token_count};
  uint64_t offset = 0;
  for (const uint64_t length : lengths) {
    std::vector<int32_t> ids(size_t(std::min(length, kShownTokens)));
    file.read(offset, ids);
    out.push_back(tokenizer.decode(ids) + (length > kShownTokens ? "..." : ""));
    offset += length;
  }
}

/// nullopt without a loss file.
std::optional<uint64_t> count_loss_tokens(const FileSource& source) {
  bool any = false;
  uint64_t count = 0;
  for (const TokenFile& file : source.token_files()) {
    any |= file.loss.has_value();
    if (!file.loss) {
      count += file.token_count;
      continue;
    }
    const auto weights = file.loss->weights();
    count += weights.size() - uint64_t(std::count(weights.begin(), weights.end(), 0));
  }
  return any ? std::optional(count) : std::nullopt;
}

SourceOptions with_loss_files(SourceOptions options) {
  options.loss = true;
  return options;
}

[[noreturn]] void refuse_id(const FileSource& source, uint64_t offset, int64_t vocab_size) {
  const std::string limit = vocab_size > 0 ? fmt::format("the vocabulary of {}", vocab_size) : "any vocabulary";
  throw Error(ErrorCode::kData, fmt::format("{}: token id {} is outside {}", source.describe(offset), source.value_at(offset), limit));
}

}  // namespace

Inspection inspect(const SourceOptions& options, const TokenizerChoice& tokenizer) {
  const FileSource source(with_loss_files(options));
  Inspection result{.format = source.format_name(), .element = name_of(source.token_files()[0].element), .files = source.files(),
                    .tokens = source.token_count(), .documents = source.document_count(), .fingerprint = source.fingerprint()};
  result.loss_tokens = count_loss_tokens(source);
  for (const TokenFile& file : source.token_files())
    result.largest_weight = std::max<int>(result.largest_weight, file.loss ? file.loss->header.largest : 1);
  constexpr uint64_t kBlocks = 16;
  const uint64_t blocks = std::min(kBlocks, (result.tokens + kBlock - 1) / kBlock);
  std::vector<int32_t> ids(kBlock);
  for (uint64_t b = 0; b < blocks; ++b) {
    const uint64_t offset = result.tokens <= kBlock * kBlocks
                                ? b * kBlock
                                : uint64_t((unsigned __int128)(result.tokens - kBlock) * b / (kBlocks - 1));
    const auto block = std::span(ids).first(size_t(std::min(kBlock, result.tokens - offset)));
    source.read(offset, block);
    result.looked_at += block.size();
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i] < 0) refuse_id(source, offset + i, 0);
      result.largest_id = std::max<int64_t>(result.largest_id, block[i]);
    }
  }
  const std::string& first = source.token_files()[0].path();
  result.sidecar = read_sidecar(first);
  result.tokenizer = tokenizer;
  if (result.sidecar) {
    const Sidecar& s = *result.sidecar;
    if (source.token_files().size() == 1 && s.fingerprint != result.fingerprint)
      result.warnings.push_back("the token files have changed since the sidecar was written");
    // Data that never uses the upper part of its vocabulary was most likely made by another tokenizer.
    if (s.vocab_size > 1000 && result.looked_at >= 1'000'000 && result.largest_id < s.vocab_size * 6 / 10)
      result.warnings.push_back(fmt::format("the largest id, {}, is far below the vocabulary of {}; is this the right tokenizer?",
                                            result.largest_id, s.vocab_size));
    if (!tokenizer.is_given()) result.tokenizer = usable_tokenizer(s, first, result.warnings);
  }
  if (result.tokenizer.is_given())
    show_documents(source, *open_tokenizer(result.tokenizer), result.first_documents);
  return result;
}

Verification verify(const SourceOptions& options, int64_t vocab_size) {
  const double start = real_clock().monotonic_s();
  const FileSource source(with_loss_files(options));
  Verification result{.tokens = source.token_count(), .documents = source.document_count(), .vocab_size = vocab_size,
                      .fingerprint = source.fingerprint()};
  result.loss_tokens = count_loss_tokens(source);
  for (const TokenFile& file : source.token_files()) {
    if (file.loss) {
      file.loss->verify();
      result.bytes += file.loss->map.size();
    }
    const auto sidecar = read_sidecar(file.path());
    if (!sidecar) continue;
    if (vocab_size == 0) result.vocab_size = std::max(result.vocab_size, sidecar->vocab_size);
    const std::string now = source.token_files().size() == 1
                                ? result.fingerprint
                                : FileSource({.path = file.path(), .format = options.format, .dtype = options.dtype}).fingerprint();
    if (sidecar->fingerprint != now)
      throw Error(ErrorCode::kData, fmt::format("{} has changed since {} was written (fingerprint {}, now {}); tokenize again",
                                                file.path(), sidecar_path(file.path()), sidecar->fingerprint, now));
  }
  std::vector<int32_t> ids(kBlock);
  const uint32_t limit = result.vocab_size > 0 ? uint32_t(std::min<int64_t>(result.vocab_size, INT32_MAX)) : 0x80000000u;
  for (uint64_t offset = 0; offset < result.tokens; offset += kBlock) {
    const auto block = std::span(ids).first(size_t(std::min(kBlock, result.tokens - offset)));
    source.read(offset, block);
    uint32_t largest = 0;
    for (const int32_t id : block) largest = std::max(largest, uint32_t(id));
    if (largest >= limit) {
      const auto bad = std::find_if(block.begin(), block.end(), [&](int32_t id) { return uint32_t(id) >= limit; });
      refuse_id(source, offset + uint64_t(bad - block.begin()), result.vocab_size);
    }
    result.largest_id = std::max<int64_t>(result.largest_id, largest);
  }
  Xxh3Stream hash;
  std::vector<uint64_t> lengths;
  for (const TokenFile& file : source.token_files()) {
    if (file.index_map) {
      hash.update(file.index_map->bytes());
      result.bytes += file.index_map->size();
      const auto more = document_lengths(file, file.document_count);
      lengths.insert(lengths.end(), more.begin(), more.end());
    }
    hash.update(file.tokens_map.bytes());
    result.bytes += file.tokens_map.size();
    if (file.loss) hash.update(file.loss->map.bytes());
  }
  result.hash = hex64(hash.digest());
  if (!lengths.empty()) {
    std::sort(lengths.begin(), lengths.end());
    result.shortest_document = lengths.front();
    result.median_document = lengths[lengths.size() / 2];
    result.longest_document = lengths.back();
  }
  result.seconds = real_clock().monotonic_s() - start;
  return result;
}

}  // namespace trainctl::data
