#include "data/tokenize/answers.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

struct Message {
  std::string role, content;
  uint8_t weight = 1;
};

/// Names of the same things in two customs: OpenAI's and ShareGPT's.
constexpr std::pair<const char*, const char*> kRoles[] = {
    {"human", "user"}, {"gpt", "assistant"}, {"model", "assistant"}};
constexpr std::pair<const char*, const char*> kPairs[] = {{"prompt", "completion"}, {"input", "output"}};

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::kData, text); }

const Json* messages_of(const Json& record) {
  for (const char* key : {"messages", "conversations"})
    if (record.contains(key) && record.at(key).is_array()) return &record.at(key);
  return nullptr;
}

bool has_text(const Json& record, const char* key) {
  return record.contains(key) && record.at(key).is_string();
}

std::string text_at(const Json& message, const char* key, const char* other, size_t number) {
  for (const char* name : {key, other})
    if (has_text(message, name)) return message.at(name).get<std::string>();
  refuse(fmt::format("message {} has no string under \"{}\"", number, key));
}

Message message_of(const Json& json, size_t number) {
  if (!json.is_object()) refuse(fmt::format("message {} is no object", number));
  Message message{.role = text_at(json, "role", "from", number),
                  .content = text_at(json, "content", "value", number)};
  for (const auto& [custom, role] : kRoles)
    if (message.role == custom) message.role = role;
  if (message.role != "system" && message.role != "user" && message.role != "assistant")
    refuse(fmt::format("message {} has the role {}; known are system, user and assistant", number,
                       message.role));
  if (json.contains("weight")) {
    const Json& weight = json.at("weight");
    const double value = weight.is_number() ? weight.get<double>() : -1;
    if (value < 0 || value > 255 || value != double(int(value)))
      refuse(fmt::format("the weight of message {} is no whole number from 0 to 255", number));
    message.weight = uint8_t(value);
  }
  return message;
}

std::vector<Message> conversation_of(const Json& list) {
  std::vector<Message> messages;
  for (const Json& json : list) messages.push_back(message_of(json, messages.size() + 1));
  for (size_t i = 1; i < messages.size(); ++i)
    if (messages[i].role == "system")
      refuse(fmt::format("message {} is of the system, which only the first may be", i + 1));
  if (std::none_of(messages.begin(), messages.end(), [](const Message& m) { return m.role == "assistant"; }))
    refuse("no message is an answer (role assistant)");
  return messages;
}

std::string trimmed(const std::string& text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string without_newlines_before(const std::string& text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

/// Parts of a text with one weight each. `is_content`: special tokens in it are text.
struct Part {
  std::string text;
  uint8_t weight = 0;
  bool is_content = false;
};

/// A thought and the answer after it, as Qwen 3 writes them. Of answers before the last the thought is left
/// out.
void put_thoughtful(std::string content, uint8_t weight, bool is_last, std::vector<Part>& parts) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const size_t end = content.rfind(kEnd);
  std::string thought;
  if (end != content.npos) {
    thought = content.substr(0, content.find(kEnd));
    if (const size_t begin = thought.rfind(kBegin); begin != thought.npos)
      thought.erase(0, begin + kBegin.size());
    while (thought.ends_with('\n')) thought.pop_back();
    thought = without_newlines_before(thought);
    content = without_newlines_before(content.substr(end + kEnd.size()));
  }
  if (is_last) {
    // A generation without thinking begins behind an empty thought.
    parts.push_back(
        {fmt::format("{}\n{}\n{}\n\n", kBegin, thought, kEnd), thought.empty() ? uint8_t(0) : weight, true});
    content = without_newlines_before(content);
  }
  parts.push_back({content, weight, true});
}

std::vector<Part> rendered(const ChatTemplate& form, std::vector<Message> messages) {
  using System = ChatForm::System;
  std::vector<Part> parts = {{std::string(form.begin)}};
  const bool has_system = messages[0].role == "system";
  if (!has_system && form.default_system)
    messages.insert(messages.begin(), {.role = "system", .content = *form.default_system});
  if (form.system_goes != System::turn && has_system) {
    if (form.system_goes == System::refused)
      refuse(fmt::format("the chat template {} has no system messages", form.name));
    const std::string text = messages[0].content + "\n\n";
    messages.erase(messages.begin());
    const auto is_user = [](const Message& m) { return m.role == "user"; };
    const auto first = std::find_if(messages.begin(), messages.end(), is_user);
    if (first == messages.end()) refuse("a system message needs one of a user");
    // The templates trim a user's message before it goes behind the system's.
    Message& user = form.system_goes == System::first_user
                        ? *first
                        : *std::find_if(messages.rbegin(), messages.rend(), is_user);
    user.content = text + (form.trims ? trimmed(user.content) : user.content);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const bool answers = m.role == "assistant", is_last = i + 1 == messages.size();
    const ChatForm::Turn& turn = answers ? form.assistant : m.role == "user" ? form.user : form.system;
    const uint8_t weight = answers ? m.weight : uint8_t(0);
    const bool trims =
        form.trims && !(m.role == "user" && form.system_goes == System::first_user && has_system && i == 0);
    const std::string content = trims || (answers && form.trims_answers) ? trimmed(m.content) : m.content;
    parts.push_back({std::string(turn.before)});
    if (answers && form.has_thoughts)
      put_thoughtful(content, weight, is_last, parts);
    else
      parts.push_back({content, weight, true});
    parts.push_back({std::string(turn.end), weight});
    if (!(is_last && answers && form.ends_open)) parts.push_back({std::string(turn.after)});
  }
  return parts;
}

}  // namespace

