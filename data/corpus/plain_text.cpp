// Blocks of plain text: of a file that is one document, parts of it; with a separator, whole documents and
// parts of long ones.
#include <algorithm>
#include <optional>

#include "data/corpus/byte_stream.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/limits.h"
#include "data/corpus/separator.h"
#include "data/tokenizer.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

class PlainTextBlocks final : public FileBlocks {
 public:
  PlainTextBlocks(FileSystem& fs, const std::string& path, const CorpusOptions& options)
      : path_(path), options_(options), separator_(options.separator), stream_(open_bytes(fs, path)) {
    if (!is_whole() || options.held_out == 0) return;
    const uint64_t shares = options.kept + options.held_out;
    split_at_ = uint64_t((unsigned __int128)content_bytes(fs, path) * options.kept / shares);
  }

  void seek(const CorpusPosition& position) override {
    position_ = position;
    is_done_ = is_whole() && !position.in_document && position.number >= documents_of_whole();
    if (position.offset == 0) return;
    char before = 0;
    stream_->skip(position.offset - 1);
    stream_->read({&before, 1});
    at_line_start_ = before == '\n';
  }
  uint64_t stored_bytes() const override { return stream_->stored_bytes(); }

  bool next(Block& block) override {
    block = {.kind = Block::Kind::texts, .begin = position_, .whole_file = is_whole()};
    if (is_whole()) return next_of_whole(block);
    return next_separated(block);
  }

 private:
  struct Cut {
    size_t length = 0;
    bool ends = false;      ///< the document ends here
    bool too_long = false;  ///< the document cannot be cut within the limit
  };

  bool is_whole() const { return options_.separator.empty(); }
  uint64_t documents_of_whole() const { return split_at_ ? 2 : 1; }
  std::string_view unread() const { return std::string_view(buffer_).substr(used_); }

  /// Reads until `wanted` bytes are unread, or the end of the file.
  void fill(size_t wanted) {
    if (at_end_ || buffer_.size() - used_ >= wanted) return;
    buffer_.erase(0, used_);
    used_ = 0;
    const size_t had = buffer_.size(), more = std::max(wanted - had, options_.block_bytes);
    buffer_.resize(had + more);
    const size_t n = stream_->read(std::span(buffer_).subspan(had));
    buffer_.resize(had + n);
    at_end_ = n < more;
  }

  void use(size_t bytes) {
    if (bytes > 0) at_line_start_ = buffer_[used_ + bytes - 1] == '\n';
    used_ += bytes;
    position_.offset += bytes;
  }
  /// Moves `bytes` to the block as one text.
  void take(Block& block, const Cut& cut) {
    block.bytes.assign(buffer_, used_, cut.length);
    block.texts.push_back({0, cut.length});
    block.goes_on = position_.in_document = !cut.ends;
    position_.number += cut.ends;
    use(cut.length);
    block.end = position_;
  }
  void refuse_too_long(Block& block) {
    LeftOut record{fmt::format("{}, document {}", path_, position_.number + 1),
                   too_long(unread().size(), options_)};
    if (options_.cut) record.why += "; this tokenizer takes a document as a whole";
    if (!options_.skip_bad) throw Error(ErrorCode::kData, fmt::format("{}: {}", record.place, record.why));
    block.left_out.push_back(std::move(record));
    if (position_.in_document) block.texts.push_back({});  // its first parts stay
    position_.in_document = false;
  }

  /// Where to cut a document whose first `most` bytes may be cut; `reserved`: bytes at the end of what was
  /// read that may belong to a separator.
  Cut cut_document(uint64_t most, size_t reserved) {
    const size_t limit = options_.block_bytes;
    size_t wanted = limit + reserved + 8;
    while (true) {
      fill(wanted);
      const bool complete = at_end_ || unread().size() >= most;  // what may be cut was read
      const size_t available = size_t(std::min<uint64_t>(unread().size(), most));
      const std::string_view text =
          unread().substr(0, complete ? available : available - std::min(available, reserved));
      if (!options_.cut && text.size() > options_.longest_document) return {.too_long = true};
      if (complete && (text.size() <= limit || !options_.cut)) return {.length = text.size(), .ends = true};
      if (options_.cut && text.size() > limit) {
        const size_t n = options_.cut(text, limit);
        if (n < text.size()) return {.length = n};
        if (complete) return {.length = n, .ends = true};
      }
      if (text.size() > options_.longest_document) return {.too_long = true};
      wanted = 2 * std::max(wanted, unread().size());
      if (reserved > 0 && !at_end_) return {};  // the caller looks for a separator in what is read next
    }
  }

