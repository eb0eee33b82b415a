#include "data/tokenize/token_writer.h"

#include <algorithm>
#include <cstring>

#include "data/token_file.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::data {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
// The length of a sequence is an i32 in the index; a longer document becomes several sequences.
constexpr uint64_t kLongestSequence = uint64_t(1) << 30;
// An entry of PREFIX.lengths: a u32, the tokens of a sequence, with this bit if a document ends with it.
constexpr uint32_t kEndsDocument = uint32_t(1) << 31;

template <typename T>
std::string_view bytes_of_number(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

bool is_wide(const WriterOptions& options) {
  return options.format == Format::megatron ? options.vocab_size >= 65500 : options.vocab_size > 65536;
}

/// Opens a file that must have `bytes`.
std::unique_ptr<File> open_again(FileSystem& fs, const std::string& path, uint64_t bytes) {
  auto file = fs.open_write(path);
  if (file->size() < bytes)
    throw Error(ErrorCode::kData, fmt::format("{} has {} bytes, and {} were written to it; it was changed",
                                              path, file->size(), bytes));
  return file;
}

}  // namespace

void TokenWriter::Stream::put(std::string_view bytes) {
  buffer += bytes;
  if (buffer.size() >= kBufferBytes) flush();
}

void TokenWriter::Stream::flush() {
  if (!buffer.empty()) file->write_at(written, std::as_bytes(std::span(buffer)));
  written += buffer.size();
  buffer.clear();
}

TokenWriter::TokenWriter(FileSystem& fs, const WriterOptions& options)
    : fs_(fs), options_(options), wide_(is_wide(options)) {
  ENSURE(options.format == Format::megatron || options.format == Format::llmc, "format {}",
         int(options.format));
  bin_.file = fs_.create(options_.prefix + ".bin");
  if (is_indexed())
    lengths_.file = fs_.create(lengths_path());
  else
    bin_.buffer.assign(kLlmcHeaderBytes, '\0');
  if (!options_.has_weights) return;
  loss_.file = fs_.create(loss_path(options_.prefix));
  loss_.buffer.assign(kLossHeaderBytes, '\0');
}

TokenWriter::TokenWriter(FileSystem& fs, const WriterOptions& options, const WriterState& state)
    : fs_(fs), options_(options), wide_(is_wide(options)), state_(state) {
  bin_.written = (is_indexed() ? 0 : kLlmcHeaderBytes) + state.tokens * (wide_ ? 4 : 2);
  bin_.file = open_again(fs_, options_.prefix + ".bin", bin_.written);
  if (options_.has_weights) {
    loss_.written = kLossHeaderBytes + state.tokens;
    loss_.file = open_again(fs_, loss_path(options_.prefix), loss_.written);
  }
  if (!is_indexed()) return;
  lengths_.written = state.sequences * sizeof(uint32_t);
  lengths_.file = open_again(fs_, lengths_path(), lengths_.written);
}

std::vector<std::string> TokenWriter::endings(Format format, bool has_weights) {
  std::vector<std::string> endings = {".idx", ".bin"};
  if (format == Format::llmc) endings = {".bin"};
  if (has_weights) endings.push_back(".loss");
  return endings;
}

void TokenWriter::add_weights(std::span<const uint8_t> weights) {
  loss_.put({reinterpret_cast<const char*>(weights.data()), weights.size()});
}

void TokenWriter::add(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    const size_t n =
        size_t(std::min<uint64_t>({ids.size(), kBufferBytes / 4, kLongestSequence - state_.sequence_tokens}));
    const auto part = ids.first(n);
    std::string bytes(n * (wide_ ? 4 : 2), '\0');
    uint32_t largest = 0;
    for (size_t i = 0; i < n; ++i) {
      largest = std::max(largest, uint32_t(part[i]));
      if (!wide_) {
        const uint16_t narrow = uint16_t(part[i]);
        std::memcpy(bytes.data() + 2 * i, &narrow, 2);
      }
    }
    ENSURE(largest < uint64_t(options_.vocab_size), "token id {} of a vocabulary of {}", largest,
           options_.vocab_size);
    if (wide_) std::memcpy(bytes.data(), part.data(), bytes.size());
    bin_.put(bytes);
    state_.tokens += n;
    state_.sequence_tokens += n;
    if (state_.sequence_tokens == kLongestSequence) put_length(false);
    ids = ids.subspan(n);
  }
  if (!is_indexed() && state_.tokens > uint64_t(INT32_MAX))
    throw Error(ErrorCode::kData,
                fmt::format("an llm.c shard holds at most {} tokens, and this one would have more; use "
                            "--to megatron or fewer inputs at a time",
                            INT32_MAX));
}

