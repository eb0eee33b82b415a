// How results get onto stdout with --json. Each result is one JSON object {"v": 1, "kind": KIND, ...}, an
// error too; its schema is runtime/observe/schemas/KIND.schema.json.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::cmd {

/// Prints a result. `body`: an object; `v` and `kind` of its own are replaced. `indent` -1: one line, for
/// commands that print one result after another.
void print_json(std::string_view kind, const OrderedJson& body, int indent = 2);
/// The same of an object as text.
void print_json_text(std::string_view kind, const std::string& object, int indent = 2);
/// A result as text, with a newline.
std::string json_text(std::string_view kind, const OrderedJson& body, int indent = 2);
/// Prints `text`, which is an object if --json is given: then as a result on one line.
void print_result(std::string_view kind, const std::string& text, const Context& context);
/// A page that is made for people or for another program (help, roff, a script), as a result: kind `text`.
void print_page(const std::string& text, bool json);

/// The result of a command that failed: kind `error`, with the mistakes of a job if it is about them.
void print_error_json(ErrorCode code, const std::string& message,
                      const std::vector<Diagnostic>& mistakes = {});

}  // namespace trainctl::cmd
