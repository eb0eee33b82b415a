// Which tokens come next: sample i of a run is a function of (seed, i) alone, whichever rank asks.
//
// A source is one or more token files of one format, read through memory maps. It is cut into samples of seq_len + 1
// tokens that overlap by one: sample k is tokens [k * seq_len, (k + 1) * seq_len], targets shifted by one. A mixture
// takes the sources by weight. With shuffle, each source's epoch e is a counter-based permutation of its samples.
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
  std::string name;               ///< for messages and fingerprints; default: path
  /// Called while the source is opened, with the bytes of index that were checked since the last call; may be empty.
  std::function<void(uint64_t bytes)> on_checked = {};
};

/// Tokens of one source, all its files end to end. Thread-safe. Memory-mapped; nothing is copied until read.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual uint64_t token_count() const = 0;
  virtual uint64_t document_count() const = 0;     ///< 0 where unknown
  virtual int token_bytes() const = 0;
  virtual void read(uint64_t offset, std::span<int32_t> out) const = 0;
  /// xxh3 over format, sizes, headers and the first and last MiB of every file; 16 hex digits.
  virtual std::string fingerprint() const = 0;
  virtual std::vector<std::string> files() const = 0;
  virtual const char* format_name() const = 0;
};

/// Error(kData) with one sentence: missing, empty, truncated, wrong magic or version, eval shard, raw without dtype, ...
std::unique_ptr<TokenSource> open_source(const SourceOptions& options);

struct DatasetOptions {
  std::vector<SourceOptions> sources;
  int64_t seq_len = 0;
  int64_t vocab_size = 0;
  bool shuffle = true;
  uint64_t seed = 0;
};

/// The mixture as one endless sequence of samples. Thread-safe; a sample costs O(number of sources) arithmetic + one read.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Sample `index` of the run (step s of a run with G sequences per step uses [s*G, (s+1)*G)).   out: seq_len + 1 tokens.
  /// Error(kData) naming source, file, position and value if a token id is >= vocab_size.
  virtual void sample(uint64_t index, std::span<int32_t> out) const = 0;
  /// Samples of all sources in one epoch (what a validation pass reads: indices 0..n-1 without shuffle).
  virtual uint64_t samples_per_epoch() const = 0;
  virtual uint64_t token_count() const = 0;
  /// One line per source: {"name", "path", "format", "tokens", "fingerprint"} as a JSON array; goes into checkpoints.
  virtual std::string fingerprints_json() const = 0;
};

/// Opens every source and checks it (all that can be checked without a full scan; max token id over a sample of up to 1 M
/// tokens per source, all of it when smaller). Error(kData): as open_source, or vocabulary mismatch, or a source shorter
/// than seq_len + 1 tokens.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);

/// Where the mixture takes sample `index` from: pure, O(number of sources) at any index. After any n samples each source has
/// been used within one of n * weight / sum(weights) for up to four sources, within 1.7 beyond (data/mixture.h says how).
/// With shuffle, `sample` is a permutation of the source's samples that depends on (seed, source, epoch).
struct SampleAddress {
  int source = 0;
  uint64_t epoch = 0;
  uint64_t sample = 0;   ///< within the source, after shuffling
};
SampleAddress address_of(uint64_t index, std::span<const double> weights, std::span<const uint64_t> samples, bool shuffle,
                         uint64_t seed);

/// Reads samples ahead on its own thread. Requests are served in the order made.
class Prefetcher {
 public:
  /// `depth`: most requests held ready. The dataset must outlive this.
  Prefetcher(const Dataset& dataset, int64_t seq_len, int depth);
  ~Prefetcher();   ///< never blocks on unread batches
  /// Asks for the samples with these global indices, to be returned as [indices.size()][seq_len + 1].
  void request(std::vector<uint64_t> indices);
  /// Blocks for the next requested batch; rethrows what reading threw. `waited_s` gets the time blocked.
  std::vector<int32_t> next(double* waited_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::data
