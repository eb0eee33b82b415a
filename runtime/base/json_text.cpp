// JSON as text, read and written by the JSON library, which no other file knows.
#include <algorithm>
#include <charconv>
#include <istream>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

using Library = nlohmann::json;

/// "[json.exception.parse_error.101] parse error at line 1 ...": without the name of the library's class.
std::string plain(const std::exception& error) {
  const std::string_view text = error.what();
  const size_t end = text.find("] ");
  return std::string(text.starts_with('[') && end != std::string_view::npos ? text.substr(end + 2) : text);
}

/// Passes what the library's parser finds to JsonEvents.
class EventsReader final : public nlohmann::json_sax<Library> {
 public:
  explicit EventsReader(JsonEvents& to) : to_(to) {}
  bool null() override { return to_.value(nullptr); }
  bool boolean(bool value) override { return to_.value(value); }
  bool number_integer(int64_t value) override { return to_.value(value); }
  bool number_unsigned(uint64_t value) override { return to_.value(value); }
  bool number_float(double value, const std::string&) override { return to_.value(value); }
  bool string(std::string& value) override { return to_.text(value); }
  bool binary(Library::binary_t&) override { return false; }  // not in texts
  bool start_object(size_t) override { return to_.start_object(); }
  bool key(std::string& name) override { return to_.key(name); }
  bool end_object() override { return to_.end_object(); }
  bool start_array(size_t) override { return to_.start_array(); }
  bool end_array() override { return to_.end_array(); }
  bool parse_error(size_t, const std::string&, const Library::exception& error) override {
    throw JsonError(plain(error));
  }

 private:
  JsonEvents& to_;
};

/// Makes a value of a text. Members are appended as they come, and sorted once when their object ends.
template <bool kSorted>
class ValueReader final : public JsonEvents {
  using J = BasicJson<kSorted>;

 public:
  explicit ValueReader(Keys keys = Keys::last_wins) : keys_(keys) {}
  J document;

  bool value(Json value) override {
    // A scalar: it has the same form in both kinds of value.
    if (value.is_boolean())
      add(value.get<bool>());
    else if (value.is_number_unsigned())
      add(value.get<uint64_t>());
    else if (value.is_number_integer())
      add(value.get<int64_t>());
    else if (value.is_number_float())
      add(value.get<double>());
    else
      add(nullptr);
    return true;
  }
  bool text(std::string& text) override {
    add(std::move(text));
    return true;
  }
  bool key(std::string& name) override {
    open_.back()->items().push_back({std::move(name), J()});
    return true;
  }
  bool start_object() override { return open(J::object()); }
  bool start_array() override { return open(J::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool end_object() override {
    typename J::Object& members = open_.back()->items();
    open_.pop_back();
    unique(members);
    return true;
  }

 private:
  J& add(J value) {
    if (open_.empty()) return document = std::move(value);
    J& parent = *open_.back();
    if (parent.is_object()) return parent.items().back().value = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
  bool open(J value) {
    open_.push_back(&add(std::move(value)));  // nothing is added to its parent while it is open
    return true;
  }
  /// Of members with one key, the last value stays, as the library has it; in order of insertion, at the
  /// first's place.
  void unique(typename J::Object& members) const {
    const auto less = [](const auto& a, const auto& b) { return a.key < b.key; };
    const auto same = [](const auto& a, const auto& b) { return a.key == b.key; };
    if (kSorted) {
      if (!std::is_sorted(members.begin(), members.end(), less))
        std::stable_sort(members.begin(), members.end(), less);
      const auto twice = std::adjacent_find(members.begin(), members.end(), same);
      if (twice == members.end()) return;
      if (keys_ == Keys::unique) throw DuplicateKey(twice->key);
      members.erase(members.begin(), std::unique(members.rbegin(), members.rend(), same).base());
      return;
    }
    std::vector<size_t> order(members.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return less(members[a], members[b]); });
    std::vector<bool> again(members.size());
    bool any = false;
    for (size_t first = 0, i = 1; i < order.size(); ++i) {
      if (members[order[i]].key != members[order[first]].key) {
        first = i;
        continue;
      }
      if (keys_ == Keys::unique) throw DuplicateKey(members[order[i]].key);
      members[order[first]].value = std::move(members[order[i]].value);
      again[order[i]] = any = true;
    }
    if (!any) return;
    size_t kept = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      if (again[i]) continue;
      if (kept != i) members[kept] = std::move(members[i]);
      ++kept;
    }
    members.resize(kept);
  }

  const Keys keys_;
  std::vector<J*> open_;
};

bool needs_escapes(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return c < 0x20 || c > 0x7e || c == '"' || c == '\\'; });
}

