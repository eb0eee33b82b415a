// A file system that runs one of two writers of a folder of checkpoints step by step, and notes which steps
// of one matter to the other.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/contest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "test/support/power_loss_file_system.h"

namespace trainctl::test {

inline const std::string kDir = "/c", kSaving = kDir + "/.saving", kTrash = kDir + "/.trash",
                         kEpochs = kDir + "/.epochs";

/// What a file system leaves out, for tests of this test.
enum class Omits {
  nothing,
  claim,              ///< publishers work in the folder of the save itself
  take_over,          ///< nobody sees another's claim
  own_claim,          ///< a publisher works in the other's claim
  fence,              ///< a new epoch leaves older claims and saves
  mark,               ///< a new epoch leaves no mark
  mark_before_fence,  ///< the mark comes after the fence
  look_after_move,    ///< what was moved is taken for what was meant
  put_back,           ///< it is not put back
  sync_of_folder,     ///< names in the folder are not made durable
};

struct Answer {
  bool is_error = false, yes = false;
  std::string text;
  std::vector<std::string> names;
};

inline std::string text_of(const Answer& answer) {
  std::string text = answer.is_error ? "e" : answer.yes ? "y" : "n";
  text += answer.text;
  for (const std::string& name : answer.names) text += "," + name;
  return text;
}
using Answers = std::vector<std::shared_ptr<const Answer>>;

/// A writer stops here until its next step.
struct Suspended {};

inline bool is_word(const std::string& text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

inline bool is_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}

/// What a writer asks of a path, or changes there.
struct Access {
  std::string path;
  bool is_list = false, is_change = false;
  auto operator<=>(const Access&) const = default;
};
inline bool is_at_or_below(const std::string& path, const std::string& folder) {
  return path == folder || is_below(path, folder);
}
/// Whether it matters which of the two comes first.
inline bool conflict(const Access& a, const Access& b) {
  if (!a.is_change && !b.is_change) return false;
  const auto reaches = [](const Access& change, const Access& other) {
    return change.is_change &&
           (is_at_or_below(other.path, change.path) ||
            (other.is_list && change.path.substr(0, change.path.rfind('/')) == other.path));
  };
  return reaches(a, b) || reaches(b, a);
}

/// All that each writer does in any order of their steps. What conflicts with nothing that the other one
/// does is no step of its own. Grows while orders are run; then they are run again.
class Accesses {
 public:
  /// Notes it, and says whether it is a step.
  bool is_step(size_t writer, const Access& access) {
    const auto [at, is_new] = of_[writer].try_emplace(access, false);
    if (is_new) {
      for (auto& [other, is_one] : of_[1 - writer])
        if (conflict(access, other)) {
          at->second = true;
          grown_ = grown_ || !is_one;
          is_one = true;
        }
    }
    return at->second;
  }
  bool take_grown() { return std::exchange(grown_, false); }

 private:
  std::array<std::map<Access, bool>, 2> of_;
  bool grown_ = false;
};

/// The file system as one writer sees it: first the answers that it had, then `steps` more calls. Random
/// words in names become a0...1, a0...2, so that equal situations look equal.
class Steps final : public FileSystem {
 public:
  struct Options {
    char writer = 'a';
    uint64_t steps = 0;
    Omits omits = Omits::nothing;
    Accesses* accesses = nullptr;
    bool has_rival = false;                 ///< another publisher of the same save: each file is a step
    bool has_damage = false;                ///< a shard is repaired: it is looked at, too
    std::function<void()> changed = [] {};  ///< called after each change
  };
  Steps(PowerLossFileSystem& fs, Answers& answers, uint64_t& digest, const Options& options)
      : fs_(fs),
        answers_(answers),
        digest_(digest),
        options_(options),
        steps_(options.steps),
        omits_(options.omits) {}

