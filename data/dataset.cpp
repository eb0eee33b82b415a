#include "data/dataset.h"

#include <algorithm>
#include <numeric>

#include "data/file_source.h"
#include "data/mixture.h"
#include "data/permutation.h"
#include "data/sidecar.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

SampleAddress address_in(Mixture::Pick pick, uint64_t samples, bool shuffle, uint64_t seed) {
  SampleAddress address{.source = pick.source, .epoch = pick.position / samples, .sample = pick.position % samples};
  if (shuffle) {
    // 2^24 epochs of 2^40 sources; no two of them share random numbers.
    const uint64_t stream = uint64_t(pick.source) << 24 | (address.epoch & 0xffffff);
    address.sample = Permutation(samples, seed, stream)(address.sample);
  }
  return address;
}

/// Position in `ids` of the first id outside [0, vocab_size), or ids.size().
size_t first_foreign(std::span<const int32_t> ids, int64_t vocab_size) {
  const uint32_t limit = uint32_t(std::min<int64_t>(vocab_size, INT32_MAX));
  uint32_t largest = 0;  // a loop without exits runs at the speed of memory; negative ids become large
  for (const int32_t id : ids) largest = std::max(largest, uint32_t(id));
  if (largest < limit) return ids.size();
  return size_t(std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return uint32_t(id) >= limit; }) - ids.begin());
}

/// `weights`: 0 or more becomes 0 or 1.
void to_mask(std::span<uint8_t> weights) {
  for (uint8_t& weight : weights) weight = weight > 0;
}

class MixedDataset final : public Dataset {
 public:
  explicit MixedDataset(const DatasetOptions& options) : options_(options), mixture_(weights_of(options)) {
    for (const SourceOptions& source : options_.sources) {
      sources_.push_back(std::make_unique<FileSource>(source));
      check(*sources_.back(), name_of(source));
      if (options_.documents)
        if (const Problem problem =
                lacks_documents(name_of(source), sources_.back()->format(), options_.packed);
            problem.exists())
          throw Error(ErrorCode::kData, problem.text());
      if (options_.packed)
        pack(*sources_.back(), name_of(source));
      else
        samples_.push_back((sources_.back()->token_count() - 1) / uint64_t(options_.seq_len));
    }
  }

  bool has_documents() const override { return options_.documents; }
  bool has_weights() const override { return options_.loss != LossUse::all; }

  void sample(uint64_t index, const SampleRows& rows) const override {
    const std::span<int32_t> out = rows.tokens;
    ENSURE(out.size() == size_t(options_.seq_len) + 1, "{} tokens for sequences of {}", out.size(), options_.seq_len);
    const Mixture::Pick pick = mixture_.pick(index);
    const size_t s = size_t(pick.source);
    const SampleAddress at = address_in(pick, samples_[s], options_.shuffle, options_.seed);
    ENSURE(rows.document_start.empty() || (has_documents() && rows.document_start.size() == out.size()),
           "{} of {} tokens", rows.document_start.size(), out.size());
    ENSURE(rows.weights.empty() || (has_weights() && rows.weights.size() == out.size()), "{} of {} tokens",
           rows.weights.size(), out.size());
    if (options_.packed) return read_packed(s, at.sample, rows);
    const uint64_t offset = at.sample * uint64_t(options_.seq_len);
    read(s, offset, rows);
    if (!rows.document_start.empty()) sources_[s]->document_starts(offset, rows.document_start);
  }

  SamplePlace place(uint64_t index) const override {
    const Mixture::Pick pick = mixture_.pick(index);
    const size_t s = size_t(pick.source);
    const SampleAddress at = address_in(pick, samples_[s], options_.shuffle, options_.seed);
    uint64_t offset = at.sample * uint64_t(options_.seq_len);
    if (options_.packed)
      for (const TokenRange& range : packings_[s].sample(at.sample)) {
        offset = range.first;
        break;
      }
    const auto [file, token] = sources_[s]->file_and_token(offset);
    return {.source = name_of(options_.sources[s]), .file = file, .token = token};
  }

