// Without CLD2; its twin is data/clean/language_cld2.cpp.
#include "data/clean/language.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUsage,
              "this trainctl was built without CLD2, so --language cannot be used; install "
              "libcld2-dev and build it again");
}

}  // namespace

bool has_language_detector() { return false; }
std::vector<LanguageShare> languages_of(std::string_view) { refuse(); }
void check_language(const std::string&) { refuse(); }

}  // namespace trainctl::data
