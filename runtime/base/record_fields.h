// Declares `fields`, the one list from which a record is written to and read from JSON. record.h writes and reads
// records, and shows such a list.
//
// It needs nothing of JSON: most files that see a record neither write nor read one.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// Specialised with `static void fields(auto& f, auto& r)` for a record that has no such member.
template <typename T>
struct RecordOf;

/// A bool that is written as one of two texts; any other text is read as false.
template <typename Bool>
struct BoolText {
  Bool& value;
  const char *yes, *no;
};
template <typename Bool>
BoolText<Bool> as_words(Bool& value, const char* yes, const char* no) {
  return {value, yes, no};
}

/// A field that holds JSON as text. Text that is not JSON is written as `<discarded>`, as Json
/// does.
template <typename Text>
struct JsonText {
  Text& text;
};
template <typename Text>
JsonText<Text> as_json(Text& text) {
  return {text};
}

/// A field that holds a record as the text of its JSON, with the keys in the order of its fields.
template <typename Record>
struct RecordText {
  Record& record;
};
template <typename Record>
RecordText<Record> as_text(Record& record) {
  return {record};
}

/// A record of which a view shows what it can: one that cannot be read has its defaults.
template <typename Record>
struct RecordView {
  Record& record;
};
template <typename Record>
RecordView<Record> as_view(Record& record) {
  return {record};
}

/// "nan", "inf" or "-inf": of a number that is not finite, in a field of its own.
///   f("loss", r.loss), f.when(!std::isfinite(r.loss), "loss_kind", as_kind(r.loss));
template <typename Double>
struct NumberKind {
  Double& value;
};
template <typename Double>
NumberKind<Double> as_kind(Double& value) {
  return {value};
}

}  // namespace trainctl