  int source_of(uint64_t index) const override { return mixture_.pick(index).source; }
  int source_count() const override { return int(sources_.size()); }

  uint64_t samples_per_epoch() const override {
    uint64_t n = 0;
    for (const uint64_t s : samples_) n += s;
    return n;
  }
  double padding() const override {
    double padded = 0;
    for (const Packing& packing : packings_) padded += packing.padding() * double(packing.samples());
    return padded / double(samples_per_epoch());
  }
  uint64_t token_count() const override {
    uint64_t n = 0;
    for (const auto& s : sources_) n += s->token_count();
    return n;
  }
  std::vector<std::string> files() const override {
    std::vector<std::string> all;
    for (const auto& source : sources_) {
      const std::vector<std::string> paths = source->files();
      all.insert(all.end(), paths.begin(), paths.end());
    }
    return all;
  }
  std::string fingerprints_json() const override {
    auto list = Json::array();
    for (size_t i = 0; i < sources_.size(); ++i)
      list.push_back(with_loss(i, {{"name", name_of(options_.sources[i])},
                                   {"path", options_.sources[i].path},
                                   {"format", sources_[i]->format_name()},
                                   {"tokens", sources_[i]->token_count()},
                                   {"fingerprint", sources_[i]->fingerprint()}}));
    return dump_json(list);
  }

  std::string ends_json() const override {
    auto list = Json::array();
    for (size_t i = 0; i < sources_.size(); ++i)
      list.push_back(with_loss(i, {{"path", options_.sources[i].path}, {"ends", sources_[i]->ends()}}));
    return dump_json(list);
  }
  void require_unchanged() const override {
    for (const auto& source : sources_) source->require_unchanged();
  }

 private:
  /// Tokens and weights of the tokens of a source from `offset` on.
  void read(size_t source, uint64_t offset, const SampleRows& rows) const {
    const FileSource& from = *sources_[source];
    from.read(offset, rows.tokens);
    if (!rows.weights.empty()) {
      from.weights(offset, rows.weights);
      if (options_.loss == LossUse::mask) to_mask(rows.weights);
    }
    // A sample is read once an epoch. If pages stayed mapped, all data of a long run would count as its
    // memory.
    from.drop_pages(offset, rows.tokens.size());
    check_ids(from, name_of(options_.sources[source]), offset, rows.tokens);
  }

  void read_packed(size_t source, uint64_t sample, const SampleRows& rows) const {
    size_t at = 0;
    for (const TokenRange& range : packings_[source].sample(sample)) {
      const auto part = [&](auto row) { return row.empty() ? row : row.subspan(at, size_t(range.tokens)); };
      read(source, range.first, {.tokens = part(rows.tokens), .weights = part(rows.weights)});
      const auto starts = part(rows.document_start);
      std::fill(starts.begin(), starts.end(), int32_t(at));
      at += size_t(range.tokens);
    }
    const auto padding = [&](auto row) { return row.empty() ? row : row.subspan(at); };
    std::ranges::fill(padding(rows.tokens), 0);
    std::ranges::fill(padding(rows.weights), uint8_t(0));
    const auto starts = padding(rows.document_start);
    std::iota(starts.begin(), starts.end(), int32_t(at));
  }

  void pack(const FileSource& source, const std::string& name) {
    packings_.push_back(source.packing(uint64_t(options_.seq_len)));
    samples_.push_back(packings_.back().samples());
    if (samples_.back() == 0)
      throw Error(ErrorCode::kData,
                  fmt::format("data source {} has no document of two tokens or more; give more text", name));
  }

