// Megatron token sets whose documents a test chooses.
#pragma once
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "data/loss_file.h"
#include "runtime/base/hash.h"
#include "runtime/spec/fields/job.h"

namespace trainctl::test {

/// The tokens of each sequence of a document.
using TokenDocument = std::vector<std::vector<int32_t>>;

/// Writes PREFIX.idx and PREFIX.bin (u16). backwards: the .bin holds the sequences in reverse order.
inline void write_megatron(const std::string& prefix, const std::vector<TokenDocument>& documents,
                           bool backwards = false) {
  std::string header("MMIDIDX\0\0", 9), lengths, pointers, index, tokens;
  const auto append = [](std::string& to, auto value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::vector<std::vector<int32_t>> sequences;
  append(index, int64_t{0});
  for (const TokenDocument& document : documents) {
    sequences.insert(sequences.end(), document.begin(), document.end());
    append(index, int64_t(sequences.size()));
  }
  std::vector<int64_t> places(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t s = backwards ? sequences.size() - 1 - i : i;
    places[s] = int64_t(tokens.size());
    for (const int32_t id : sequences[s]) append(tokens, uint16_t(id));
  }
  for (size_t s = 0; s < sequences.size(); ++s)
    append(lengths, int32_t(sequences[s].size())), append(pointers, places[s]);
  append(header, uint64_t{1}), append(header, uint8_t{8});
  append(header, uint64_t(sequences.size())), append(header, uint64_t(documents.size() + 1));
  std::ofstream(prefix + ".idx", std::ios::binary) << header << lengths << pointers << index;
  std::ofstream(prefix + ".bin", std::ios::binary) << tokens;
}

inline std::vector<int32_t> random_text(std::mt19937& random, int length, int vocabulary = 97) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = int32_t(random() % unsigned(vocabulary));
  return ids;
}

/// 300 random documents of up to `longest` tokens, some of them empty.
inline std::vector<TokenDocument> many_documents(int longest) {
  std::mt19937 random(11);
  std::vector<TokenDocument> documents;
  for (int i = 0; i < 300; ++i)
    documents.push_back({random_text(random, int(random() % unsigned(longest + 1)))});
  return documents;
}

/// The job trains on these documents, kept apart; their files come into `folder`.
inline void train_on(JobSpec& job, const std::string& folder, const std::vector<TokenDocument>& documents) {
  write_megatron(folder + "/documents", documents);
  DataSource source;
  source.path = folder + "/documents";
  job.data.train = {source};
  job.data.documents = Documents::mask;
}

/// Writes the loss file of PREFIX.
inline void write_loss(const std::string& prefix, const std::vector<uint8_t>& weights) {
  data::LossHeader header{.tokens = weights.size()};
  for (const uint8_t weight : weights) header.largest = std::max(header.largest, weight);
  Xxh3Stream hash;
  hash.update(std::as_bytes(std::span(weights)));
  header.hash = hash.digest();
  std::ofstream(data::loss_path(prefix), std::ios::binary)
      << data::loss_header(header) << std::string(weights.begin(), weights.end());
}

}  // namespace trainctl::test
