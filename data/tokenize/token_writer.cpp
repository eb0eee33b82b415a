#include "data/token_writer.h"

#include <algorithm>
#include <cstring>

#include "data/token_file.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
// The length of a sequence is an i32 in the index; a longer document becomes several sequences.
constexpr uint64_t kLongestSequence = uint64_t(1) << 30;
constexpr const char* kTemporary = ".tmp";

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

TokenWriter::TokenWriter(FileSystem& fs, const WriterOptions& options)
    : fs_(fs), options_(options),
      wide_(options.format == Format::megatron ? options.vocab_size >= 65500 : options.vocab_size > 65536) {
  ENSURE(options.format == Format::megatron || options.format == Format::llmc, "format {}", int(options.format));
  for (const std::string& file : files())
    if (fs_.exists(file + kTemporary)) fs_.remove_file(file + kTemporary);  // of a run that was killed
  bin_ = fs_.create(options_.prefix + ".bin" + kTemporary);
  if (options_.format == Format::llmc) buffer_.assign(kLlmcHeaderBytes, '\0');
}

TokenWriter::~TokenWriter() {
  if (finished_) return;
  bin_.reset();
  idx_.reset();
  for (const std::string& file : files()) {
    try {
      if (fs_.exists(file + kTemporary)) fs_.remove_file(file + kTemporary);
    } catch (...) {  // the first error is the one to report
    }
  }
}

std::vector<std::string> TokenWriter::files() const {
  if (options_.format == Format::llmc) return {options_.prefix + ".bin"};
  return {options_.prefix + ".idx", options_.prefix + ".bin"};
}

void TokenWriter::put(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() >= kBufferBytes) flush();
}

void TokenWriter::flush() {
  bin_->write_at(written_, std::as_bytes(std::span(buffer_)));
  written_ += buffer_.size();
  buffer_.clear();
}

void TokenWriter::add(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    const size_t n = size_t(std::min<uint64_t>({ids.size(), kBufferBytes / 4, kLongestSequence - sequence_tokens_}));
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
    ENSURE(largest < uint64_t(options_.vocab_size), "token id {} of a vocabulary of {}", largest, options_.vocab_size);
    if (wide_) std::memcpy(bytes.data(), part.data(), bytes.size());
    put(bytes);
    tokens_ += n;
    sequence_tokens_ += n;
    if (sequence_tokens_ == kLongestSequence) close_sequence();
    ids = ids.subspan(n);
  }
  if (options_.format == Format::llmc && tokens_ > uint64_t(INT32_MAX))
    throw Error(ErrorCode::kData, fmt::format("an llm.c shard holds at most {} tokens and {}.bin would have more; use --to megatron "
                                              "or fewer inputs at a time", INT32_MAX, options_.prefix));
}

void TokenWriter::close_sequence() {
  if (sequence_tokens_ == 0) return;
  if (options_.format == Format::megatron) lengths_.push_back(int32_t(sequence_tokens_));
  sequence_tokens_ = 0;
}

void TokenWriter::end_document() {
  close_sequence();
  ++documents_;
  if (options_.format == Format::megatron) starts_.push_back(int64_t(lengths_.size()));
}

void TokenWriter::write_index() {
  std::string head(reinterpret_cast<const char*>(kMegatronMagic), sizeof kMegatronMagic);
  append(head, uint64_t(1));
  append(head, uint8_t(wide_ ? 4 : 8));
  append(head, uint64_t(lengths_.size()));
  append(head, uint64_t(starts_.size()));
  std::vector<int64_t> pointers(lengths_.size());
  int64_t next = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    pointers[i] = next;
    next += int64_t(lengths_[i]) * (wide_ ? 4 : 2);
  }
  idx_ = fs_.create(options_.prefix + ".idx" + kTemporary);
  uint64_t at = 0;
  const auto write = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty()) idx_->write_at(at, bytes);
    at += bytes.size();
  };
  write(std::as_bytes(std::span(head)));
  write(std::as_bytes(std::span(lengths_)));
  write(std::as_bytes(std::span(pointers)));
  write(std::as_bytes(std::span(starts_)));
  idx_->sync();
}

void TokenWriter::finish(const std::string& stale_sidecar) {
  ENSURE(!finished_ && sequence_tokens_ == 0, "{}: {} tokens outside a document", options_.prefix, sequence_tokens_);
  flush();
  if (options_.format == Format::llmc) {
    const int32_t header[3] = {wide_ ? kLlmcMagicU32 : kLlmcMagicU16, wide_ ? 7 : 1, int32_t(tokens_)};
    bin_->write_at(0, std::as_bytes(std::span(header)));
  } else {
    write_index();
  }
  bin_->sync();
  const std::string folder = folder_of(options_.prefix);
  // An old index next to a new llm.c shard would look like a damaged Megatron pair.
  for (const std::string& old : {stale_sidecar, options_.prefix + ".idx", options_.prefix + ".bin"})
    if (!old.empty() && fs_.exists(old)) fs_.remove_file(old);
  fs_.sync_directory(folder);
  const std::vector<std::string> names = files();
  for (auto name = names.rbegin(); name != names.rend(); ++name) fs_.rename(*name + kTemporary, *name);
  finished_ = true;
  fs_.sync_directory(folder);
}

}  // namespace trainctl::data
