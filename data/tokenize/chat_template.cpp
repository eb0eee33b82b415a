#include "data/tokenize/chat_template.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

using System = ChatForm::System;

constexpr std::string_view kChatMl[] = {"<|im_start|>", "<|im_end|>"};
constexpr std::string_view kLlama3[] = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                        "<|eot_id|>"};
constexpr std::string_view kGemma[] = {"<bos>", "<start_of_turn>", "<end_of_turn>"};
constexpr std::string_view kMistral[] = {"<s>"};
constexpr std::string_view kMistralWords[] = {"<s>", "[INST]", "[/INST]"};
constexpr std::string_view kTulu[] = {"<|system|>", "<|user|>", "<|assistant|>"};

/// Recognised by all of `has` and none of `lacks`. Source of each: the chat_template of the named models'
/// repositories.
struct KnownTemplate {
  ChatForm form;
  std::array<std::string_view, 6> has, lacks;
};

constexpr ChatForm::Turn kChatMlSystem{"<|im_start|>system\n", "<|im_end|>", "\n"},
    kChatMlUser{"<|im_start|>user\n", "<|im_end|>", "\n"},
    kChatMlAssistant{"<|im_start|>assistant\n", "<|im_end|>", "\n"};
constexpr ChatForm::Turn kLlamaUser{"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", ""},
    kLlamaAssistant{"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", ""};
constexpr ChatForm::Turn kGemmaUser{"<start_of_turn>user\n", "<end_of_turn>", "\n"},
    kGemmaAssistant{"<start_of_turn>model\n", "<end_of_turn>", "\n"};
constexpr ChatForm::Turn kTuluSystem{"<|system|>\n", "", "\n"}, kTuluUser{"<|user|>\n", "", "\n"},
    kTuluAssistant{"<|assistant|>\n", "\x03", "\n"};