  Json with_loss(size_t source, Json record) const {
    if (has_weights()) record["loss"] = sources_[source]->loss_hash();
    return record;
  }
  static std::vector<double> weights_of(const DatasetOptions& options) {
    ENSURE(options.documents || !options.packed, "packed samples without documents");
    ENSURE(!options.sources.empty() && options.seq_len > 0 && options.vocab_size > 0, "{} sources, seq_len {}, vocab_size {}",
           options.sources.size(), options.seq_len, options.vocab_size);
    std::vector<double> weights;
    for (const SourceOptions& s : options.sources) weights.push_back(s.weight);
    return weights;
  }
  static const std::string& name_of(const SourceOptions& source) { return source.name.empty() ? source.path : source.name; }

  void check_ids(const FileSource& source, const std::string& name, uint64_t offset, std::span<const int32_t> ids) const {
    const size_t bad = first_foreign(ids, options_.vocab_size);
    if (bad == ids.size()) return;
    throw Error(ErrorCode::kData,
                fmt::format("data source {}: {}: token id {} is outside the vocabulary of {} (model.vocab_size); raise it or "
                            "tokenize with the model's tokenizer", name, source.describe(offset + bad),
                            source.value_at(offset + bad), options_.vocab_size));
  }

  void check(const FileSource& source, const std::string& name) const {
    const uint64_t tokens = source.token_count();
    if (tokens < uint64_t(options_.seq_len) + 1 && !options_.packed)
      throw Error(ErrorCode::kData, fmt::format("data source {} has {} tokens; one sample of data.seq_len = {} takes {}: give more "
                                                "text or lower seq_len", name, tokens, options_.seq_len, options_.seq_len + 1));
    check_sidecars(source, name, options_.vocab_size);
    // Up to 2^20 tokens: all, or blocks spread evenly over the source.
    constexpr uint64_t kBlock = 4096, kBlocks = 256;
    std::vector<int32_t> ids(kBlock);
    const uint64_t blocks = std::min(kBlocks, (tokens + kBlock - 1) / kBlock);
    for (uint64_t b = 0; b < blocks; ++b) {
      const bool all = tokens <= kBlock * kBlocks;
      const uint64_t offset = all ? b * kBlock : uint64_t((unsigned __int128)(tokens - kBlock) * b / (blocks - 1));
      const auto block = std::span(ids).first(size_t(std::min(kBlock, tokens - offset)));
      source.read(offset, block);
      source.drop_pages(offset, block.size());
      check_ids(source, name, offset, block);
    }
  }

  DatasetOptions options_;
  Mixture mixture_;
  std::vector<std::unique_ptr<FileSource>> sources_;
  std::vector<Packing> packings_;  // [source] with DatasetOptions::packed
  std::vector<uint64_t> samples_;  // per source and epoch
};

}  // namespace

SampleBatch SampleBatch::of(const Dataset& dataset, size_t samples, size_t width) {
  SampleBatch batch{.tokens = std::vector<int32_t>(samples * width)};
  if (dataset.has_documents()) batch.document_starts.resize(samples * width);
  if (dataset.has_weights()) batch.weights.resize(samples * width);
  if (dataset.source_count() > 1) batch.sources.resize(samples);
  return batch;
}

SampleRows SampleBatch::rows(size_t i, size_t width) {
  const auto of = [&](auto& row) {
    return row.empty() ? std::span(row) : std::span(row).subspan(i * width, width);
  };
  return {.tokens = of(tokens), .document_start = of(document_starts), .weights = of(weights)};
}

void SampleBatch::read(const Dataset& dataset, uint64_t index, size_t i, size_t width) {
  dataset.sample(index, rows(i, width));
  if (!sources.empty()) sources[i] = dataset.source_of(index);
}

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options) { return std::make_unique<MixedDataset>(options); }

SampleAddress address_of(uint64_t index, std::span<const double> weights, std::span<const uint64_t> samples, bool shuffle,
                         uint64_t seed) {
  ENSURE(weights.size() == samples.size(), "{} weights for {} sources", weights.size(), samples.size());
  const Mixture::Pick pick = Mixture(weights).pick(index);
  return address_in(pick, samples[size_t(pick.source)], shuffle, seed);
}

}  // namespace trainctl::data
