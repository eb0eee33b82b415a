// The alphabet in which tokenizer files write bytes: one printable character for each.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace trainctl::data {

/// The character that stands for a byte in byte-level BPE, as UTF-8: printable Latin-1 for itself, the
/// others from U+0100 on. Source: bytes_to_unicode of GPT-2's encoder.py.
const std::string& character_of_byte(uint8_t byte);
/// The bytes as such characters.
std::string characters_of_bytes(std::string_view bytes);
/// The bytes that the characters stand for; nullopt: one of them stands for none.
std::optional<std::string> bytes_of_characters(std::string_view characters);

}  // namespace trainctl::data
