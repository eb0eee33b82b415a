// Records: a struct lists its fields once, and both the JSON writer and the JSON reader use that list.
//
//   struct Node {
//     std::string name;
//     std::optional<double> load;
//     static void fields(auto& f, auto& r) {   // r is const when a record is written
//       f("name", r.name);                     // always written; the reader requires it
//       f.later("count", r.count);             // always written; records of older versions may lack it
//       f.maybe("load", r.load);               // written only if it has a value
//       f.when(r.count > 1, "many", r.many);   // written on that condition; read if it is there
//       f.written("version", 1);               // written for other programs; the reader ignores it
//     }
//   };
//
// RecordOf<T>::fields is the list of a type that cannot hold it. A field is a record, an enum with Words,
// a type that is read from a text (TextForm) or that Json converts (numbers, bools, texts, pairs, what has
// a JsonForm), a vector of these, JSON in a text: f("lineage", as_json(r.lineage_json)), or a record in a
// text in the JSON: f("json", as_text(r.line)). A number that is not finite is null, and null is read as
// NaN; as_kind says which of them it is. Pure; safe from any thread.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record_fields.h"
#include "runtime/base/words.h"

namespace trainctl {

/// The text or JSON value is not such a record. The message says what is wrong.
class BadRecord : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename J>
class RecordWriter {
 public:
  explicit RecordWriter(J& object) : object_(object) {}
  template <typename T>
  void operator()(const char* name, const T& value) {
    object_[name] = json_of(value);
  }
  template <typename T>
  void later(const char* name, const T& value) {
    (*this)(name, value);
  }
  template <typename T>
  void maybe(const char* name, const std::optional<T>& value) {
    if (value) (*this)(name, *value);
  }
  template <typename T>
  void when(bool condition, const char* name, const T& value) {
    if (condition) (*this)(name, value);
  }
  template <typename T>
  void written(const char* name, const T& value) {
    (*this)(name, value);
  }

  template <typename T>
  static J json_of(const T& value) {
    if constexpr (requires(RecordWriter& w) { T::fields(w, value); }) {
      J object = J::object();
      RecordWriter writer(object);
      T::fields(writer, value);
      return object;
    } else if constexpr (requires(RecordWriter& w) { RecordOf<T>::fields(w, value); }) {
      J object = J::object();
      RecordWriter writer(object);
      RecordOf<T>::fields(writer, value);
      return object;
    } else if constexpr (Worded<T>) {
      return J(word_of(value));
    } else if constexpr (TextForm<T>) {
      return J(value.text());
    } else {
      return J(value);
    }
  }
  template <typename T>
  static J json_of(const std::vector<T>& list) {
    J array = J::array();
    for (const T& item : list) array.push_back(json_of(item));
    return array;
  }
  template <typename Bool>
  static J json_of(const BoolText<Bool>& text) {
    return J(text.value ? text.yes : text.no);
  }
  template <typename Text>
  static J json_of(const JsonText<Text>& json) {
    static_assert(std::is_same_v<J, Json>, "the order of its keys would be lost");
    return try_parse_json(json.text);
  }
  template <typename Record>
  static J json_of(const RecordText<Record>& text) {
    return J(dump_json(RecordWriter<OrderedJson>::json_of(text.record)));
  }
  template <typename Record>
  static J json_of(const RecordView<Record>& view) {
    return json_of(view.record);
  }
  template <typename Double>
  static J json_of(const NumberKind<Double>& kind) {
    return J(std::isnan(kind.value) ? "nan" : kind.value > 0 ? "inf" : "-inf");
  }

