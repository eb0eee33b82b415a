// Dataset: the sequence of training samples of a run. Sample i depends only on (seed, i), on every rank.
//
// A source is one or more token files of one format, read through memory maps. It is cut into samples of
// seq_len + 1 tokens that overlap by one: sample k is tokens [k * seq_len, (k + 1) * seq_len]; the targets
// are shifted by one. A mixture interleaves the sources by weight. With shuffle, the samples of a source are
// in another order in each epoch, a counter-based permutation.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"

namespace trainctl::data {

enum class Format { automatic, megatron, llmc, raw };

struct SourceOptions {
  std::string path;               ///< a file, a prefix, or a glob (files in name order)
  Format format = Format::automatic;
  std::optional<DType> dtype;     ///< u16 or u32, required for raw
  double weight = 1.0;
  std::string name;               ///< name in messages and fingerprints; "": the path
  bool loss = false;              ///< read the loss files that lie next to the token files
  /// Called while the source is opened, with the bytes of the index that were checked since the last call.
  /// May be empty.
  std::function<void(uint64_t bytes)> on_checked = {};
};

/// The tokens of one source: those of its files, one after another. Thread-safe. The files are memory-mapped.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual uint64_t token_count() const = 0;
  virtual uint64_t document_count() const = 0;     ///< 0: unknown
  virtual int token_bytes() const = 0;             ///< bytes of a stored token
  /// Reads tokens [offset, offset + out.size()), which must exist.
  virtual void read(uint64_t offset, std::span<int32_t> out) const = 0;
  /// xxh3 over format, sizes, headers and the first and last MiB of every file; 16 hex digits.
  virtual std::string fingerprint() const = 0;
  virtual std::vector<std::string> files() const = 0;
  virtual const char* format_name() const = 0;
};

/// Opens a source. Error(kData), one sentence: missing, empty, truncated, wrong magic or version, eval shard,
/// raw without dtype, ...
std::unique_ptr<TokenSource> open_source(const SourceOptions& options);

/// Which weight a token has as a target. mask: 0 or 1, whether that of the loss file is more than 0; weights:
/// that of the loss file. Tokens of files without a loss file have 1.
enum class LossUse { all, mask, weights };

struct DatasetOptions {
  std::vector<SourceOptions> sources;
  int64_t seq_len = 0;
  int64_t vocab_size = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool documents = false;  ///< samples come with their documents: every source must have boundaries
  /// Samples are those of best-fit packing (data/packing.h) instead of stretches of the tokens. Padding is
  /// documents of one token, 0. Needs documents.
  bool packed = false;
  LossUse loss = LossUse::all;
};

/// What a sample has, of each token: seq_len + 1 elements, or none.
struct SampleRows {
  std::span<int32_t> tokens;
  /// The first token, counted from the beginning of the sample, that is of the same document. With
  /// DatasetOptions::documents.
  std::span<int32_t> document_start = {};
  /// How much it counts as a target. Unless DatasetOptions::loss is all.
  std::span<uint8_t> weights = {};
};

/// Where a sample lies, for people. Of a packed sample: its first document.
struct SamplePlace {
  std::string source, file;
  uint64_t token = 0;  ///< of its first token, in the file
};

/// A mixture of sources as an endless sequence of samples. Thread-safe. A sample costs O(number of sources)
/// arithmetic and one read.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Reads sample `index` of the run. Step s (from 0) of a run with G sequences per step uses the samples
  /// [s*G, (s+1)*G).
  ///   out   seq_len + 1 tokens
  /// Error(kData) with source, file, position and value if a token id is >= vocab_size.
  void sample(uint64_t index, std::span<int32_t> out) const { sample(index, SampleRows{.tokens = out}); }
  virtual void sample(uint64_t index, const SampleRows& out) const = 0;
  virtual SamplePlace place(uint64_t index) const = 0;
  /// The source that it is of, from 0, and how many there are.
  virtual int source_of(uint64_t index) const = 0;
  virtual int source_count() const = 0;
  /// Whether samples have documents, and weights.
  virtual bool has_documents() const = 0;
  virtual bool has_weights() const = 0;
  /// The number of samples of all sources in one epoch. A validation pass without shuffle reads indices
  /// 0..n-1.
  virtual uint64_t samples_per_epoch() const = 0;
  /// The share of the tokens of an epoch of all sources that is padding.
  virtual double padding() const = 0;
  virtual uint64_t token_count() const = 0;
  /// Of all sources, in their order.
  virtual std::vector<std::string> files() const = 0;
  /// A JSON array with {"name", "path", "format", "tokens", "fingerprint"} for each source, and "loss",
  /// a hash of its loss files, where weights are used. Checkpoints contain it.
  virtual std::string fingerprints_json() const = 0;
  /// A JSON array with {"path", "ends"} for each source, and "loss" as above: "ends" is a hash of sizes,
  /// first and last 4 KiB of its files, so that every rank can compare what it opened with what the run began
  /// with.
  virtual std::string ends_json() const = 0;
  /// Error(kData): a file that was read since the last call was written to or shortened meanwhile.
  virtual void require_unchanged() const = 0;
};

/// Samples one after another, each of seq_len + 1.
struct SampleBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> document_starts = {};  ///< SampleRows::document_start; empty without documents
  std::vector<uint8_t> weights = {};          ///< SampleRows::weights; empty if every target counts once
  std::vector<int32_t> sources = {};          ///< Dataset::source_of each; empty: there is one

  /// With room for so many samples of seq_len + 1 tokens, and what the dataset has of them.
  static SampleBatch of(const Dataset& dataset, size_t samples, size_t width);
  /// The i-th sample.
  SampleRows rows(size_t i, size_t width);
  /// Makes sample `index` of the dataset its i-th one.
  void read(const Dataset& dataset, uint64_t index, size_t i, size_t width);
};

/// Opens every source and checks it without a full scan. Checks token ids in up to 1 M tokens per source.
/// Error(kData): as open_source, or the vocabulary does not match, or a source has less than seq_len + 1
/// tokens.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);

/// The source and position of sample `index` of a mixture. Pure, O(number of sources) for every index. After
/// any n samples, the number of samples taken from a source differs from n * weight / sum(weights) by at most
/// 1 with up to four sources, and by at most 1.7 with more (data/mixture.h). With shuffle, `sample` is a
/// permutation that depends on (seed, source, epoch).
struct SampleAddress {
  int source = 0;
  uint64_t epoch = 0;
  uint64_t sample = 0;   ///< index in the source, after shuffling
};
SampleAddress address_of(uint64_t index, std::span<const double> weights, std::span<const uint64_t> samples, bool shuffle,
                         uint64_t seed);

/// Reads batches of samples ahead on its own thread, in the order of the requests.
class Prefetcher {
 public:
  /// `depth`: the largest number of batches that are read ahead. The dataset must outlive this object.
  ///   on_read   called on the thread that reads, behind each batch, with the monotonic times between which
  ///             it was read; may be empty
  Prefetcher(const Dataset& dataset, int64_t seq_len, int depth,
             std::function<void(double begin_s, double end_s)> on_read = {});
  ~Prefetcher();   ///< does not wait for batches that were not read
  /// Requests the samples with these global indices as a batch [indices.size()][seq_len + 1].
  void request(std::vector<uint64_t> indices);
  /// Blocks until the next requested batch is read and returns it. Rethrows an exception of the read, also
  /// that of Dataset::require_unchanged: a batch that it returns has the bytes of the files as they were
  /// opened.
  /// `waited_s`: set to the time blocked, in seconds.
  SampleBatch next(double* waited_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::data