  std::unique_ptr<File> create(const std::string& given) override {
    const std::string path = in(given);
    std::shared_ptr<File> file;
    ask({{path, false, true}}, [&] { return file = fs_.create(path), Answer{}; });
    return std::make_unique<Created>(*this, file);
  }
  std::unique_ptr<File> open_read(const std::string& given) override {
    const std::string path = in(given);
    return std::make_unique<Opened>(ask({{path}}, [&] {
                                      if (omits_ == Omits::look_after_move &&
                                          path.find("/moved-") != path.npos)
                                        throw Error(ErrorCode::kIo, "not looked at");
                                      return Answer{.text = fs_.read_text(path)};
                                    }).text);
  }
  void make_directory(const std::string& path) override {
    const bool is_mark = is_below(path, kEpochs);
    if (is_mark && omits_ == Omits::mark_before_fence) late_mark_ = path;
    ask({{in(path), false, true}}, [&] {
      if (!is_mark || (omits_ != Omits::mark && late_mark_.empty())) fs_.make_directory(in(path));
      return Answer{};
    });
  }
  void rename(const std::string& from, const std::string& to) override {
    const std::string source = in(from), target = in(to);
    ask({{source, false, true}, {target, false, true}}, [&] {
      if (!is_omitted(source, target)) fs_.rename(source, target);
      drop_trash();
      return Answer{};
    });
  }
  bool try_rename_no_replace(const std::string& from, const std::string& to) override {
    const std::string source = in(from), target = in(to);
    const bool is_used = use_claim(source, target);
    return ask({{source, false, true}, {target, false, true}},
               [&] {
                 const bool done =
                     is_used || is_omitted(source, target) || fs_.try_rename_no_replace(source, target);
                 drop_trash();
                 return Answer{.yes = done};
               })
        .yes;
  }
  void remove_file(const std::string& path) override {
    ask({{in(path), false, true}}, [&] { return fs_.remove_file(in(path)), Answer{}; });
  }
  void remove_directory(const std::string& path) override {
    ask({{in(path), false, true}}, [&] { return fs_.remove_directory(in(path)), Answer{}; });
  }
  bool try_sync_directory(const std::string& path) override {
    return ask({},
               [&] {
                 if (omits_ == Omits::sync_of_folder && path == kDir) return Answer{.yes = true};
                 return Answer{.yes = fs_.try_sync_directory(in(path))};
               })
        .yes;
  }
  std::vector<std::string> list(const std::string& given) override {
    const std::string path = in(given);
    if (path == kSaving && !late_mark_.empty()) ++lists_after_mark_;
    Answer answer = ask({{path, true}}, [&] {
      std::vector<std::string> names = fs_.list(path);
      if (path == kSaving) hide(names);
      if (lists_after_mark_ == 2) fs_.make_directory(late_mark_);
      return Answer{.names = names};
    });
    for (std::string& name : answer.names)
      for (const auto& [word, own] : words_)
        if (name.ends_with(own)) name = name.substr(0, name.size() - own.size()) + word;
    std::sort(answer.names.begin(), answer.names.end());
    return answer.names;
  }
  bool exists(const std::string& given) override {
    const std::string path = in(given);
    return ask({{path}}, [&] { return Answer{.yes = fs_.exists(path)}; }).yes;
  }
  bool is_directory(const std::string& given) override {
    const std::string path = in(given);
    return ask({{path}}, [&] { return Answer{.yes = fs_.is_directory(path)}; }).yes;
  }

 private:
  /// Written at once: what nobody has opened by its name yet.
  class Created final : public File {
   public:
    Created(Steps& steps, std::shared_ptr<File> file) : steps_(steps), file_(std::move(file)) {}
    void write_at(uint64_t offset, std::span<const std::byte> data) override {
      steps_.ask({}, [&] { return file_->write_at(offset, data), Answer{}; });
    }
    void read_at(uint64_t, std::span<std::byte>) override { throw Error(ErrorCode::kIo, "write only"); }
    uint64_t size() override { throw Error(ErrorCode::kIo, "write only"); }
    void sync() override {
      steps_.ask({}, [&] { return file_->sync(), Answer{}; });
    }

   private:
    Steps& steps_;
    const std::shared_ptr<File> file_;
  };
  class Opened final : public File {
   public:
    explicit Opened(std::string text) : text_(std::move(text)) {}
    void write_at(uint64_t, std::span<const std::byte>) override { throw Error(ErrorCode::kIo, "read only"); }
    void read_at(uint64_t offset, std::span<std::byte> data) override {
      if (offset + data.size() > text_.size()) throw Error(ErrorCode::kIo, "too short");
      std::copy_n(std::as_bytes(std::span(text_)).begin() + ptrdiff_t(offset), data.size(), data.begin());
    }
    uint64_t size() override { return text_.size(); }
    void sync() override {}

   private:
    const std::string text_;
  };