bool has_answers(std::string_view line, const std::string& text_key) {
  const Json record = try_parse_json(std::string(line));
  if (!record.is_object() || has_text(record, text_key.c_str())) return false;
  const auto has_pair = [&](const auto& pair) {
    return has_text(record, pair.first) && has_text(record, pair.second);
  };
  return messages_of(record) != nullptr || std::any_of(std::begin(kPairs), std::end(kPairs), has_pair);
}

AnswerEncoder::AnswerEncoder(const Tokenizer& tokenizer, std::optional<ChatTemplate> form, std::string why)
    : tokenizer_(tokenizer), form_(std::move(form)), why_(std::move(why)) {
  if (tokenizer.adds_space())
    throw Error(
        ErrorCode::kData,
        "the tokenizer puts a space before each text, so an answer would not begin as the model writes it; "
        "use a tokenizer.json, or a model without a dummy prefix");
  specials_.push_back({std::string(1, kEndOfTextMark), tokenizer.end_of_text()});
  if (!form_) return;
  for (const std::string_view text : form_->specials) {
    const auto id = tokenizer.special_id(text);
    if (!id && form_->needs_specials)
      throw Error(
          ErrorCode::kData,
          fmt::format("the tokenizer has no token {}, which the chat template {} needs; choose another with "
                      "--chat-template ({})",
                      text, form_->name, chat_template_names()));
    if (id) specials_.push_back({std::string(text), *id});
  }
}

size_t AnswerEncoder::encode(std::string_view line, Tokenizer::Encoder& encoder, std::vector<int32_t>& ids,
                             std::vector<uint8_t>& weights) const {
  const Json record = try_parse_json(std::string(line));
  if (!record.is_object()) refuse("no JSON object");
  std::vector<Part> parts;
  if (const Json* messages = messages_of(record)) {
    if (!form_) refuse(fmt::format("{}; choose one with --chat-template ({})", why_, chat_template_names()));
    parts = rendered(*form_, conversation_of(*messages));
  }
  for (const auto& [prompt, completion] : kPairs) {
    if (!parts.empty() || !has_text(record, prompt) || !has_text(record, completion)) continue;
    if (record.contains("instruction")) refuse("it has an instruction, too; make one prompt of the two");
    parts = {{record.at(prompt).get<std::string>(), 0, true},
             {record.at(completion).get<std::string>(), 1, true},
             {std::string(1, kEndOfTextMark), 1}};
  }
  if (parts.empty()) refuse("no messages, and no prompt and completion");

  size_t bytes = 0;
  std::string stretch;  // text of one weight
  uint8_t weight = 0;
  const auto put_stretch = [&] {
    bytes += stretch.size();
    encoder.encode_plain(stretch, ids);
    weights.resize(ids.size(), weight);
    stretch.clear();
  };
  const auto put_text = [&](std::string_view text, uint8_t of) {
    if (of != weight) put_stretch();
    weight = of;
    stretch += text;
  };
  for (const Part& part : parts) {
    std::string_view rest = part.text;
    while (!rest.empty()) {
      size_t at = rest.npos;
      const Special* next = nullptr;
      for (const Special& special : specials_)
        if (const size_t found = rest.find(special.text); found < at) at = found, next = &special;
      if (next && part.is_content) {
        // Cut inside, so that no tokenizer takes it for the token, whether it calls that one special or not.
        put_text(rest.substr(0, at + 1), part.weight);
        put_stretch();
        rest.remove_prefix(at + 1);
        continue;
      }
      put_text(rest.substr(0, at), part.weight);
      if (!next) break;
      put_stretch();
      ids.push_back(next->id);
      weights.push_back(part.weight);
      rest.remove_prefix(at + next->text.size());
    }
  }
  put_stretch();
  return bytes;
}

}  // namespace trainctl::data
