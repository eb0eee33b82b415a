#include "ckpt/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/manifest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

using Entry = ShardReceipt::Entry;

/// "" if it cannot be read; `why` says so then.
std::string text_in(StoredFiles& files, const char* name, std::string* why = nullptr) {
  try {
    return files.has(name) ? files.read_text(name) : "";
  } catch (const Error& error) {
    if (why) *why = error.what();
    return "";
  }
}

std::optional<Manifest> parsed(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return parse_manifest(text, kManifestName);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// A place with files, which are opened once.
class Place {
 public:
  explicit Place(StoredFiles& files) : files_(files) {}
  StoredFiles& files() { return files_; }
  /// False if it has no such bytes, or they cannot be read: then error() says why.
  bool read(const std::string& name, uint64_t offset, std::span<std::byte> out) {
    error_.clear();
    try {
      File* const file = open(name);
      if (!file || offset > file->size() || out.size() > file->size() - offset) return false;
      file->read_at(offset, out);
      return true;
    } catch (const Error& error) {
      error_ = error.what();
      return false;
    }
  }
  /// nullopt: absent, or it cannot be opened: then error() says why.
  std::optional<uint64_t> size(const std::string& name) {
    error_.clear();
    try {
      File* const file = open(name);
      return file ? std::optional(file->size()) : std::nullopt;
    } catch (const Error& error) {
      error_ = error.what();
      return std::nullopt;
    }
  }
  const std::string& error() const { return error_; }  ///< of the last call; "": none

 private:
  File* open(const std::string& name) {
    const auto at = open_.find(name);
    if (at != open_.end()) return at->second.get();
    if (open_.size() >= 32) open_.clear();
    return open_.emplace(name, files_.has(name) ? files_.open(name) : nullptr).first->second.get();
  }
  StoredFiles& files_;
  std::map<std::string, std::unique_ptr<File>> open_;
  std::string error_;
};

/// Where bytes with a content hash may be.
struct Copy {
  size_t place = 0;
  std::string file;
  uint64_t offset = 0;
};

class Repairer {
 public:
  Repairer(StoredFiles& damaged, std::span<const std::unique_ptr<StoredFiles>> sources) {
    places_.emplace_back(damaged);
    for (const auto& source : sources) places_.emplace_back(*source);
  }

  RepairReport run(bool only_look) {
    if (!find_manifest()) return std::move(report_);
    for (size_t place = 0; place < places_.size(); ++place) index(place);
    for (const ShardReceipt& shard : manifest_.files) examine(shard);
    find_foreign();
    if (only_look || !report_.missing.empty()) return std::move(report_);
    for (const ShardReceipt& shard : manifest_.files)
      if (damaged_.count(shard.file)) rewrite(shard);
    replace_text(kManifestName, manifest_text_);
    replace_text(kCommitName, commit_text(manifest_text_, manifest_));
    return std::move(report_);
  }

 private:
  Place& own() { return places_[0]; }

  // ---- manifest and COMMIT

  /// Sets manifest_ and manifest_text_, and reports what was wrong with the two files.
  bool find_manifest() {
    std::string text_error, commit_error;
    const std::string text = text_in(own().files(), kManifestName, &text_error),
                      commit = text_in(own().files(), kCommitName, &commit_error);
    // Its own pair comes first, unless the chunks are those of a replica's manifest and not of its own.
    const bool is_own = try_manifest(0, text, commit);
    if (!is_own || (is_disputed(text) && !is_mostly_here(manifest_)))
      for (size_t place = 1; place < places_.size(); ++place)
        if (try_manifest(place, text_in(places_[place].files(), kManifestName), is_own ? "" : commit)) break;
    if (manifest_text_.empty()) {
      const std::string& error = text_error.empty() ? commit_error : text_error;
      report_.found.push_back(
          {kManifestName, "",
           error.empty() ? "neither it nor a replica's can be trusted: no COMMIT holds its SHA-256" : error,
           0, !error.empty()});
      report_.missing = report_.found;
      return false;
    }
    note_text(kManifestName, text, manifest_text_, text_error);
    note_text(kCommitName, commit, commit_text(manifest_text_, manifest_), commit_error);
    return true;
  }
  bool try_manifest(size_t place, const std::string& text, const std::string& commit) {
    auto manifest = parsed(text);
    if (!manifest || !is_of_this_step(*manifest) || !is_vouched_for(text, *manifest, commit, place))
      return false;
    manifest_ = std::move(*manifest);
    manifest_text_ = text;
    return true;
  }
  bool is_disputed(const std::string& text) {
    return std::any_of(places_.begin() + 1, places_.end(), [&](Place& source) {
      const std::string other = text_in(source.files(), kManifestName);
      const auto manifest = parsed(other);
      return other != text && manifest && is_of_this_step(*manifest);
    });
  }
  bool is_of_this_step(const Manifest& manifest) {
    const auto step = own().files().named_step();
    return !step || *step == manifest.state.step;
  }
  /// By this checkpoint's own COMMIT; or by that of a replica, if this checkpoint holds what the manifest
  /// names.
  bool is_vouched_for(const std::string& text, const Manifest& manifest, const std::string& commit,
                      size_t place) {
    const std::string field = manifest_field(text);
    if (commit.find(field) != std::string::npos) return true;
    for (size_t other = 1; other < places_.size(); ++other)
      if (place == 0 || place == other)
        if (text_in(places_[other].files(), kCommitName) == commit_text(text, manifest))
          return is_mostly_here(manifest);
    return false;
  }
  bool is_mostly_here(const Manifest& manifest) {
    uint64_t good = 0, all = 0;
    for (const ShardReceipt& shard : manifest.files)
      for (const Entry& entry : shard.entries)
        ++all, good += is_good_at(manifest.state, entry, {0, shard.file, entry.offset});
    return 2 * good > all;
  }
  void note_text(const char* name, const std::string& have, const std::string& want,
                 const std::string& error) {
    if (have == want) return;
    const auto at = std::mismatch(have.begin(), have.end(), want.begin(), want.end()).first - have.begin();
    report_.found.push_back({name, "",
                             !error.empty() ? error
                             : have.empty() ? "it is missing or empty"
                                            : "it is damaged",
                             uint64_t(at), !error.empty()});
    damaged_.insert(name);
  }

  // ---- chunks

  void index(size_t place) {
    const auto add = [&](const Manifest& manifest) {
      for (const ShardReceipt& shard : manifest.files)
        for (const Entry& entry : shard.entries)
          copies_[entry.content_hash].push_back({place, shard.file, entry.offset});
    };
    add(manifest_);  // a replica has the same files
    const std::string text = text_in(places_[place].files(), kManifestName);
    if (text == manifest_text_) return;
    if (const auto manifest = parsed(text)) add(*manifest);  // its text is not trusted: hashes decide
  }
  bool is_good_at(const StateInfo& state, const Entry& entry, const Copy& copy) {
    buffer_.resize(entry.bytes);
    return places_[copy.place].read(copy.file, copy.offset, buffer_) && xxh3(buffer_) == entry.content_hash &&
           xxh3(buffer_, identity_seed(state, entry.tensor, entry.role, entry.box)) == entry.hash;
  }
  /// If true, its bytes are in buffer_.
  const Copy* good_copy(const Entry& entry) {
    for (const Copy& copy : copies_[entry.content_hash])
      if (is_good_at(manifest_.state, entry, copy)) return &copy;
    return nullptr;
  }

  void examine(const ShardReceipt& shard) {
    // `message` is not needed where the bytes cannot be read.
    const auto report = [&](const std::string& tensor, uint64_t offset, const std::string& message) {
      const bool is_unread = !own().error().empty();
      report_.found.push_back({shard.file, tensor, is_unread ? own().error() : message, offset, is_unread});
      damaged_.insert(shard.file);
    };
    const auto bytes = own().size(shard.file);
    if (!bytes)
      report("", 0, "the file is missing");
    else if (*bytes != shard.file_bytes)
      report("", std::min(*bytes, shard.file_bytes),
             fmt::format("the file has {} bytes instead of {}", *bytes, shard.file_bytes));
    const std::string expected = expected_header(manifest_.state, shard);
    std::string header(std::min<uint64_t>(expected.size(), bytes.value_or(0)), '\0');
    if (!header.empty() && (!own().read(shard.file, 0, std::as_writable_bytes(std::span(header))) ||
                            header != expected.substr(0, header.size())))
      report("",
             uint64_t(std::mismatch(header.begin(), header.end(), expected.begin()).first - header.begin()),
             "the header is not what the manifest says it was");
    for (const Entry& entry : shard.entries) {
      if (is_good_at(manifest_.state, entry, {0, shard.file, entry.offset})) continue;
      report(chunk_text(entry), entry.offset,
             fmt::format("these {} bytes are not those of the manifest", entry.bytes));
      if (const Copy* const copy = good_copy(entry))
        note_origin(*copy, entry.bytes);
      else
        report_.missing.push_back({shard.file, chunk_text(entry), "no source has these bytes", entry.offset});
    }
  }
  void note_origin(const Copy& copy, uint64_t bytes) {
    const std::string where = places_[copy.place].files().where();
    auto at = std::find_if(report_.origins.begin(), report_.origins.end(),
                           [&](const auto& o) { return o.where == where; });
    if (at == report_.origins.end()) at = report_.origins.insert(at, {where});
    ++at->chunks;
    at->bytes += bytes;
  }
  void find_foreign() {
    std::set<std::string> named{kManifestName, kCommitName};
    for (const ShardReceipt& shard : manifest_.files) named.insert(shard.file);
    for (const std::string& name : own().files().names())
      if (!named.count(name)) report_.foreign.push_back(name);
  }

  // ---- writing

  void rewrite(const ShardReceipt& shard) {
    const std::string header = expected_header(manifest_.state, shard);
    const auto file = own().files().replace(shard.file, shard.file_bytes);
    file->append(std::as_bytes(std::span(header)));
    for (const Entry& entry : shard.entries) {
      if (!is_good_at(manifest_.state, entry, {0, shard.file, entry.offset}) && !good_copy(entry))
        throw Error(ErrorCode::kIo,
                    fmt::format("{} of {} was good a moment ago and cannot be read any more: nothing of "
                                "this file was replaced",
                                chunk_text(entry), shard.file));
      file->append(buffer_);
    }
    file->finish();
    report_.rewritten.push_back(shard.file);
  }
  void replace_text(const char* name, const std::string& text) {
    if (!damaged_.count(name)) return;
    const auto file = own().files().replace(name, text.size());
    file->append(std::as_bytes(std::span(text)));
    file->finish();
    report_.rewritten.push_back(name);
  }

  std::vector<Place> places_;  // the damaged checkpoint, then the sources
  Manifest manifest_;
  std::string manifest_text_;
  std::map<uint64_t, std::vector<Copy>> copies_;  // by content hash
  std::set<std::string> damaged_;                 // files to write anew
  std::vector<std::byte> buffer_;
  RepairReport report_;
};

}  // namespace

bool RepairReport::is_unread() const {
  return !found.empty() && std::all_of(found.begin(), found.end(),
                                       [](const VerifyFinding& finding) { return finding.is_unread; });
}

RepairReport repair(StoredFiles& damaged, std::span<const std::unique_ptr<StoredFiles>> sources,
                    bool only_look) {
  return Repairer(damaged, sources).run(only_look);
}

}  // namespace trainctl::ckpt
