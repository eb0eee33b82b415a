// A JSON value that any file may hold: Json with sorted keys, OrderedJson with keys in insertion order.
//
// The JSON library (parser, numbers, escapes) is known to json_text.cpp alone, because its header takes three
// to seven seconds of a compilation. The parser of job specs, which reports line and column, is
// runtime/spec/json.h. A value owns its parts; values of different threads are independent.
//
//   Json j = {{"step", 3}, {"losses", {1.5, 2.5}}};   // a list of {text, value} alone is an object
//   j["ranks"].push_back(7);                          // null becomes an object, or an array
//   j.at("step").get<int>();
//   for (const auto& [key, value] : j.items()) ...
//   if (const auto at = j.find("step"); at != j.end()) ...
#pragma once
#include <array>
#include <compare>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace trainctl {

/// A text is not JSON, or a value is not of the asked kind, or a key or index does not exist.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An object of a text has a key twice.
class DuplicateKey : public JsonError {
 public:
  explicit DuplicateKey(const std::string& key)
      : JsonError("the key \"" + key + "\" occurs twice"), key(key) {}
  const std::string key;
};
/// What a key means that an object of a text has twice: the last value counts, or DuplicateKey is thrown.
enum class Keys { last_wins, unique };

/// Specialised for a type that values are made of and read as:
///   static Json to(const T&);   static void read(const Json&, T&);
template <typename T>
struct JsonForm;

enum class JsonKind : uint8_t { null, boolean, integer, natural, real, text, array, object, discarded };

template <typename T>
concept JsonScalar = std::floating_point<T> ||(std::integral<T> && !std::same_as<T, char>);
template <typename T>
constexpr bool kIsVector = false;
template <typename T>
constexpr bool kIsVector<std::vector<T>> = true;

template <bool kSorted>
class BasicJson {
 public:
  struct Member;
  using Array = std::vector<BasicJson>;
  using Object = std::vector<Member>;  ///< sorted by key, or in insertion order; keys are unique
  template <typename J>
  class Iterator;
  using iterator = Iterator<BasicJson>;
  using const_iterator = Iterator<const BasicJson>;

  BasicJson(std::nullptr_t = nullptr) {}
  BasicJson(std::same_as<bool> auto value) : kind_(JsonKind::boolean) { value_.boolean = value; }
  template <std::integral T>
  requires(!std::same_as<T, bool>) BasicJson(T value)
      : kind_(std::is_signed_v<T> ? JsonKind::integer : JsonKind::natural) {
    if constexpr (std::is_signed_v<T>)
      value_.integer = value;
    else
      value_.natural = value;
  }
  /// An enum is its number.
  template <typename T>
  requires std::is_enum_v<T> BasicJson(T value) : BasicJson(std::underlying_type_t<T>(value)) {}
  template <std::floating_point T>
  BasicJson(T value) : kind_(JsonKind::real) {
    value_.real = value;
  }
  BasicJson(std::string text);
  BasicJson(std::string_view text) : BasicJson(std::string(text)) {}
  BasicJson(const char* text) : BasicJson(std::string(text)) {}
  BasicJson(Array items);
  /// An object if each item is an array of a text and a value, else an array. Takes the parts of the items.
  BasicJson(std::initializer_list<BasicJson> items);
  template <typename T>
  requires(!std::same_as<T, BasicJson>) BasicJson(const std::vector<T>& items) : BasicJson(array()) {
    for (const auto& item : items) push_back(BasicJson(T(item)));
  }
  template <typename T, size_t n>
  BasicJson(const std::array<T, n>& items) : BasicJson(array()) {
    for (const T& item : items) push_back(BasicJson(item));
  }
  template <typename T, size_t n>
  requires(!std::same_as<T, char>) BasicJson(const T (&items)[n]) : BasicJson(array()) {
    for (const T& item : items) push_back(BasicJson(item));
  }
  template <typename T, typename Less>
  BasicJson(const std::map<std::string, T, Less>& items) : BasicJson(object()) {
    for (const auto& [key, item] : items) (*this)[key] = BasicJson(item);
  }
  template <typename A, typename B>
  BasicJson(const std::pair<A, B>& both) : BasicJson(array()) {
    push_back(BasicJson(both.first));
    push_back(BasicJson(both.second));
  }
  template <typename T>
  requires requires(const T& value) { JsonForm<T>::to(value); }
  BasicJson(const T& value) : BasicJson(JsonForm<T>::to(value)) {}
  BasicJson(const BasicJson<!kSorted>& other);

