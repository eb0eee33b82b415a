#include "data/file_source.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::data {
namespace {

constexpr uint64_t kFingerprintBytes = 1 << 20, kEndBytes = 4096;

TokenFile open_one(Format format, const std::string& path, const SourceOptions& options) {
  switch (format) {
    case Format::megatron: return open_megatron(path, options.on_checked);
    case Format::llmc: return open_llmc(path);
    default: return open_raw(path, *options.dtype);
  }
}

/// Size, first and last bytes.
void hash_file(Xxh3Stream& hash, const MappedFile& file, uint64_t end_bytes) {
  const auto bytes = file.bytes();
  const uint64_t size = bytes.size(), n = std::min(size, end_bytes);
  hash.update(std::as_bytes(std::span(&size, 1)));
  hash.update(bytes.first(n));
  hash.update(bytes.last(n));
  file.drop_pages();
}

}  // namespace

Problem lacks_documents(const std::string& name, Format format, bool packed) {
  if (has_documents(format)) return Problem::none();
  return Problem(fmt::format(
      "data source {} ({}) does not say where documents begin, which {} needs; tokenize it again as a "
      "Megatron set (`trainctl data tokenize`), or set {}",
      name, name_of(format), packed ? "data.packing = \"best_fit\"" : "data.documents = \"mask\"",
      packed ? "data.packing = \"stream\"" : "data.documents = \"ignore\""));
}

std::string fingerprint_of(FileSystem& fs, Format format, const std::vector<std::string>& paths) {
  Xxh3Stream hash;
  const std::string name = name_of(format);
  hash.update(std::as_bytes(std::span(name)));
  for (const std::string& path : paths) {
    const auto file = fs.open_read(path);
    const uint64_t size = file->size(), n = std::min(size, kFingerprintBytes);
    hash.update(std::as_bytes(std::span(&size, 1)));
    std::vector<std::byte> bytes(n);
    for (const uint64_t offset : {uint64_t(0), size - n}) {
      file->read_at(offset, bytes);
      hash.update(bytes);
    }
  }
  return hex64(hash.digest());
}

FileSource::FileSource(const SourceOptions& options) : starts_{0} {
  const ResolvedSource resolved = resolve(options);
  format_ = resolved.format;
  for (const std::string& path : resolved.paths) {
    files_.push_back(open_one(format_, path, options));
    if (options.on_checked) options.on_checked(1);   // a file without an index is progress, too
    starts_.push_back(starts_.back() + files_.back().token_count);
    if (options.loss) files_.back().loss = open_loss(real_file_system(), path, files_.back().token_count);
    if (options.dtype && name_of(*options.dtype) != data::name_of(files_.back().element))
      throw Error(ErrorCode::kData, fmt::format("{} holds {} tokens, but the source says \"dtype\": \"{}\"; leave dtype out",
                                                files_.back().path(), data::name_of(files_.back().element),
                                                name_of(*options.dtype)));
  }
  was_read_ = std::vector<std::atomic<bool>>(files_.size());
}

uint64_t FileSource::document_count() const {
  uint64_t n = 0;
  for (const TokenFile& f : files_) n += f.document_count;
  return n;
}

int FileSource::token_bytes() const {
  int width = 0;
  for (const TokenFile& f : files_) width = std::max(width, size_of(f.element));
  return width;
}

size_t FileSource::file_of(uint64_t offset) const {
  return size_t(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin()) - 1;
}

void FileSource::read(uint64_t offset, std::span<int32_t> out) const {
  ENSURE(offset <= token_count() && out.size() <= token_count() - offset, "tokens [{}, +{}) of {}", offset, out.size(),
         token_count());
  while (!out.empty()) {
    const size_t f = file_of(offset);
    const size_t n = size_t(std::min<uint64_t>(out.size(), starts_[f + 1] - offset));
    was_read_[f].store(true, std::memory_order_relaxed);
    files_[f].read(offset - starts_[f], out.first(n));
    out = out.subspan(n);
    offset += n;
  }
}

void FileSource::document_starts(uint64_t offset, std::span<int32_t> out) const {
  ENSURE(has_documents() && !out.empty() && offset <= token_count() && out.size() <= token_count() - offset,
         "documents of tokens [{}, +{}) of {}", offset, out.size(), token_count());
  documents_read_.store(true, std::memory_order_relaxed);
  std::fill(out.begin(), out.end(), 0);
  const uint64_t end = offset + out.size();
  for (size_t f = file_of(offset); f < files_.size() && starts_[f] < end; ++f) {
    const uint64_t first = std::max(offset, starts_[f]) - starts_[f],
                   last = std::min(end, starts_[f + 1]) - starts_[f];
    for_each_document_begin(files_[f], first, last, [&](uint64_t token) {
      const uint64_t at = starts_[f] + token - offset;
      out[at] = int32_t(at);
    });
    files_[f].index_map->drop_pages();
  }
  for (size_t i = 1; i < out.size(); ++i) out[i] = std::max(out[i], out[i - 1]);
}