  const Answer& ask(const std::vector<Access>& accesses, const std::function<Answer()>& live) {
    if (next_ == answers_.size()) {
      bool is_step = false;
      for (const Access& access : accesses)
        is_step |= is_shared(access.path) && options_.accesses->is_step(options_.writer - 'a', access);
      if (is_step && steps_ == 0) throw Suspended{};
      if (is_step) --steps_;
      std::shared_ptr<const Answer> answer;
      try {
        answer = std::make_shared<Answer>(live());
      } catch (const Error&) {
        answer = std::make_shared<Answer>(Answer{.is_error = true});
      }
      answers_.push_back(answer);
      digest_ = xxh3(text_of(*answer), digest_);
      if (!accesses.empty() && accesses[0].is_change) options_.changed();
    }
    const Answer& answer = *answers_[next_++];
    if (answer.is_error) throw Error(ErrorCode::kIo, "refused");
    return answer;
  }
  /// Whether it matters when a call for `path` comes. It does not for the folders that are always there,
  /// for a shard, which is looked at after the manifest next to it, and for the files in an own claim,
  /// unless a rival takes it over: from a claim that was removed nothing is published.
  bool is_shared(const std::string& path) const {
    if (path == kDir || path == kTrash || is_below(path, kTrash)) return false;
    if (path.ends_with("/s.safetensors")) return options_.has_damage;
    const std::string folder = path.substr(0, path.rfind('/')),
                      place = is_below(folder, kSaving) ? folder : path;
    const auto saving = ckpt::saving_name(place.substr(place.rfind('/') + 1));
    return options_.has_rival || !saving || saving->claim.empty() || saving->claim[0] != options_.writer;
  }
  /// Nobody looks into it: what comes there is gone.
  void drop_trash() {
    for (const std::string& name : fs_.list(kTrash)) fs_.remove_tree(kTrash + "/" + name);
  }
  std::string in(const std::string& path) {
    std::string result;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      std::string part = path.substr(begin, end - begin), end_of_part;
      if (const size_t repair = part.rfind(".repair");
          repair != std::string::npos && repair + 7 == part.size()) {
        end_of_part = part.substr(repair);
        part.erase(repair);
      }
      if (const size_t dot = part.rfind('.'); dot != std::string::npos && is_word(part.substr(dot + 1))) {
        const std::string base = part.substr(0, dot), word = part.substr(dot + 1);
        const bool is_claim = ckpt::saving_name(base).has_value() && path.starts_with(kSaving);
        part = is_claim && omits_ == Omits::claim ? base : base + "." + own_word(word);
        if (is_claim && !used_claim_.empty()) part = used_claim_;
      }
      result += part + end_of_part + (end < path.size() ? "/" : "");
      begin = end + 1;
    }
    return result;
  }
  std::string own_word(const std::string& word) {
    if (word.substr(1, 12) == "000000000000") return word;  // the other writer's
    const auto [at, is_new] = words_.try_emplace(word, "");
    if (is_new) at->second = fmt::format("{}{:015x}", options_.writer, words_.size());
    return at->second;
  }
  /// From here on another's claim is used as it is.
  bool use_claim(const std::string& from, const std::string& to) {
    const auto base = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
    const auto source = ckpt::saving_name(base(from)), target = ckpt::saving_name(base(to));
    const bool is_used =
        omits_ == Omits::own_claim && source && target && is_below(to, kSaving) && !source->claim.empty();
    if (is_used) used_claim_ = base(from);
    return is_used;
  }
  bool is_omitted(const std::string& from, const std::string& to) {
    if (from == to) {
      if (!fs_.exists(from)) throw Error(ErrorCode::kIo, "No such file or directory");
      return true;
    }
    return omits_ == Omits::put_back && from.find("/moved-") != from.npos && !is_below(to, kTrash);
  }
  void hide(std::vector<std::string>& names) const {
    std::erase_if(names, [&](const std::string& name) {
      const auto saving = ckpt::saving_name(name);
      return saving && (omits_ == Omits::fence || (omits_ == Omits::take_over && !saving->claim.empty()));
    });
  }

  PowerLossFileSystem& fs_;
  Answers& answers_;
  uint64_t& digest_;  ///< of them
  const Options options_;
  uint64_t steps_;
  const Omits omits_;
  size_t next_ = 0;
  int lists_after_mark_ = 0;
  std::string late_mark_, used_claim_;
  std::map<std::string, std::string> words_;
};

}  // namespace trainctl::test
