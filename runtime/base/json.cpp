#include "runtime/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>
#include <type_traits>

namespace trainctl {
namespace {

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

/// Of a number with a fraction or an exponent: the integer that is left without its fraction.
template <typename Integer>
Integer integer_of(double value) {
  const double end = std::ldexp(1, std::numeric_limits<Integer>::digits);  // the first that is too large
  if (!(value < end && (std::is_signed_v<Integer> ? value >= -end : value > -1)))
    throw JsonError(fmt::format("{} is no integer of 64 bits", value));
  return Integer(value);
}

[[noreturn]] void bad_range(auto value, auto least, auto most) {
  throw JsonError(fmt::format("the number {} is not from {} to {}", value, least, most));
}

}  // namespace

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
  if (!is_structured()) return;
  // Not by recursion: a text of a megabyte may be a million levels deep.
  Array deeper;
  const auto take_parts = [&deeper](BasicJson& of) {
    for (BasicJson& part : of)
      if (part.is_structured() && !part.empty()) deeper.push_back(std::move(part));
  };
  take_parts(*this);
  while (!deeper.empty()) {
    BasicJson next = std::move(deeper.back());
    deeper.pop_back();
    take_parts(next);  // then it ends without deeper ones
  }
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
    if (!item.is_array() || item.size() != 2)
      throw JsonError("an object is made of pairs of a key and a value");
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
int64_t BasicJson<kSorted>::integer(int64_t least, int64_t most) const {
  if (!is_number()) bad_kind("number");
  if (kind_ == JsonKind::natural) {
    if (value_.natural > uint64_t(most)) bad_range(value_.natural, least, most);
    return int64_t(value_.natural);
  }
  const int64_t value = kind_ == JsonKind::real ? integer_of<int64_t>(value_.real) : value_.integer;
  if (value < least || value > most) bad_range(value, least, most);
  return value;
}
template <bool kSorted>
uint64_t BasicJson<kSorted>::natural(uint64_t most) const {
  if (!is_number()) bad_kind("number");
  if (kind_ == JsonKind::integer && value_.integer < 0) bad_range(value_.integer, 0, most);
  const uint64_t value = kind_ == JsonKind::real      ? integer_of<uint64_t>(value_.real)
                         : kind_ == JsonKind::integer ? uint64_t(value_.integer)
                                                      : value_.natural;
  if (value > most) bad_range(value, 0, most);
  return value;
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
  const auto found =
      kSorted ? std::lower_bound(members.begin(), members.end(), key,
                                 [](const Member& m, std::string_view k) { return m.key < k; })
              : std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.key == key; });
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
    throw JsonError("array index " + std::to_string(index) + " is out of range: it has " +
                    std::to_string(items.size()));
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
      return std::equal(
          a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
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
  return a.get<uint64_t>() <=> b.get<uint64_t>();
}

template class BasicJson<true>;
template class BasicJson<false>;

}  // namespace trainctl
