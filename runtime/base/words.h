// Words: the names of the values of an enum, for parsing and printing.
//
//   template <> struct Words<NodeState> { static constexpr std::string_view list[] = {"absent", "running"};
//   };
//
// The words are in the order of the values, which count from 0.
#pragma once
#include <concepts>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/ensure.h"

namespace trainctl {

template <typename E>
struct Words;

template <typename E>
concept Worded = requires { Words<E>::list; };

template <Worded E>
constexpr std::string_view word_of(E value) {
  const size_t i = size_t(value);
  ENSURE(i < std::size(Words<E>::list));
  return Words<E>::list[i];
}

/// The value with that word; nullopt if there is none.
template <Worded E>
constexpr std::optional<E> of_word(std::string_view word) {
  for (size_t i = 0; i < std::size(Words<E>::list); ++i)
    if (Words<E>::list[i] == word) return E(i);
  return std::nullopt;
}

/// A type with a text that says all of a value: T::of(text) reads what text() writes.
template <typename T>
concept TextForm = requires(const T& value, const std::string& text) {
  { T::of(text) } -> std::same_as<T>;
  { value.text() } -> std::convertible_to<std::string>;
};

}  // namespace trainctl
