// ChatTemplate: how a model's conversations become text. A row for each known form; a tokenizer's folder
// says which one it has, in Jinja, which is recognised by its markers and not run.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

/// Stands for the tokenizer's end of text in the texts of a template.
inline constexpr char kEndOfTextMark = '\x03';

/// What the conversations of one or more families of models have in common.
struct ChatForm {
  /// What surrounds the content of a message. An answer's end has a loss, what follows it has none.
  struct Turn {
    std::string_view before, end, after;
  };
  /// Where a system message goes: a turn of its own, before the content of the first or of the last user's
  /// message and an empty line, or nowhere: it is refused.
  enum class System { turn, first_user, last_user, refused };
  std::string_view name;
  std::string_view begin;  ///< before the first message
  Turn system, user, assistant;
  System system_goes = System::turn;
  bool trims = false;          ///< white space around contents goes
  bool trims_answers = false;  ///< around those of answers alone
  bool ends_open = false;      ///< nothing follows the end of the last answer
  bool has_thoughts = false;   ///< Qwen 3: an empty thought before the last answer, none before earlier ones
  /// Texts in it that are one token each, if the tokenizer has them. needs_specials: it must.
  std::span<const std::string_view> specials;
  bool needs_specials = true;
  bool always_has_system = false;  ///< an empty system message where a conversation has none
};

struct ChatTemplate : ChatForm {
  /// Of a conversation without a system message; nullopt: none.
  std::optional<std::string> default_system = {};
};

/// The row of a name. Error(kUsage): none, with the names that there are.
ChatTemplate chat_template_named(const std::string& name);
/// "chatml, llama3, ..."
std::string chat_template_names();
/// The row for a template in Jinja; nullopt: it is none of those known.
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja);
/// The template in the folder of a tokenizer's file: chat_template.jinja, or chat_template of
/// tokenizer_config.json. nullopt if there is none, and `why` says where it was looked for, or that it is not
/// known.
std::optional<ChatTemplate> chat_template_of(FileSystem& fs, const TokenizerChoice& tokenizer,
                                             std::string& why);

}  // namespace trainctl::data
