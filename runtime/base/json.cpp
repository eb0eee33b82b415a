#include "runtime/base/json.h"

#include <algorithm>
#include <charconv>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>

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
  /// Of members with one key, the last value stays, as the library has it; in order of insertion, at the first's place.
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
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return less(members[a], members[b]); });
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
  return std::any_of(text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e || c == '"' || c == '\\'; });
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

const char* word_of_kind(JsonKind kind) {
  switch (kind) {
    case JsonKind::null: return "null";
    case JsonKind::boolean: return "boolean";
    case JsonKind::text: return "string";
    case JsonKind::array: return "array";
    case JsonKind::object: return "object";
    case JsonKind::discarded: return "discarded";
    default: return "number";
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
BasicJson<kSorted>::BasicJson(std::string text) : kind_(JsonKind::text) {
  value_.text = new std::string(std::move(text));
}
template <bool kSorted>
BasicJson<kSorted>::BasicJson(Array items) : kind_(JsonKind::array) {
  value_.array = new Array(std::move(items));
}
template <bool kSorted>
BasicJson<kSorted>::BasicJson(std::initializer_list<BasicJson> items) {
  const bool is_object = std::all_of(items.begin(), items.end(), [](const BasicJson& item) {
    return item.is_array() && item.size() == 2 && item.at(size_t(0)).is_string();
  });
  *this = is_object ? object(items) : array(items);
}
template <bool kSorted>
BasicJson<kSorted>::BasicJson(const BasicJson<!kSorted>& other) {
  switch (other.kind()) {
    case JsonKind::null: break;
    case JsonKind::boolean: *this = other.template get<bool>(); break;
    case JsonKind::integer: *this = other.template get<int64_t>(); break;
    case JsonKind::natural: *this = other.template get<uint64_t>(); break;
    case JsonKind::real: *this = other.template get<double>(); break;
    case JsonKind::text: *this = other.text(); break;
    case JsonKind::discarded: *this = discarded(); break;
    case JsonKind::array:
      *this = array();
      for (const auto& item : other) push_back(BasicJson(item));
      break;
    case JsonKind::object:
      *this = object();
      for (const auto& [key, item] : other.items()) (*this)[key] = BasicJson(item);
      break;
  }
}
template <bool kSorted>
BasicJson<kSorted>::BasicJson(const BasicJson& other) : kind_(other.kind_), value_(other.value_) {
  if (kind_ == JsonKind::text) value_.text = new std::string(*value_.text);
  if (kind_ == JsonKind::array) value_.array = new Array(*value_.array);
  if (kind_ == JsonKind::object) value_.object = new Object(*value_.object);
}
template <bool kSorted>
void BasicJson<kSorted>::forget() {
  if (kind_ == JsonKind::text) delete value_.text;
  if (kind_ == JsonKind::array) delete value_.array;
  if (kind_ == JsonKind::object) delete value_.object;
}
template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::taken() const {
  BasicJson value;
  std::swap(value.kind_, kind_);
  std::swap(value.value_, value_);
  return value;
}

template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::array(std::initializer_list<BasicJson> items) {
  BasicJson made(Array{});
  made.value_.array->reserve(items.size());
  for (const BasicJson& item : items) made.value_.array->push_back(item.taken());
  return made;
}
template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::object(std::initializer_list<BasicJson> items) {
  BasicJson made;
  made.value_.object = new Object;
  made.kind_ = JsonKind::object;
  for (const BasicJson& item : items) {
    if (!item.is_array() || item.size() != 2) throw JsonError("an object is made of pairs of a key and a value");
    BasicJson& value = made[item.at(size_t(0)).text()];
    value = item.at(size_t(1)).taken();
  }
  return made;
}
template <bool kSorted>
BasicJson<kSorted> BasicJson<kSorted>::discarded() {
  BasicJson made;
  made.kind_ = JsonKind::discarded;
  return made;
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
template <bool kSorted>
std::ostream& BasicJson<kSorted>::print(std::ostream& out) const {
  return out << dump();
}

template <bool kSorted>
size_t BasicJson<kSorted>::size() const {
  if (kind_ == JsonKind::null) return 0;
  if (kind_ == JsonKind::array) return value_.array->size();
  return kind_ == JsonKind::object ? value_.object->size() : 1;
}
template <bool kSorted>
const BasicJson<kSorted>* BasicJson<kSorted>::first() const {
  if (empty()) return nullptr;
  if (is_object()) return &value_.object->front().value;
  return is_array() ? value_.array->data() : nullptr;
}
template <bool kSorted>
size_t BasicJson<kSorted>::stride() const {
  return is_object() ? sizeof(Member) : sizeof(BasicJson);
}
template <bool kSorted>
BasicJson<kSorted>& BasicJson<kSorted>::item(size_t index) {
  if (is_null()) *this = array();
  if (is_array() && index >= size()) value_.array->resize(index + 1);
  return at(index);
}
template <bool kSorted>
const typename BasicJson<kSorted>::Object& BasicJson<kSorted>::items() const {
  static const Object none;
  if (is_null()) return none;
  if (!is_object()) bad_kind("object");
  return *value_.object;
}
template <bool kSorted>
typename BasicJson<kSorted>::Object& BasicJson<kSorted>::items() {
  if (is_null()) *this = object();
  if (!is_object()) bad_kind("object");
  return *value_.object;
}
template <bool kSorted>
const typename BasicJson<kSorted>::Array& BasicJson<kSorted>::list() const {
  if (!is_array()) bad_kind("array");
  return *value_.array;
}
template <bool kSorted>
const std::string& BasicJson<kSorted>::text() const {
  if (!is_string()) bad_kind("string");
  return *value_.text;
}
template <bool kSorted>
bool BasicJson<kSorted>::boolean() const {
  if (!is_boolean()) bad_kind("boolean");
  return value_.boolean;
}
template <bool kSorted>
int64_t BasicJson<kSorted>::integer() const {
  if (!is_number()) bad_kind("number");
  if (kind_ == JsonKind::real) return int64_t(value_.real);
  return kind_ == JsonKind::integer ? value_.integer : int64_t(value_.natural);
}
template <bool kSorted>
uint64_t BasicJson<kSorted>::natural() const {
  if (!is_number()) bad_kind("number");
  if (kind_ == JsonKind::real) return uint64_t(value_.real);
  return kind_ == JsonKind::integer ? uint64_t(value_.integer) : value_.natural;
}
template <bool kSorted>
double BasicJson<kSorted>::real() const {
  if (!is_number()) bad_kind("number");
  if (kind_ == JsonKind::real) return value_.real;
  return kind_ == JsonKind::integer ? double(value_.integer) : double(value_.natural);
}
template <bool kSorted>
void BasicJson<kSorted>::bad_kind(const char* wanted) const {
  throw JsonError(std::string("type must be ") + wanted + ", but is " + word_of_kind(kind_));
}

template <bool kSorted>
const BasicJson<kSorted>* BasicJson<kSorted>::member(std::string_view key) const {
  if (!is_object()) return nullptr;
  const Object& members = *value_.object;
  const auto found = kSorted ? std::lower_bound(members.begin(), members.end(), key,
                                                [](const Member& m, std::string_view k) { return m.key < k; })
                             : std::find_if(members.begin(), members.end(),
                                            [&](const Member& m) { return m.key == key; });
  return found != members.end() && found->key == key ? &found->value : nullptr;
}
template <bool kSorted>
const BasicJson<kSorted>* BasicJson<kSorted>::object_member(std::string_view key) const {
  if (!is_object()) bad_kind("object");
  return member(key);
}
template <bool kSorted>
const BasicJson<kSorted>& BasicJson<kSorted>::at(std::string_view key) const {
  if (const BasicJson* found = object_member(key)) return *found;
  throw JsonError("key '" + std::string(key) + "' not found");
}
template <bool kSorted>
const BasicJson<kSorted>& BasicJson<kSorted>::at(size_t index) const {
  const Array& items = list();
  if (index >= items.size())
    throw JsonError("array index " + std::to_string(index) + " is out of range: it has " + std::to_string(items.size()));
  return items[index];
}
template <bool kSorted>
BasicJson<kSorted>& BasicJson<kSorted>::operator[](std::string_view key) {
  if (const BasicJson* found = member(key)) return const_cast<BasicJson&>(*found);
  Object& members = items();
  const bool last = !kSorted || members.empty() || members.back().key < key;
  const auto place = last ? members.end()
                          : std::lower_bound(members.begin(), members.end(), key,
                                             [](const Member& m, std::string_view k) { return m.key < k; });
  return members.insert(place, {std::string(key), BasicJson()})->value;
}
template <bool kSorted>
const BasicJson<kSorted>* BasicJson<kSorted>::find_at(std::string_view pointer) const {
  const BasicJson* at = this;
  while (!pointer.empty() && at) {
    pointer.remove_prefix(1);
    const std::string_view part = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(part.size());
    if (at->is_array()) {
      size_t index = 0;
      std::from_chars(part.data(), part.data() + part.size(), index);
      at = index < at->size() ? &(*at)[index] : nullptr;
    } else {
      at = at->member(part);
    }
  }
  return at;
}
template <bool kSorted>
BasicJson<kSorted>& BasicJson<kSorted>::make_at(std::string_view pointer) {
  if (const BasicJson* found = find_at(pointer)) return const_cast<BasicJson&>(*found);
  const size_t slash = pointer.rfind('/');
  BasicJson& parent = make_at(pointer.substr(0, slash));
  if (!parent.is_array()) return parent[pointer.substr(slash + 1)];
  parent.push_back(nullptr);
  return parent.back();
}

template <bool kSorted>
void BasicJson<kSorted>::push_back(BasicJson item) {
  if (is_null()) *this = array();
  if (!is_array()) bad_kind("array");
  value_.array->push_back(std::move(item));
}
template <bool kSorted>
void BasicJson<kSorted>::pop_back() {
  erase(size() - 1);
}
template <bool kSorted>
size_t BasicJson<kSorted>::erase(std::string_view key) {
  if (!is_object()) bad_kind("object");
  return std::erase_if(*value_.object, [&](const Member& m) { return m.key == key; });
}
template <bool kSorted>
void BasicJson<kSorted>::erase(size_t index) {
  at(index);
  value_.array->erase(value_.array->begin() + std::ptrdiff_t(index));
}
template <bool kSorted>
void BasicJson<kSorted>::clear() {
  if (is_array())
    value_.array->clear();
  else if (is_object())
    value_.object->clear();
  else
    *this = nullptr;
}
template <bool kSorted>
void BasicJson<kSorted>::update(const BasicJson& other) {
  for (const auto& [key, value] : other.items()) (*this)[key] = value;
}
template <bool kSorted>
void BasicJson<kSorted>::merge_patch(const BasicJson& patch) {
  if (!patch.is_object()) {
    *this = patch;
    return;
  }
  if (!is_object()) *this = object();
  for (const auto& [key, value] : patch.items()) {
    if (value.is_null())
      erase(key);
    else
      (*this)[key].merge_patch(value);
  }
}

template <bool kSorted>
bool BasicJson<kSorted>::equal(const BasicJson& a, const BasicJson& b) {
  if (a.is_number() && b.is_number()) return compare(a, b) == 0;
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case JsonKind::boolean: return a.value_.boolean == b.value_.boolean;
    case JsonKind::text: return *a.value_.text == *b.value_.text;
    case JsonKind::array: return *a.value_.array == *b.value_.array;
    case JsonKind::object:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [](const Member& x, const Member& y) { return x.key == y.key && x.value == y.value; });
    default: return a.kind_ == JsonKind::null;
  }
}
template <bool kSorted>
std::partial_ordering BasicJson<kSorted>::compare(const BasicJson& a, const BasicJson& b) {
  if (a.is_string() && b.is_string()) return a.text() <=> b.text();
  if (!a.is_number() || !b.is_number()) return std::partial_ordering::unordered;
  if (a.is_number_float() || b.is_number_float()) return a.real() <=> b.real();
  const bool a_below = a.kind_ == JsonKind::integer && a.value_.integer < 0;
  const bool b_below = b.kind_ == JsonKind::integer && b.value_.integer < 0;
  if (a_below && b_below) return a.value_.integer <=> b.value_.integer;
  if (a_below || b_below) return a_below ? std::partial_ordering::less : std::partial_ordering::greater;
  return a.natural() <=> b.natural();
}

template class BasicJson<true>;
template class BasicJson<false>;

}  // namespace trainctl
