#include "data/clean/fasttext.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "data/corpus/byte_stream.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr std::string_view kLabelPrefix = "__label__", kEndOfLine = "</s>";

/// FNV-1a of 32 bits, of signed characters.
uint32_t hash_of(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ uint32_t(int32_t(int8_t(c)))) * 16777619u;
  return hash;
}

bool goes_on(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

/// Reads the values of a model one after the other. Error(kData) at the end of the file.
class FastTextModel::Reader {
 public:
  Reader(FileSystem& fs, const std::string& path)
      : path_(path), file_(open_input(fs, path)), size_(file_->size()) {}

  template <class T>
  T value() {
    T value;
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  std::string word() {
    std::string word;
    for (char c; (c = value<char>()) != '\0';) {
      word += c;
      if (word.size() > kLongestWord) damaged("a word without an end");
    }
    return word;
  }
  Matrix matrix() {
    const auto rows = value<int64_t>(), columns = value<int64_t>();
    const uint64_t left = size_ - at_ + (buffer_.size() - used_);
    if (rows <= 0 || columns <= 0 || uint64_t(columns) > left ||
        uint64_t(rows) > left / sizeof(float) / uint64_t(columns))
      damaged(fmt::format("a matrix of {} x {}", rows, columns));
    Matrix matrix{uint64_t(rows), uint64_t(columns), std::vector<float>(size_t(rows * columns))};
    take(std::as_writable_bytes(std::span(matrix.values)));
    return matrix;
  }
  [[noreturn]] void damaged(const std::string& why) const {
    throw Error(ErrorCode::kData, fmt::format("{} is no model of fastText that can be read: {}", path_, why));
  }

 private:
  static constexpr size_t kPiece = size_t(1) << 16, kLongestWord = 1 << 20;

  void take(std::span<std::byte> out) {
    const size_t buffered = std::min(out.size(), buffer_.size() - used_);
    std::copy_n(buffer_.begin() + std::ptrdiff_t(used_), buffered, out.begin());
    used_ += buffered;
    out = out.subspan(buffered);
    if (out.empty()) return;
    if (out.size() > size_ - at_) damaged(fmt::format("it ends at byte {}", size_));
    if (out.size() >= kPiece) {
      file_->read_at(at_, out);
      at_ += out.size();
      return;
    }
    buffer_.resize(size_t(std::min<uint64_t>(kPiece, size_ - at_)));
    file_->read_at(at_, buffer_);
    at_ += buffer_.size();
    std::copy_n(buffer_.begin(), out.size(), out.begin());
    used_ = out.size();
  }

  const std::string path_;
  std::unique_ptr<File> file_;
  const uint64_t size_;
  uint64_t at_ = 0;  // of the file, behind buffer_
  std::vector<std::byte> buffer_;
  size_t used_ = 0;  // of buffer_
};

FastTextModel FastTextModel::load(FileSystem& fs, const std::string& path) {
  constexpr int32_t kMagic = 793712314, kVersion = 12, kOldVersion = 11, kSupervised = 3;
  Reader reader(fs, path);
  FastTextModel model;
  if (reader.value<int32_t>() != kMagic) reader.damaged("it does not begin with fastText's magic number");
  const auto version = reader.value<int32_t>();
  if (version != kVersion && version != kOldVersion)
    reader.damaged(fmt::format("it is of version {}", version));
  const auto dim = reader.value<int32_t>();
  for (int i = 0; i < 4; ++i) reader.value<int32_t>();  // ws, epoch, minCount, neg
  model.word_ngrams_ = reader.value<int32_t>();
  const auto loss = reader.value<int32_t>(), kind = reader.value<int32_t>();
  model.buckets_ = reader.value<int32_t>();
  model.shortest_part_ = reader.value<int32_t>();
  model.longest_part_ = version == kOldVersion ? (reader.value<int32_t>(), 0) : reader.value<int32_t>();
  reader.value<int32_t>();  // lrUpdateRate
  reader.value<double>();   // t
  if (kind != kSupervised) reader.damaged("it is not supervised, so it has no labels");
  if (loss < 1 || loss > 4) reader.damaged(fmt::format("its loss has the number {}", loss));
  model.loss_ = Loss(loss);
  model.read_dictionary(reader);
  if (reader.value<uint8_t>() != 0) reader.damaged("it is quantised (.ftz); take the .bin file");
  model.input_ = reader.matrix();
  if (reader.value<uint8_t>() != 0) reader.damaged("its output is quantised; take the .bin file");
  model.output_ = reader.matrix();
  const bool is_tree = model.loss_ == Loss::hierarchical;
  if (model.input_.columns != uint64_t(dim) || model.output_.columns != uint64_t(dim) ||
      model.output_.rows < model.labels_.size() - (is_tree ? 1 : 0) ||
      model.input_.rows < uint64_t(model.words_))
    reader.damaged("its parts do not fit each other");
  return model;
}

void FastTextModel::read_dictionary(Reader& reader) {
  const auto size = reader.value<int32_t>();
  words_ = reader.value<int32_t>();
  const auto labels = reader.value<int32_t>();
  reader.value<int64_t>();  // ntokens
  const auto pruned = reader.value<int64_t>();
  if (size < 0 || words_ < 0 || labels <= 0 || words_ + labels != size)
    reader.damaged(fmt::format("{} words and {} labels are {} entries", words_, labels, size));
  std::vector<int64_t> counts;
  for (int32_t i = 0; i < size; ++i) {
    std::string word = reader.word();
    const auto count = reader.value<int64_t>();
    const bool is_label = reader.value<int8_t>() == 1;
    if (is_label != (i >= words_)) reader.damaged("its words and labels are mixed");
    if (is_label) {
      const bool has_prefix = word.starts_with(kLabelPrefix);
      labels_.push_back(has_prefix ? word.substr(kLabelPrefix.size()) : word);
      counts.push_back(count);
    }
    ids_.emplace(std::move(word), is_label ? -1 : i);
  }
  is_pruned_ = pruned >= 0;
  for (int64_t i = 0; i < pruned; ++i) {
    const auto hash = reader.value<int32_t>();
    pruned_rows_[hash] = reader.value<int32_t>();
  }
  if (loss_ == Loss::hierarchical) build_tree(counts);
}

void FastTextModel::build_tree(const std::vector<int64_t>& counts) {
  const auto leaves = int32_t(counts.size());
  tree_.assign(size_t(2 * leaves - 1), Node{.count = int64_t(1e15)});
  for (int32_t i = 0; i < leaves; ++i) tree_[size_t(i)].count = counts[size_t(i)];
  int32_t leaf = leaves - 1, inner = leaves;
  const auto lightest = [&] {
    return leaf >= 0 && tree_[size_t(leaf)].count < tree_[size_t(inner)].count ? leaf-- : inner++;
  };
  for (int32_t i = leaves; i < 2 * leaves - 1; ++i) {
    Node& node = tree_[size_t(i)];
    node.left = lightest();
    node.right = lightest();
    node.count = tree_[size_t(node.left)].count + tree_[size_t(node.right)].count;
  }
}

void FastTextModel::add_hash(uint64_t hash, std::vector<int64_t>& rows) const {
  auto bucket = int64_t(hash % uint64_t(buckets_));
  if (is_pruned_) {
    const auto left = pruned_rows_.find(bucket);
    if (left == pruned_rows_.end()) return;
    bucket = left->second;
  }
  rows.push_back(words_ + bucket);
}

void FastTextModel::add_parts(std::string_view word, std::vector<int64_t>& rows) const {
  if (longest_part_ <= 0 || buckets_ <= 0) return;
  const std::string marked = "<" + std::string(word) + ">";
  for (size_t i = 0; i < marked.size(); ++i) {
    if (goes_on(marked[i])) continue;
    size_t end = i;
    for (int32_t n = 1; end < marked.size() && n <= longest_part_; ++n) {
      do ++end;
      while (end < marked.size() && goes_on(marked[end]));
      if (n < shortest_part_ || (n == 1 && (i == 0 || end == marked.size()))) continue;
      add_hash(hash_of(std::string_view(marked).substr(i, end - i)), rows);
    }
  }
}

std::vector<int64_t> FastTextModel::rows_of(std::string_view text) const {
  constexpr std::string_view kSpaces(" \n\r\t\v\f\0", 7);
  std::vector<int64_t> rows;
  std::vector<uint64_t> hashes;  // of words, as signed numbers of 32 bits
  const auto add_word = [&](std::string_view word) {
    const auto found = ids_.find(std::string(word));
    const int64_t id = found == ids_.end() ? -1 : found->second;
    if (id < 0 && word.starts_with(kLabelPrefix)) return;
    if (id >= 0) rows.push_back(id);
    if (word != kEndOfLine) add_parts(word, rows);
    hashes.push_back(uint64_t(int64_t(int32_t(hash_of(word)))));
  };
  for (size_t at = text.find_first_not_of(kSpaces); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    add_word(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  add_word(kEndOfLine);
  if (buckets_ <= 0) return rows;
  for (size_t i = 0; i < hashes.size(); ++i) {
    uint64_t hash = hashes[i];
    for (size_t j = i + 1; j < hashes.size() && j < i + size_t(std::max(word_ngrams_, 1)); ++j) {
      hash = hash * 116049371 + hashes[j];
      add_hash(hash, rows);
    }
  }
  return rows;
}

double FastTextModel::score(uint64_t output_row, const std::vector<float>& hidden) const {
  double sum = 0;
  const float* const row = output_.row(output_row);
  for (size_t c = 0; c < hidden.size(); ++c) sum += double(row[c]) * double(hidden[c]);
  return sum;
}

std::vector<double> FastTextModel::probabilities(std::string_view text) const {
  const std::vector<int64_t> rows = rows_of(text);
  std::vector<float> hidden(size_t(input_.columns), 0);
  uint64_t known = 0;
  for (const int64_t row : rows) {
    if (uint64_t(row) >= input_.rows) continue;
    ++known;
    for (size_t c = 0; c < hidden.size(); ++c) hidden[c] += input_.row(uint64_t(row))[c];
  }
  if (known == 0) return {};
  for (float& value : hidden) value /= float(known);
  std::vector<double> result(labels_.size());
  if (loss_ == Loss::hierarchical) {
    std::vector<double> of_node(tree_.size(), 1);
    for (size_t i = tree_.size(); i-- > labels_.size();) {  // the root is last
      const double right = logistic(score(i - labels_.size(), hidden));
      of_node[size_t(tree_[i].right)] = of_node[i] * right;
      of_node[size_t(tree_[i].left)] = of_node[i] * (1 - right);
    }
    std::copy_n(of_node.begin(), labels_.size(), result.begin());
    return result;
  }
  for (size_t i = 0; i < labels_.size(); ++i) result[i] = score(i, hidden);
  if (loss_ != Loss::softmax) {
    for (double& value : result) value = logistic(value);
    return result;
  }
  const double largest = *std::max_element(result.begin(), result.end());
  double sum = 0;
  for (double& value : result) sum += value = std::exp(value - largest);
  for (double& value : result) value /= sum;
  return result;
}

}  // namespace trainctl::data
