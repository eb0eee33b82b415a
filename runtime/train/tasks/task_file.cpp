#include "runtime/train/tasks/task_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>

#include "data/sidecar.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {
namespace {

constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);
constexpr uint16_t kStartOfExample = 65535;

/// One file, for messages.
struct Place {
  const std::string& path;
  int64_t example = 0;  // from 1
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kData, example > 0 ? fmt::format("{}, example {}: {}", path, example, what)
                                              : fmt::format("{}: {}", path, what));
  }
};

void check(const TaskExample& example, const Place& place, int64_t vocab_size) {
  if (example.endings.size() < 2)
    place.refuse(fmt::format("{} endings, of which none can be chosen; at least two are needed",
                             example.endings.size()));
  if (example.label < 0 || example.label >= int64_t(example.endings.size()))
    place.refuse(fmt::format("label {} is none of its {} endings, which count from 0", example.label,
                             example.endings.size()));
  const auto check_tokens = [&](const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens)
      if (token >= vocab_size)
        place.refuse(fmt::format("token {}, but the model has {}; the file was made with another tokenizer",
                                 token, vocab_size));
  };
  check_tokens(example.context);
  for (const std::vector<int32_t>& ending : example.endings) {
    if (ending.empty()) place.refuse("an ending without a token");
    check_tokens(ending);
  }
}

/// The u16 of one example, one after another.
class Words16 {
 public:
  Words16(std::span<const char> bytes, const Place& place) : bytes_(bytes), place_(place) {}
  uint16_t next() {
    if (bytes_.size() < 2) place_.refuse("the example is cut; copy the file again");
    uint16_t value;
    std::memcpy(&value, bytes_.data(), 2);
    bytes_ = bytes_.subspan(2);
    return value;
  }
  std::vector<int32_t> tokens() {
    std::vector<int32_t> tokens(next());
    for (int32_t& token : tokens) token = next();
    return tokens;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const char> bytes_;
  const Place& place_;
};

TaskFile read_binary(std::span<const char> bytes, const std::string& path, int64_t vocab_size,
                     int64_t limit) {
  Place place{path};
  int32_t header[4];
  if (bytes.size() < kHeaderBytes)
    place.refuse(fmt::format("{} bytes are no header of 1024; copy the file again", bytes.size()));
  std::memcpy(header, bytes.data(), sizeof header);
  if (header[1] != kVersion)
    place.refuse(fmt::format("version {} of llm.c's task files is not known, only {}", header[1], kVersion));
  TaskFile file{.path = path, .examples = {}, .available = header[2]};
  if (file.available <= 0) place.refuse(fmt::format("its header says {} examples", file.available));
  bytes = bytes.subspan(kHeaderBytes);
  const int64_t wanted = limit > 0 ? std::min(limit, file.available) : file.available;
  for (place.example = 1; place.example <= wanted; ++place.example) {
    Words16 start(bytes, place);
    if (const uint16_t mark = start.next(); mark != kStartOfExample)
      place.refuse(fmt::format("it begins with {}, not {}: the file is damaged", mark, kStartOfExample));
    const size_t size = start.next();
    if (size < 4 || size % 2 || size > bytes.size())
      place.refuse(fmt::format("{} bytes are said, {} are left", size, bytes.size()));
    Words16 words(bytes.subspan(4, size - 4), place);
    bytes = bytes.subspan(size);
    words.next();  // its number
    TaskExample example{.label = words.next()};
    example.endings.resize(words.next());
    example.context = words.tokens();
    for (std::vector<int32_t>& ending : example.endings) ending = words.tokens();
    if (!words.at_end()) place.refuse("it is longer than its tokens: the file is damaged");
    check(example, place, vocab_size);
    file.examples.push_back(std::move(example));
  }
  return file;
}

/// The value of the first of these names that the object has; discarded: of none.
Json value_of(const Json& object, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (object.contains(name)) return object[name];
  return try_parse_json("");
}

/// Text as it stands behind a context: a space before it, which some tokenizers add themselves.
std::vector<int32_t> behind_context(const data::Tokenizer& tokenizer, const std::string& text) {
  const bool has_space = !text.empty() && (text[0] == ' ' || text[0] == '\n');
  if (tokenizer.adds_space()) return tokenizer.encode(has_space && text[0] == ' ' ? text.substr(1) : text);
  return tokenizer.encode(has_space ? text : " " + text);
}

TaskExample example_of(const Json& line, const Place& place, const data::Tokenizer& tokenizer) {
  const Json context = value_of(line, {"context", "ctx", "question"}),
             endings = value_of(line, {"endings", "choices"}),
             label = value_of(line, {"label", "answer", "gold"});
  if (!context.is_string()) place.refuse("no text under `context` (or `ctx`, `question`)");
  if (!endings.is_array()) place.refuse("no list under `endings` (or `choices`)");
  TaskExample example{.context = tokenizer.encode(context.get<std::string>())};
  for (const Json& ending : endings) {
    if (!ending.is_string()) place.refuse("an ending that is no text: " + dump_json(ending));
    example.endings.push_back(behind_context(tokenizer, ending.get<std::string>()));
  }
  // Some files have the number as a text.
  const Json number = label.is_string() ? try_parse_json(label.get<std::string>()) : label;
  if (!number.is_number_integer()) place.refuse("no number under `label` (or `answer`, `gold`)");
  example.label = number.get<int64_t>();
  return example;
}

TaskFile read_lines(std::string_view text, const std::string& path, const data::Tokenizer* tokenizer,
                    int64_t vocab_size, int64_t limit) {
  Place place{path};
  TaskFile file{.path = path, .examples = {}, .is_text = true};
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ++file.available;
    if (limit > 0 && file.available > limit) continue;
    place.example = file.available;
    const Json object = try_parse_json(line);
    if (object.is_discarded() || !object.is_object())
      place.refuse(
          "no JSON object; task files are llm.c's .bin, or JSON lines with context, endings and label");
    if (!tokenizer)
      place.refuse(
          "it is text, and the run does not say which tokenizer made its tokens; give --tokenizer FILE (of a "
          "run: data.tokenizer)");
    file.examples.push_back(example_of(object, place, *tokenizer));
    check(file.examples.back(), place, vocab_size);
  }
  if (file.examples.empty()) place.refuse("it has no example");
  return file;
}

}  // namespace