  BasicJson(const BasicJson& other);
  BasicJson(BasicJson&& other) noexcept : kind_(other.kind_), value_(other.value_) {
    other.kind_ = JsonKind::null;
  }
  BasicJson& operator=(BasicJson other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(value_, other.value_);
    return *this;
  }
  ~BasicJson() {
    if (kind_ >= JsonKind::text) forget();
  }

  static BasicJson array(std::initializer_list<BasicJson> items = {});
  static BasicJson object(std::initializer_list<BasicJson> items = {});
  static BasicJson discarded();
  /// Throws JsonError with the place of the mistake.
  static BasicJson parse(std::string_view text, Keys keys = Keys::last_wins);
  static BasicJson parse(std::istream& text);
  static BasicJson parse(std::istream&& text) { return parse(text); }
  /// If the text is not JSON, a value whose is_discarded() is true.
  static BasicJson try_parse(std::string_view text);
  /// `indent` -1: one line. Otherwise `indent` columns per level. Bytes that are not UTF-8 become U+FFFD.
  /// `ascii`: other characters are written as \u escapes.
  std::string dump(int indent = -1, bool ascii = false) const;

  JsonKind kind() const { return kind_; }
  bool is_null() const { return kind_ == JsonKind::null; }
  bool is_boolean() const { return kind_ == JsonKind::boolean; }
  bool is_number_integer() const { return kind_ == JsonKind::integer || kind_ == JsonKind::natural; }
  bool is_number_unsigned() const { return kind_ == JsonKind::natural; }
  bool is_number_float() const { return kind_ == JsonKind::real; }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_string() const { return kind_ == JsonKind::text; }
  bool is_array() const { return kind_ == JsonKind::array; }
  bool is_object() const { return kind_ == JsonKind::object; }
  bool is_structured() const { return is_array() || is_object(); }
  bool is_discarded() const { return kind_ == JsonKind::discarded; }

  /// Items or members; 0 of null, 1 of another value.
  size_t size() const;
  bool empty() const { return size() == 0; }

  /// The items of an array, the values of an object's members, nothing of another value.
  const_iterator begin() const { return {first(), stride()}; }
  const_iterator end() const { return begin().after(size()); }
  iterator begin() { return {const_cast<BasicJson*>(first()), stride()}; }
  iterator end() { return begin().after(size()); }
  const BasicJson& front() const { return at(size_t(0)); }
  const BasicJson& back() const { return at(size() - 1); }
  BasicJson& front() { return at(size_t(0)); }
  BasicJson& back() { return at(size() - 1); }
  /// The members of an object, none of null. Valid as long as this value.
  const Object& items() const;
  Object& items();
  const Array& list() const;        ///< JsonError of another kind
  const std::string& text() const;  ///< JsonError of another kind