constexpr KnownTemplate kKnownTemplates[] = {
    // Qwen 2, Qwen 2.5, SmolLM 2, and whatever else has no more than the turns.
    {{.name = "chatml",
      .begin = "",
      .system = kChatMlSystem,
      .user = kChatMlUser,
      .assistant = kChatMlAssistant,
      .specials = kChatMl},
     {"<|im_start|>", "<|im_end|>"},
     // Others have a beginning of text, or no line after the role: Hermes on Llama 3, LFM 2, Phi 4.
     {"think", "<functions>", "Metadata", "bos_token", "<|im_sep|>"}},
    {{.name = "qwen3",
      .begin = "",
      .system = kChatMlSystem,
      .user = kChatMlUser,
      .assistant = kChatMlAssistant,
      .has_thoughts = true,
      .specials = kChatMl},
     {"<|im_start|>", "<|im_end|>", "last_query_index", "</think>"},
     {}},
    {{.name = "llama3",
      .begin = "<|begin_of_text|>",
      .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", ""},
      .user = kLlamaUser,
      .assistant = kLlamaAssistant,
      .trims = true,
      .specials = kLlama3},
     {"<|start_header_id|>", "<|eot_id|>"},
     {"Cutting Knowledge Date"}},
    // Llama 3.1 to 3.3, with the date that the template of 3.1 has.
    {{.name = "llama3.1",
      .begin = "<|begin_of_text|>",
      .system = {"<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
                 "Today Date: 26 Jul 2024\n\n",
                 "<|eot_id|>", ""},
      .user = kLlamaUser,
      .assistant = kLlamaAssistant,
      .trims = true,
      .specials = kLlama3,
      .always_has_system = true},
     {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date"},
     {}},
    {{.name = "gemma",
      .begin = "<bos>",
      .user = kGemmaUser,
      .assistant = kGemmaAssistant,
      .system_goes = System::refused,
      .trims = true,
      .specials = kGemma},
     {"<start_of_turn>", "<end_of_turn>"},
     {"first_user_prefix"}},
    {{.name = "gemma3",
      .begin = "<bos>",
      .user = kGemmaUser,
      .assistant = kGemmaAssistant,
      .system_goes = System::first_user,
      .trims = true,
      .specials = kGemma},
     {"<start_of_turn>", "<end_of_turn>", "first_user_prefix"},
     {}},
    // Mistral 7B Instruct v0.2; v0.3; Nemo and later.
    {{.name = "mistral",
      .begin = "<s>",
      .user = {"[INST] ", " [/INST]", ""},
      .assistant = {"", "\x03", ""},
      .system_goes = System::refused,
      .specials = kMistral},
     {"'[INST] '", "' [/INST]'"},
     {"<<SYS>>", "strip()"}},  // Llama 2
    {{.name = "mistral-v3",
      .begin = "<s>",
      .user = {"[INST] ", "[/INST]", ""},
      .assistant = {" ", "\x03", ""},
      .system_goes = System::last_user,
      .trims_answers = true,
      .specials = kMistralWords},
     {"\"[INST] \"", "\"[/INST]\""},
     {}},
    {{.name = "mistral-tekken",
      .begin = "<s>",
      .user = {"[INST]", "[/INST]", ""},
      .assistant = {"", "\x03", ""},
      .system_goes = System::last_user,
      .specials = kMistralWords},
     {"\"[INST]\"", "\"[/INST]\""},
     {}},
    {{.name = "zephyr",
      .begin = "",
      .system = {"<|system|>\n", "\x03", "\n"},
      .user = {"<|user|>\n", "\x03", "\n"},
      .assistant = kTuluAssistant,
      .specials = kTulu,
      .needs_specials = false},
     {"'<|user|>\\n' + message['content'] + eos_token"},
     {"<|end|>"}},
    // Tulu 2 and 3; OLMo 2, whose beginning of text is its end of text.
    {{.name = "tulu",
      .begin = "",
      .system = kTuluSystem,
      .user = kTuluUser,
      .assistant = kTuluAssistant,
      .ends_open = true,
      .specials = kTulu,
      .needs_specials = false},
     {"'<|user|>\\n' + message['content'] + '\\n'", "<|assistant|>"},
     {"<|end|>", "bos_token"}},
    {{.name = "olmo2",
      .begin = "\x03",
      .system = kTuluSystem,
      .user = kTuluUser,
      .assistant = kTuluAssistant,
      .ends_open = true,
      .specials = kTulu,
      .needs_specials = false},
     {"'<|user|>\\n' + message['content'] + '\\n'", "<|assistant|>", "bos_token"},
     {"<|end|>"}},
};

ChatTemplate of_form(const ChatForm& form) {
  ChatTemplate result{form, {}};
  if (form.always_has_system) result.default_system = "";
  return result;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

/// The system message that a ChatML template has for conversations without one: what follows
/// `<|im_start|>system\n` up to `<|im_end|>` in one literal.
std::optional<std::string> default_system_of(std::string_view jinja) {
  constexpr std::string_view kBefore = "<|im_start|>system\\n", kEnd = "<|im_end|>";
  for (size_t at = jinja.find(kBefore); at != jinja.npos; at = jinja.find(kBefore, at + 1)) {
    const std::string_view rest = jinja.substr(at + kBefore.size());
    const std::string_view literal = rest.substr(0, rest.find(kEnd));
    if (!literal.empty() && literal.size() < rest.size() && literal.find_first_of("'\"{}\\") == literal.npos)
      return std::string(literal);
  }
  return std::nullopt;
}

/// chat_template of tokenizer_config.json: a text, or a list of named ones, of which that named default
/// counts.
std::string template_in_config(const std::string& text) {
  const Json config = try_parse_json(text);
  if (!config.is_object() || !config.contains("chat_template")) return "";
  const Json& field = config.at("chat_template");
  if (field.is_string()) return field.get<std::string>();
  if (field.is_array())
    for (const Json& named : field)
      if (named.is_object() && named.value("name", "") == "default") return named.value("template", "");
  return "";
}

}  // namespace

std::string chat_template_names() {
  std::string names;
  for (const KnownTemplate& known : kKnownTemplates)
    names += (names.empty() ? "" : ", ") + std::string(known.form.name);
  return names;
}

ChatTemplate chat_template_named(const std::string& name) {
  for (const KnownTemplate& known : kKnownTemplates)
    if (known.form.name == name) return of_form(known.form);
  throw Error(ErrorCode::kUsage,
              fmt::format("no chat template is named {}; there are {}", name, chat_template_names()));
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja) {
  for (const KnownTemplate& known : kKnownTemplates) {
    bool is_this = true;
    for (const std::string_view part : known.has) is_this = is_this && contains(jinja, part);
    for (const std::string_view part : known.lacks)
      is_this = is_this && (part.empty() || !contains(jinja, part));
    if (!is_this) continue;
    ChatTemplate found = of_form(known.form);
    if (found.name == "chatml") found.default_system = default_system_of(jinja);
    return found;
  }
  return std::nullopt;
}

std::optional<ChatTemplate> chat_template_of(FileSystem& fs, const TokenizerChoice& tokenizer,
                                             std::string& why) {
  if (!tokenizer.is_file()) {
    why = "the tokenizer bytes has no chat template";
    return std::nullopt;
  }
  const auto folder = std::filesystem::path(tokenizer.path()).parent_path();
  const std::string own = (folder / "chat_template.jinja").string(),
                    config = (folder / "tokenizer_config.json").string();
  const bool has_own = fs.exists(own);
  const std::string jinja = has_own             ? fs.read_text(own)
                            : fs.exists(config) ? template_in_config(fs.read_text(config))
                                                : "";
  if (jinja.empty()) {
    why = fmt::format("there is no chat template at the tokenizer (neither {} nor chat_template in {})", own,
                      config);
    return std::nullopt;
  }
  std::optional<ChatTemplate> found = recognise_chat_template(jinja);
  if (!found)
    why = fmt::format(
        "the chat template in {} is none of those known, which are told by <|im_start|> (ChatML), "
        "<|start_header_id|> (Llama 3), <start_of_turn> (Gemma), [INST] (Mistral) and <|user|> (Zephyr, "
        "Tulu)",
        has_own ? own : config);
  return found;
}

}  // namespace trainctl::data
