// The output of `trainctl data` as text or JSON: how token files were made, what they contain, whether they
// are undamaged.
#pragma once
#include <string>

#include "data/inspect.h"
#include "data/tokenize/tokenize.h"

namespace trainctl {

/// As text: one paragraph, and the next command as the last line. As JSON: one object on one line.
std::string render_tokenized(const data::TokenizeResult& result, bool json);
std::string render_inspection(const data::Inspection& inspection, const std::string& path, bool json);
std::string render_verification(const data::Verification& verification, const std::string& path, bool json);

/// "megatron", "llmc", "raw" or "auto". Error(kUsage).
data::Format token_format(const std::string& word);
/// "u16", "u32" or "i32", also spelled "uint16", "uint32", "int32". Error(kUsage).
DType token_dtype(const std::string& word);
/// Parses "99:1" into `train` and `val`: whole numbers, train > 0. Error(kUsage).
void parse_split(const std::string& word, int64_t& train, int64_t& val);

}  // namespace trainctl