  bool contains(std::string_view key) const { return member(key) != nullptr; }
  size_t count(std::string_view key) const { return contains(key); }
  /// The value of a member, end() without one.
  const_iterator find(std::string_view key) const {
    const BasicJson* found = member(key);
    return found ? const_iterator{found, stride()} : end();
  }
  iterator find(std::string_view key) {
    const const_iterator found = std::as_const(*this).find(key);
    return {const_cast<BasicJson*>(&*found), stride()};
  }
  const BasicJson& at(std::string_view key) const;
  BasicJson& at(std::string_view key) { return const_cast<BasicJson&>(std::as_const(*this).at(key)); }
  const BasicJson& at(size_t index) const;
  BasicJson& at(size_t index) { return const_cast<BasicJson&>(std::as_const(*this).at(index)); }
  const BasicJson& at(int index) const { return at(size_t(index)); }
  BasicJson& at(int index) { return at(size_t(index)); }
  const BasicJson& at(const char* key) const { return at(std::string_view(key)); }
  BasicJson& at(const char* key) { return at(std::string_view(key)); }
  /// Makes the member where there is none.
  BasicJson& operator[](std::string_view key);
  const BasicJson& operator[](std::string_view key) const { return at(key); }
  /// Makes the item, and null before it, where the array is shorter.
  BasicJson& operator[](std::integral auto index) { return item(size_t(index)); }
  const BasicJson& operator[](std::integral auto index) const { return at(size_t(index)); }
  BasicJson& operator[](const char* key) { return (*this)[std::string_view(key)]; }
  const BasicJson& operator[](const char* key) const { return at(std::string_view(key)); }
  /// By JSON pointer ("/layers/3/name", without escapes): nullptr without such a value; made where absent.
  const BasicJson* find_at(std::string_view pointer) const;
  BasicJson& make_at(std::string_view pointer);

  void push_back(BasicJson item);
  template <typename T>
  BasicJson& emplace_back(T&& item) {
    push_back(BasicJson(std::forward<T>(item)));
    return back();
  }
  void pop_back();
  size_t erase(std::string_view key);  ///< how many members were removed: 0 or 1
  void erase(size_t index);            ///< JsonError without such an item
  void clear();                        ///< an empty array or object; null of another value
  /// Sets the members of `other`.
  void update(const BasicJson& other);
  /// RFC 7386: objects are merged key by key, null removes a key, other values replace.
  void merge_patch(const BasicJson& patch);

  /// bool, numbers (a number of another kind is converted as C++ does), std::string, vectors, arrays, pairs,
  /// maps, and what has a JsonForm. JsonError if the value is of another kind.
  template <typename T>
  T get() const {
    T value{};
    get_to(value);
    return value;
  }
  template <typename T>
  void get_to(T& value) const {
    if constexpr (std::same_as<T, BasicJson>)
      value = *this;
    else if constexpr (requires { JsonForm<T>::read(*this, value); })
      JsonForm<T>::read(*this, value);
    else if constexpr (std::same_as<T, bool>)
      value = boolean();
    else if constexpr (std::integral<T>)
      value =
          std::is_signed_v<T> ? T(integer(Limits<T>::min(), Limits<T>::max())) : T(natural(Limits<T>::max()));
    else if constexpr (std::is_enum_v<T>)
      value = T(get<std::underlying_type_t<T>>());
    else if constexpr (std::floating_point<T>)
      value = T(real());
    else
      read(value);
  }
  /// As get(), where the type says what is meant: `const int role = j.at(1);`
  template <typename T>
  requires JsonScalar<T> || std::same_as<T, std::string> || kIsVector<T>
  operator T() const { return get<T>(); }
  /// The member as T; `otherwise` if this object has none.
  template <typename T>
  T value(std::string_view key, const T& otherwise) const {
    const BasicJson* const found = object_member(key);
    return found ? found->template get<T>() : otherwise;
  }
  std::string value(std::string_view key, const char* otherwise) const {
    return value(key, std::string(otherwise));
  }

  friend bool operator==(const BasicJson& a, const BasicJson& b) { return equal(a, b); }
  friend bool operator==(const BasicJson& a, JsonScalar auto b) { return equal(a, BasicJson(b)); }
  /// Numbers and texts have an order; other values are unordered.
  friend std::partial_ordering operator<=>(const BasicJson& a, const BasicJson& b) { return compare(a, b); }
  friend std::partial_ordering operator<=>(const BasicJson& a, JsonScalar auto b) {
    return compare(a, BasicJson(b));
  }
  friend std::ostream& operator<<(std::ostream& out, const BasicJson& value) { return value.print(out); }

 private:
  union Value {
    bool boolean;
    int64_t integer;
    uint64_t natural;
    double real;
    std::string* text;
    Array* array;
    Object* object;
  };