void append_text(std::string& out, std::string_view text, bool ascii = false) {
  if (needs_escapes(text)) {
    out += Library(text).dump(-1, ' ', ascii, Library::error_handler_t::replace);
    return;
  }
  out += '"';
  out += text;
  out += '"';
}

template <typename T>
void append_number(std::string& out, T value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

template <bool kSorted>
void append(std::string& out, const BasicJson<kSorted>& value, int indent, bool ascii, int column) {
  const auto line = [&](int at) {
    if (indent < 0) return;
    out += '\n';
    out.append(size_t(at), ' ');
  };
  const int inner = column + indent;
  bool first = true;
  const auto next = [&] {
    if (!first) out += ',';
    first = false;
    line(inner);
  };
  switch (value.kind()) {
    case JsonKind::null: out += "null"; return;
    case JsonKind::boolean: out += value.template get<bool>() ? "true" : "false"; return;
    case JsonKind::integer: append_number(out, value.template get<int64_t>()); return;
    case JsonKind::natural: append_number(out, value.template get<uint64_t>()); return;
    case JsonKind::real: out += Library(value.template get<double>()).dump(); return;
    case JsonKind::text: append_text(out, value.text(), ascii); return;
    case JsonKind::discarded: out += "<discarded>"; return;
    case JsonKind::array:
      out += '[';
      for (const auto& item : value) {
        next();
        append(out, item, indent, ascii, inner);
      }
      if (!first) line(column);
      out += ']';
      return;
    case JsonKind::object:
      out += '{';
      for (const auto& [key, item] : value.items()) {
        next();
        append_text(out, key, ascii);
        out += indent < 0 ? ":" : ": ";
        append(out, item, indent, ascii, inner);
      }
      if (!first) line(column);
      out += '}';
      return;
  }
}

template <typename Input>
bool read_input(Input&& input, JsonEvents& events) {
  EventsReader reader(events);
  return Library::sax_parse(std::forward<Input>(input), &reader);
}

}  // namespace

bool read_json(std::string_view text, JsonEvents& events) { return read_input(text, events); }
bool read_json(std::istream& text, JsonEvents& events) { return read_input(text, events); }

std::string json_string(std::string_view text) {
  std::string out;
  append_text(out, text);
  return out;
}

template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::parse(std::string_view text, Keys keys) {
  ValueReader<kSorted> reader(keys);
  read_json(text, reader);
  return std::move(reader.document);
}
template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::parse(std::istream& text) {
  ValueReader<kSorted> reader;
  read_json(text, reader);
  return std::move(reader.document);
}
template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::try_parse(std::string_view text) try {
  return parse(text);
} catch (const JsonError&) {
  return discarded();
}
template <bool kSorted>
std::string BasicJson<kSorted>::dump(int indent, bool ascii) const {
  std::string out;
  append(out, *this, indent, ascii, 0);
  return out;
}

#define TRAINCTL_TEXT_OF(J)                    \
  template J J::parse(std::string_view, Keys); \
  template J J::parse(std::istream&);          \
  template J J::try_parse(std::string_view);   \
  template std::string J::dump(int, bool) const;
TRAINCTL_TEXT_OF(BasicJson<true>)
TRAINCTL_TEXT_OF(BasicJson<false>)
#undef TRAINCTL_TEXT_OF

}  // namespace trainctl
