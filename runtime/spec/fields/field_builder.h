// Declares the fields of the table, each bound by type to its member of JobSpec. Only fields*.cpp use it.
#pragma once
#include <type_traits>

#include "runtime/base/error.h"
#include "runtime/spec/fields/fields.h"

namespace trainctl::spec {

template <class T>
concept ListOfWords = requires { requires Worded<typename T::value_type>; };

template <class T>
void assign(T& target, const Setting& setting, const Field& field) {
  if constexpr (std::is_enum_v<T> && !std::is_same_v<T, DType>) {
    const std::string& word = std::get<std::string>(setting);
    for (size_t i = 0; i < field.choices.size(); ++i)
      if (field.choices[i] == word) target = static_cast<T>(i);
  } else if constexpr (std::is_same_v<T, DType> || std::is_same_v<T, std::optional<DType>>) {
    const std::string& word = std::get<std::string>(setting);
    const std::string name = word == "uint16" ? "u16" : word == "uint32" ? "u32" : word;
    for (DType d : {DType::f32, DType::bf16, DType::f16, DType::u16, DType::u32})
      if (name == trainctl::name_of(d)) target = d;
  } else if constexpr (std::is_same_v<T, bool>) {
    target = std::get<bool>(setting);
  } else if constexpr (TextForm<T>) {
    target = T::of(std::get<std::string>(setting));
  } else if constexpr (ListOfWords<T>) {
    target.clear();
    for (const std::string& word : std::get<std::vector<std::string>>(setting))
      target.push_back(of_word<typename T::value_type>(word).value());  // one of the field's choices
  } else if constexpr (std::is_integral_v<T>) {
    target = static_cast<T>(std::get<int64_t>(setting));
  } else {
    target = std::get<T>(setting);
  }
}

template <class T>
Setting retrieve(const T& value, const Field& field) {
  if constexpr (std::is_same_v<T, DType>) {
    if (value == DType::u16 || value == DType::u32)
      return std::string(value == DType::u16 ? "uint16" : "uint32");
    return std::string(trainctl::name_of(value));
  } else if constexpr (std::is_enum_v<T>) {
    return field.choices.at(static_cast<size_t>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else if constexpr (TextForm<T>) {
    return value.text();
  } else if constexpr (ListOfWords<T>) {
    std::vector<std::string> words;
    for (const auto item : value) words.emplace_back(word_of(item));
    return words;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(value);
  } else {
    return value;
  }
}

/// The choices of a field that is an enum with words.
template <Worded E>
std::vector<std::string> words_of() {
  return {std::begin(Words<E>::list), std::end(Words<E>::list)};
}

/// Chained declaration of one field.
class Declare {
 public:
  Declare(std::vector<Field>& table, Field field) : table_(table), index_(table.size()) {
    table.push_back(std::move(field));
  }

  template <class Access>
  Declare& to(Access access) {  ///< member of JobSpec
    Field& field = self();
    const Field shape = choices_of(field);
    field.set = [access, shape](JobSpec& job, const Setting& s) { assign(access(job), s, shape); };
    field.get = [access, shape](const JobSpec& job) {
      return retrieve(access(const_cast<JobSpec&>(job)), shape);
    };
    return *this;
  }
  /// A choice that is also a number: `word` then is `counted`, and `count` is the number.
  template <class Word, class Enum, class Count>
  Declare& to_word_or_count(Word word, Enum counted, Count count) {
    Field& field = self();
    field.accepts_count = true;
    const Field shape = choices_of(field);
    field.set = [=](JobSpec& job, const Setting& s) {
      const int64_t* number = std::get_if<int64_t>(&s);
      count(job) = number ? *number : 0;
      if (number)
        word(job) = counted;
      else
        assign(word(job), s, shape);
    };
    field.get = [=](const JobSpec& job) -> Setting {
      JobSpec& of = const_cast<JobSpec&>(job);
      return word(of) == counted ? Setting(count(of)) : retrieve(word(of), shape);
    };
    return *this;
  }
  template <class Access>
  Declare& to_source(Access access) {  ///< member of DataSource
    Field& field = self();
    const Field shape = choices_of(field);
    field.set_in_source = [access, shape](DataSource& source, const Setting& s) {
      assign(access(source), s, shape);
    };
    field.get_from_source = [access, shape](const DataSource& source) -> std::optional<Setting> {
      const auto& value = access(const_cast<DataSource&>(source));
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::optional<DType>>) {
        if (!value) return std::nullopt;
        return retrieve(*value, shape);
      } else {
        return retrieve(value, shape);
      }
    };
    return *this;
  }
  Declare& unit(Unit u) { return self().unit = u, *this; }
  Declare& from(double min) { return self().min = min, *this; }
  Declare& above(double min) { return self().min = min, self().above_min = true, *this; }
  Declare& upto(double max) { return self().max = max, *this; }
  Declare& alias(std::string spelling, std::string meaning) {
    return self().aliases.emplace_back(std::move(spelling), std::move(meaning)), *this;
  }
  Declare& fallback(Setting setting) { return self().fallback = std::move(setting), *this; }
  Declare& fallback_text(std::string words) { return self().fallback_text = std::move(words), *this; }
  Declare& required() { return self().required = true, *this; }
  Declare& or_auto(std::string meaning) {
    self().accepts_auto = true;
    self().fallback = std::string("auto");
    return self().fallback_text = "auto: " + std::move(meaning), *this;
  }
  Declare& names(Names what) { return self().names = what, *this; }
  Declare& identifier() { return self().identifier = true, *this; }
  Declare& on_change(Change change) { return self().change = change, *this; }
  Declare& bits_by(BitsBy what) { return self().bits_by = what, *this; }
  Declare& where_learned(WhereLearned meaning) { return self().where_learned = meaning, *this; }
  Declare& sources(std::vector<DataSource> DataSpec::*list) { return self().sources = list, *this; }
  Declare& by_family(std::string words) {
    self().by_family = true;
    return fallback_text(std::move(words));
  }
  Declare& decided_at_birth() { return self().decided_at_birth = true, *this; }
  Declare& hint(std::string text) { return self().hint = std::move(text), *this; }
  Declare& not_listed() { return self().listed = false, *this; }
  Declare& left_out_as_default() { return self().left_out_as_default = true, *this; }
  Declare& not_resolved() { return self().in_resolved = false, *this; }
  Declare& also(std::vector<std::string> names) { return self().other_names = std::move(names), *this; }
  Declare& example(std::string json) { return self().example = std::move(json), *this; }

 private:
  Field& self() { return table_[index_]; }
  static Field choices_of(const Field& field) {
    Field shape;
    shape.choices = field.choices;
    return shape;
  }
  std::vector<Field>& table_;
  size_t index_;
};

/// One section being written down; its fields are of the class `change` where they do not say otherwise.
/// Without a text it only continues a section that is declared elsewhere.
class DeclareSection {
 public:
  DeclareSection(std::vector<Field>& table, std::vector<Section>& sections, std::string path,
                 std::string text, Change change)
      : table_(table),
        prefix_(path.empty() ? "" : path + "."),
        part_(of_word<SpecPart>(path.substr(0, path.find('.'))).value()),
        change_(change) {
    if (text.empty()) return;
    sections.push_back({std::move(path), std::move(text)});
    section_ = sections.size() - 1;
    sections_ = &sections;
  }
  /// A text in place of the section is the value of its field `leaf`.
  void word_is(const std::string& leaf) { sections_->at(section_).word_field = leaf; }
  Declare field(Type type, const std::string& leaf, std::string text,
                std::vector<std::string> choices = {}) {
    Field f;
    f.path = prefix_ + leaf;
    f.part = part_;
    f.type = type;
    f.text = std::move(text);
    f.choices = std::move(choices);
    f.change = change_;
    return Declare(table_, std::move(f));
  }
  Declare integer(const std::string& leaf, std::string text) {
    return field(Type::integer, leaf, std::move(text));
  }
  Declare number(const std::string& leaf, std::string text) {
    return field(Type::number, leaf, std::move(text));
  }
  Declare boolean(const std::string& leaf, std::string text) {
    return field(Type::boolean, leaf, std::move(text));
  }
  Declare string(const std::string& leaf, std::string text) {
    return field(Type::text, leaf, std::move(text));
  }
  Declare choice(const std::string& leaf, std::vector<std::string> choices, std::string text) {
    return field(Type::choice, leaf, std::move(text), std::move(choices));
  }

 private:
  std::vector<Field>& table_;
  std::string prefix_;
  SpecPart part_;
  Change change_;
  std::vector<Section>* sections_ = nullptr;  // where this one is declared
  size_t section_ = 0;
};

// The parts of the table, one per file.
void declare_model_and_data(std::vector<Field>& table, std::vector<Section>& sections);
void declare_layer(std::vector<Field>& table, std::vector<Section>& sections);  // of declare_model_and_data
void declare_latent(std::vector<Field>& table, std::vector<Section>& sections);      // of declare_layer
void declare_mtp(std::vector<Field>& table, std::vector<Section>& sections);         // of declare_layer
// Of declare_training:
void declare_optimizers(std::vector<Field>& table, std::vector<Section>& sections);
void declare_numbers(std::vector<Field>& table, std::vector<Section>& sections);
void declare_init_and_mup(std::vector<Field>& table, std::vector<Section>& sections);  // of the same
void declare_training(std::vector<Field>& table, std::vector<Section>& sections);
void declare_sharing(DeclareSection& parallel);                                        // of the same
void declare_role_factors(std::vector<Field>& table, std::vector<Section>& sections);  // of the same
void declare_checkpoints(std::vector<Field>& table, std::vector<Section>& sections);  // of declare_operation
void declare_operation(std::vector<Field>& table, std::vector<Section>& sections);
void declare_watch(std::vector<Field>& table, std::vector<Section>& sections);  // of declare_operation
void declare_slurm(std::vector<Field>& table, std::vector<Section>& sections);

}  // namespace trainctl::spec

/// Names a member of JobSpec for Declare::to:   IN_JOB(parallelism.tensor)
#define IN_JOB(member) \
  [](JobSpec & job) -> auto& { return job.member; }
#define IN_SOURCE(member) \
  [](DataSource & source) -> auto& { return source.member; }