  void read(std::string& value) const { value = text(); }
  template <typename T>
  void read(std::vector<T>& items) const {
    items.clear();
    for (const BasicJson& item : list()) items.push_back(item.template get<T>());
  }
  template <typename T, size_t n>
  void read(std::array<T, n>& items) const {
    for (size_t i = 0; i < n; ++i) at(i).get_to(items[i]);
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& both) const {
    at(size_t(0)).get_to(both.first);
    at(size_t(1)).get_to(both.second);
  }
  template <typename T, typename Less>
  void read(std::map<std::string, T, Less>& members) const {
    members.clear();
    if (!is_object()) bad_kind("object");
    for (const auto& [key, item] : items()) members.emplace(key, item.template get<T>());
  }

  bool boolean() const;
  template <typename T>
  using Limits = std::numeric_limits<T>;
  /// JsonError of a number that is not from `least` to `most`; a fraction is left out.
  int64_t integer(int64_t least, int64_t most) const;
  uint64_t natural(uint64_t most) const;
  double real() const;
  BasicJson& item(size_t index);
  const BasicJson* first() const;
  size_t stride() const;  ///< bytes from a value to the next
  const BasicJson* member(std::string_view key) const;
  const BasicJson* object_member(std::string_view key) const;  ///< JsonError of no object
  [[noreturn]] void bad_kind(const char* wanted) const;
  void forget();
  BasicJson taken() const;
  std::ostream& print(std::ostream& out) const;
  static bool equal(const BasicJson& a, const BasicJson& b);
  static std::partial_ordering compare(const BasicJson& a, const BasicJson& b);

  // Mutable: the items of an initializer_list are const, and their parts are moved.
  mutable JsonKind kind_ = JsonKind::null;
  mutable Value value_{};
};

template <bool kSorted>
struct BasicJson<kSorted>::Member {
  std::string key;
  BasicJson value;
};

template <bool kSorted>
template <typename J>
class BasicJson<kSorted>::Iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = BasicJson;
  using difference_type = std::ptrdiff_t;
  using pointer = J*;
  using reference = J&;

  Iterator() = default;
  Iterator(J* at, size_t stride) : at_(at), stride_(stride) {}
  operator Iterator<const BasicJson>() const { return {at_, stride_}; }
  J& operator*() const { return *at_; }
  J* operator->() const { return at_; }
  Iterator& operator++() { return *this = after(1); }
  Iterator operator++(int) { return std::exchange(*this, after(1)); }
  Iterator after(size_t count) const {
    if (!at_) return *this;
    using Byte = std::conditional_t<std::is_const_v<J>, const char, char>;
    return {reinterpret_cast<J*>(reinterpret_cast<Byte*>(at_) + count * stride_), stride_};
  }
  friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

 private:
  J* at_ = nullptr;
  size_t stride_ = 0;
};

extern template class BasicJson<true>;
extern template class BasicJson<false>;
using Json = BasicJson<true>;
using OrderedJson = BasicJson<false>;

inline Json parse_json(std::string_view text) { return Json::parse(text); }
inline OrderedJson parse_ordered_json(std::string_view text) { return OrderedJson::parse(text); }
inline Json try_parse_json(std::string_view text) { return Json::try_parse(text); }
template <bool kSorted>
std::string dump_json(const BasicJson<kSorted>& value, int indent = -1) {
  return value.dump(indent);
}
/// `text` as a JSON string, in quotes.
std::string json_string(std::string_view text);

/// Receives the parts of a text in order, without making a value of it. Each returns whether to read on.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual bool value(Json value) = 0;  ///< null, a bool or a number
  virtual bool text(std::string& text) = 0;
  virtual bool key(std::string& name) = 0;
  virtual bool start_object() = 0;
  virtual bool end_object() = 0;
  virtual bool start_array() = 0;
  virtual bool end_array() = 0;
};
/// Throws JsonError if the text is not JSON. false: an event asked to stop.
bool read_json(std::string_view text, JsonEvents& events);
bool read_json(std::istream& text, JsonEvents& events);

}  // namespace trainctl