std::vector<TokenRange> FileSource::documents_of_window(size_t file, uint64_t first) const {
  const TokenFile& of = files_[file];
  static_assert(kPackingWindow % kDocumentsPerMark == 0);
  uint64_t token = starts_[file] + of.document_marks[size_t(first / kDocumentsPerMark)];
  std::vector<TokenRange> documents;
  for (const uint64_t length : document_lengths(of, kPackingWindow, first)) {
    documents.push_back({token, length});
    token += length;
  }
  of.index_map->drop_pages();
  return documents;
}

Packing FileSource::packing(uint64_t seq_len) const {
  ENSURE(has_documents(), "{} files have no documents", format_name());
  documents_read_.store(true, std::memory_order_relaxed);
  std::vector<std::pair<size_t, uint64_t>> windows;  // file, first document
  for (size_t f = 0; f < files_.size(); ++f)
    for (uint64_t first = 0; first < files_[f].document_count; first += kPackingWindow)
      windows.emplace_back(f, first);
  const uint64_t count = windows.size();
  return Packing(count, seq_len + 1, [this, windows = std::move(windows)](uint64_t window) {
    return documents_of_window(windows[size_t(window)].first, windows[size_t(window)].second);
  });
}

void FileSource::weights(uint64_t offset, std::span<uint8_t> out) const {
  ENSURE(offset <= token_count() && out.size() <= token_count() - offset, "weights [{}, +{}) of {}", offset,
         out.size(), token_count());
  while (!out.empty()) {
    const size_t f = file_of(offset);
    const size_t n = size_t(std::min<uint64_t>(out.size(), starts_[f + 1] - offset));
    was_read_[f].store(true, std::memory_order_relaxed);
    if (files_[f].loss) {
      const auto from = files_[f].loss->weights().subspan(size_t(offset - starts_[f]), n);
      std::copy(from.begin(), from.end(), out.begin());
    } else {
      std::fill_n(out.begin(), n, uint8_t(1));
    }
    out = out.subspan(n);
    offset += n;
  }
}

std::string FileSource::loss_hash() const {
  Xxh3Stream hash;
  bool any = false;
  for (const TokenFile& f : files_) {
    any |= f.loss.has_value();
    const std::string header = f.loss ? loss_header(f.loss->header) : "";
    const uint64_t size = header.size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(header)));
  }
  return any ? hex64(hash.digest()) : "none";
}

void FileSource::drop_pages(uint64_t offset, uint64_t tokens) const {
  for (size_t f = file_of(offset); f < files_.size() && starts_[f] < offset + tokens; ++f) {
    files_[f].tokens_map.drop_pages();
    if (files_[f].loss) files_[f].loss->map.drop_pages();
  }
}

void FileSource::require_unchanged() const {
  for (size_t f = 0; f < files_.size(); ++f)
    if (was_read_[f].exchange(false, std::memory_order_relaxed)) {
      files_[f].tokens_map.require_unchanged();
      if (documents_read_.load(std::memory_order_relaxed)) files_[f].index_map->require_unchanged();
      if (files_[f].loss) files_[f].loss->map.require_unchanged();
    }
}

std::string FileSource::ends() const {
  Xxh3Stream hash;
  for (const TokenFile& f : files_) {
    if (f.index_map) hash_file(hash, *f.index_map, kEndBytes);
    hash_file(hash, f.tokens_map, kEndBytes);
  }
  return hex64(hash.digest());
}

std::string FileSource::fingerprint() const {
  std::call_once(fingerprint_once_, [this] {
    Xxh3Stream hash;
    const std::string format = format_name();
    hash.update(std::as_bytes(std::span(format)));
    for (const TokenFile& f : files_) {
      if (f.index_map) hash_file(hash, *f.index_map, kFingerprintBytes);
      hash_file(hash, f.tokens_map, kFingerprintBytes);
    }
    fingerprint_ = hex64(hash.digest());
  });
  return fingerprint_;
}

std::vector<std::string> FileSource::files() const {
  std::vector<std::string> paths;
  for (const TokenFile& f : files_) {
    if (f.index_map) paths.push_back(f.index_map->path());
    paths.push_back(f.path());
    if (f.loss) paths.push_back(f.loss->map.path());
  }
  return paths;
}

std::string FileSource::describe(uint64_t offset) const {
  const size_t f = file_of(offset);
  const uint64_t within = offset - starts_[f];
  return fmt::format("{}, token {} (byte {})", files_[f].path(), within, files_[f].byte_of(within));
}

std::pair<std::string, uint64_t> FileSource::file_and_token(uint64_t offset) const {
  const size_t f = file_of(offset);
  return {files_[f].path(), offset - starts_[f]};
}

int64_t FileSource::value_at(uint64_t offset) const {
  const size_t f = file_of(offset);
  return files_[f].value_at(offset - starts_[f]);
}

std::unique_ptr<TokenSource> open_source(const SourceOptions& options) { return std::make_unique<FileSource>(options); }

}  // namespace trainctl::data
