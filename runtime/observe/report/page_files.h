// The files of the page, as the build embeds them (embed.cmake writes page_files.cpp).
#pragma once
#include <string_view>

namespace trainctl::report {

extern const std::string_view kPageTemplate;  ///< page.html
extern const std::string_view kPageStyle;     ///< page.css
extern const std::string_view kPageScript;    ///< the .js files, one behind the other

}  // namespace trainctl::report