  bool next_of_whole(Block& block) {
    if (is_done_) return false;
    block.held_out = position_.number > 0;
    const bool is_kept_of_two = split_at_ && !block.held_out;
    const uint64_t limit = options_.block_bytes;
    const uint64_t most = is_kept_of_two ? *split_at_ - position_.offset : ~uint64_t(0);
    Cut cut;
    if (most <= 2 * limit) {
      fill(size_t(most) + 4);
      cut = {.length = most < 8 ? size_t(most) : cut_text(unread(), size_t(most)), .ends = true};
    } else {
      cut = cut_document(most, 0);
    }
    if (cut.too_long) {
      refuse_too_long(block);
      position_.number = documents_of_whole();
      is_done_ = true;
      block.end = position_;
      return true;
    }
    take(block, cut);
    if (is_kept_of_two && cut.length == 0 && !block.begin.in_document) block.texts.clear();  // none is kept
    is_done_ = cut.ends && !is_kept_of_two;
    return true;
  }

  bool next_separated(Block& block) {
    const size_t limit = options_.block_bytes, reserve = separator_.reserve();
    for (size_t wanted = limit + reserve + 8;; wanted = 2 * std::max(wanted, unread().size())) {
      fill(wanted);
      if (unread().empty()) return finish(block);
      if (take_separated(block)) return true;
      const Cut cut = cut_document(~uint64_t(0), at_end_ ? 0 : reserve);
      if (cut.too_long) {
        refuse_too_long(block);
        skip_document();
        block.end = position_;
        return true;
      }
      if (cut.length == 0) continue;
      take(block, cut);
      return true;
    }
  }

  /// The end of the file after a separator, or inside a document whose parts were all taken.
  bool finish(Block& block) {
    if (!position_.in_document) return false;
    take(block, {.ends = true});
    return true;
  }

  /// Takes the documents that end in what was read, up to about the size of a block; false if none does.
  bool take_separated(Block& block) {
    const std::string_view text = unread();
    size_t begin = 0;
    while (begin <= options_.block_bytes) {
      const auto found = separator_.find(text, begin, begin > 0 || at_line_start_, at_end_);
      if (!found) break;
      block.texts.push_back({begin, found->begin});
      begin = found->end;
    }
    if (begin == 0) return false;
    block.bytes.assign(text.substr(0, begin));
    position_.number += block.texts.size();
    position_.in_document = false;
    use(begin);
    at_line_start_ = true;
    block.end = position_;
    return true;
  }

  /// Drops text up to the end of the document.
  void skip_document() {
    ++position_.number;
    position_.in_document = false;
    while (true) {
      fill(options_.block_bytes + separator_.reserve());
      const auto found = separator_.find(unread(), 0, at_line_start_, at_end_);
      if (found) {
        use(found->end);
        at_line_start_ = true;
        return;
      }
      use(at_end_ ? unread().size() : unread().size() - separator_.reserve());
      if (at_end_) return;
    }
  }

  const std::string path_;
  const CorpusOptions& options_;
  const Separator separator_;
  std::unique_ptr<ByteStream> stream_;
  std::optional<uint64_t> split_at_;  // of a whole file: about here begins what is held out
  std::string buffer_;
  size_t used_ = 0;          // of the buffer
  CorpusPosition position_;  // of the first unread byte
  bool at_end_ = false;      // the buffer holds the end of the file
  bool at_line_start_ = true, is_done_ = false;
};

}  // namespace

std::unique_ptr<FileBlocks> open_plain_text(FileSystem& fs, const std::string& path,
                                            const CorpusOptions& options) {
  return std::make_unique<PlainTextBlocks>(fs, path, options);
}

}  // namespace trainctl::data