TaskFile read_task_file(FileSystem& fs, const std::string& path, const data::Tokenizer* tokenizer,
                        int64_t vocab_size, int64_t limit) {
  if (!fs.exists(path) || fs.is_directory(path))
    throw Error(ErrorCode::kData, fmt::format("there is no task file {}", path));
  const std::string content = fs.read_text(path);
  int32_t magic = 0;
  if (content.size() >= sizeof magic) std::memcpy(&magic, content.data(), sizeof magic);
  return magic == kMagic ? read_binary(content, path, vocab_size, limit)
                         : read_lines(content, path, tokenizer, vocab_size, limit);
}

data::TokenizerChoice tokenizer_of(const DataSpec& spec) {
  if (spec.tokenizer.is_given()) return spec.tokenizer;
  for (const DataSource& source : spec.train)
    if (const auto sidecar = data::read_sidecar(source.path))
      return data::tokenizer_of(*sidecar, source.path);
  return {};
}

data::TokenizerChoice tokenizer_for(FileSystem& fs, const DataSpec& spec, const data::TokenizerChoice& named) {
  const data::TokenizerChoice choice = named.is_given() ? named : tokenizer_of(spec);
  for (const DataSource& source : spec.train)
    if (const auto sidecar = data::read_sidecar(source.path))
      if (const Problem problem = data::other_tokenizer(fs, *sidecar, source.path, choice); problem.exists())
        throw Error(ErrorCode::kData, problem.text() + "; give that one with --tokenizer FILE");
  return choice;
}

TaskFiles read_task_files(FileSystem& fs, const std::vector<std::string>& paths,
                          const data::TokenizerChoice& choice, int64_t vocab_size, int64_t limit) {
  TaskFiles read;
  if (paths.empty()) return read;
  const auto tokenizer = choice.is_given() ? data::open_tokenizer(fs, choice) : nullptr;
  if (tokenizer && tokenizer->vocab_size() > vocab_size)
    throw Error(
        ErrorCode::kData,
        fmt::format("tokenizer {} has {} ids, but model.vocab_size is {}; name the tokenizer of the "
                    "training data (data.tokenizer; of `eval`: --tokenizer)",
                    tokenizer->name(), tokenizer->vocab_size(), vocab_size));
  if (tokenizer) read.start_token = tokenizer->end_of_text();
  std::map<std::string, std::string> path_of;  // scores are named by it
  for (const std::string& path : paths) {
    const auto [other, fresh] = path_of.try_emplace(std::filesystem::path(path).filename().string(), path);
    if (!fresh)
      throw Error(ErrorCode::kData,
                  fmt::format("{} and {} have the same file name, which names their scores; rename one",
                              other->second, path));
    read.files.push_back(read_task_file(fs, path, tokenizer.get(), vocab_size, limit));
  }
  return read;
}

}  // namespace trainctl