 private:
  J& object_;
};

/// A number that T holds exactly: Json would convert any other without an error. Throws
/// BadRecord.
template <typename T, typename J>
T whole_number(const J& json) {
  const bool fits = json.is_number_unsigned()
                        ? std::in_range<T>(json.template get<uint64_t>())
                        : json.is_number_integer() && std::in_range<T>(json.template get<int64_t>());
  if (!fits) throw BadRecord(fmt::format("{} is no whole number in its range", dump_json(json)));
  return json.template get<T>();
}

template <typename J>
class RecordReader {
 public:
  explicit RecordReader(const J& object) : object_(object) {}
  template <typename T>
  void operator()(const char* name, T&& value) {
    read(object_.at(name), value);
  }
  template <typename T>
  void later(const char* name, T&& value) {
    if (object_.contains(name)) read(object_.at(name), value);
  }
  template <typename T>
  void maybe(const char* name, std::optional<T>& value) {
    if (object_.contains(name)) read(object_.at(name), value.emplace());
  }
  template <typename T>
  void when(bool, const char* name, T&& value) {
    later(name, value);
  }
  template <typename T>
  void written(const char*, const T&) {}

  template <typename T>
  static void read(const J& json, T& value) {
    if constexpr (requires(RecordReader& r) { T::fields(r, value); }) {
      RecordReader reader(json);
      T::fields(reader, value);
    } else if constexpr (requires(RecordReader& r) { RecordOf<T>::fields(r, value); }) {
      RecordReader reader(json);
      RecordOf<T>::fields(reader, value);
    } else if constexpr (Worded<T>) {
      const auto word = json.template get<std::string>();
      const auto known = of_word<T>(word);
      if (!known) throw BadRecord(fmt::format("\"{}\" is no value that this program knows", word));
      value = *known;
    } else if constexpr (TextForm<T>) {
      value = T::of(json.template get<std::string>());
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      value = whole_number<T>(json);
    } else if constexpr (std::is_floating_point_v<T>) {
      value = json.is_null() ? std::numeric_limits<T>::quiet_NaN() : json.template get<T>();
    } else {
      json.get_to(value);
    }
  }
  template <typename T>
  static void read(const J& json, std::vector<T>& list) {
    list.clear();
    for (const J& item : json.list()) read(item, list.emplace_back());
  }
  static void read(const J& json, std::vector<bool>& list) = delete;
  template <typename Bool>
  static void read(const J& json, BoolText<Bool>& text) {
    text.value = json.template get<std::string>() == text.yes;
  }
  template <typename Text>
  static void read(const J& json, JsonText<Text>& value) {
    value.text = dump_json(json);
  }
  template <typename Record>
  static void read(const J& json, RecordText<Record>& text) {
    RecordReader<Json>::read(parse_json(json.template get<std::string>()), text.record);
  }
  template <typename Record>
  static void read(const J& json, RecordView<Record>& view) try {
    read(json, view.record);
  } catch (const std::exception&) {
    view.record = {};
  }
  template <typename Double>
  static void read(const J& json, NumberKind<Double>& kind) {
    const auto word = json.template get<std::string>();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (word == "inf" || word == "-inf") kind.value = word == "inf" ? kInfinity : -kInfinity;
  }

 private:
  const J& object_;
};

/// The record as a JSON value. With Json the keys are sorted; with OrderedJson they have the
/// order of the fields.
template <typename J = Json, typename R>
J record_json(const R& record) {
  return RecordWriter<J>::json_of(record);
}
template <typename R>
std::string record_text(const R& record, int indent = -1) {
  return dump_json(record_json(record), indent);
}

/// Reads a record. Throws BadRecord.
template <typename R, typename J>
R record_of(const J& json) try {
  R record;
  RecordReader<J>::read(json, record);
  return record;
} catch (const JsonError& error) {
  throw BadRecord(error.what());
}
template <typename R>
R record_of_text(std::string_view text) try {
  return record_of<R>(parse_json(text));
} catch (const JsonError& error) {
  throw BadRecord(error.what());
}

/// Of a file that is called `name` in the error. Throws Error(kIo).
template <typename R>
R read_record(std::string_view text, std::string_view name) try {
  return record_of_text<R>(text);
} catch (const BadRecord& error) {
  throw Error(ErrorCode::kIo, fmt::format("{} is damaged: {}", name, error.what()));
}

}  // namespace trainctl