void TokenWriter::put_length(bool ends_document) {
  if (is_indexed())
    lengths_.put(bytes_of_number(uint32_t(state_.sequence_tokens) | (ends_document ? kEndsDocument : 0)));
  ++state_.sequences;
  state_.sequence_tokens = 0;
}

void TokenWriter::end_document() {
  put_length(true);
  ++state_.documents;
}

void TokenWriter::sync() {
  bin_.flush();
  bin_.file->sync();
  if (options_.has_weights) {
    loss_.flush();
    loss_.file->sync();
  }
  if (!is_indexed()) return;
  lengths_.flush();
  lengths_.file->sync();
}

/// Writes the three arrays of the index in one pass over the lengths, each at its place.
void TokenWriter::write_index() {
  lengths_.flush();
  // An entry without tokens only ends a document whose last sequence was full.
  uint64_t sequences = 0;
  std::vector<uint32_t> entries(kBufferBytes / sizeof(uint32_t));
  const auto for_each = [&](const auto& on_entry) {
    for (uint64_t done = 0; done < state_.sequences; done += entries.size()) {
      entries.resize(size_t(std::min<uint64_t>(kBufferBytes / sizeof(uint32_t), state_.sequences - done)));
      lengths_.file->read_at(done * sizeof(uint32_t), std::as_writable_bytes(std::span(entries)));
      for (const uint32_t entry : entries)
        on_entry(int32_t(entry & ~kEndsDocument), (entry & kEndsDocument) != 0);
    }
  };
  for_each([&](int32_t length, bool) { sequences += length > 0; });

  const std::string path = options_.prefix + ".idx";
  if (fs_.exists(path)) fs_.remove_file(path);
  const std::shared_ptr<File> file = fs_.create(path);
  Stream head{file, 0}, lengths{file, kMegatronHeaderBytes},
      pointers{file, kMegatronHeaderBytes + 4 * sequences},
      starts{file, kMegatronHeaderBytes + 12 * sequences};
  head.put({reinterpret_cast<const char*>(kMegatronMagic), sizeof kMegatronMagic});
  head.put(bytes_of_number(uint64_t(1)));
  head.put(bytes_of_number(uint8_t(wide_ ? 4 : 8)));
  head.put(bytes_of_number(sequences));
  head.put(bytes_of_number(state_.documents + 1));
  head.flush();
  starts.put(bytes_of_number(int64_t(0)));
  int64_t pointer = 0, sequence = 0;
  for_each([&](int32_t length, bool ends_document) {
    if (length > 0) {
      lengths.put(bytes_of_number(length));
      pointers.put(bytes_of_number(pointer));
      pointer += int64_t(length) * (wide_ ? 4 : 2);
      ++sequence;
    }
    if (ends_document) starts.put(bytes_of_number(sequence));
  });
  for (Stream* part : {&lengths, &pointers, &starts}) part->flush();
  file->sync();
}

/// The header of the loss file, from what is in the file: an earlier process may have written it.
void TokenWriter::complete_weights() {
  loss_.flush();
  ENSURE(loss_.written == kLossHeaderBytes + state_.tokens, "{}: weights up to byte {} for {} tokens",
         options_.prefix, loss_.written, state_.tokens);
  LossHeader header{.tokens = state_.tokens};
  Xxh3Stream hash;
  std::vector<uint8_t> weights(kBufferBytes);
  loss_tokens_ = 0;
  for (uint64_t done = 0; done < state_.tokens; done += weights.size()) {
    weights.resize(size_t(std::min<uint64_t>(kBufferBytes, state_.tokens - done)));
    loss_.file->read_at(kLossHeaderBytes + done, std::as_writable_bytes(std::span(weights)));
    hash.update(std::as_bytes(std::span(weights)));
    for (const uint8_t weight : weights) {
      header.largest = std::max(header.largest, weight);
      loss_tokens_ += weight > 0;
    }
  }
  header.hash = hash.digest();
  const std::string bytes = loss_header(header);
  loss_.file->write_at(0, std::as_bytes(std::span(bytes)));
  loss_.file->sync();
}

void TokenWriter::complete() {
  ENSURE(state_.sequence_tokens == 0, "{}: {} tokens outside a document", options_.prefix,
         state_.sequence_tokens);
  bin_.flush();
  const uint64_t bytes = bin_.file->size();
  if (bytes != bin_.written)
    throw Error(ErrorCode::kData,
                fmt::format("{}.bin has {} bytes, and {} were written to it; it was changed", options_.prefix,
                            bytes, bin_.written));
  if (is_indexed()) {
    write_index();
  } else {
    const int32_t header[3] = {wide_ ? kLlmcMagicU32 : kLlmcMagicU16, wide_ ? 7 : 1, int32_t(state_.tokens)};
    bin_.file->write_at(0, std::as_bytes(std::span(header)));
  }
  if (options_.has_weights) complete_weights();
  bin_.file->sync();
}

}  // namespace trainctl::data
