// What `trainctl data` prints: the making, the content and the soundness of token sets, as text or as JSON.
#pragma once
#include <string>

#include "data/inspect.h"
#include "data/tokenize.h"

namespace trainctl {

/// One paragraph and, as the last line, the command to go on with; with `json` one object on one line.
std::string render_tokenized(const data::TokenizeResult& result, bool json);
std::string render_inspection(const data::Inspection& inspection, const std::string& path, bool json);
std::string render_verification(const data::Verification& verification, const std::string& path, bool json);

/// "megatron", "llmc", "raw" or "auto". Error(kUsage).
data::Format token_format(const std::string& word);
/// "u16", "u32" or "i32", also spelled "uint16", "uint32", "int32". Error(kUsage).
DType token_dtype(const std::string& word);
/// "99:1" into `train` and `val`, whole numbers with train > 0. Error(kUsage).
void parse_split(const std::string& word, int64_t& train, int64_t& val);

}  // namespace trainctl
