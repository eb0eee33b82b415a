// The report page: one HTML file that holds everything it needs. Pure.
#pragma once
#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace trainctl::report {

/// The page with `data` in it (report_json; or no runs, and a simulation_json as data["simulation"]). With
/// data["live"] = true it asks its server for newer data. No text of `data` can become markup or a script, and the page's own policy (Content-Security-Policy) lets
/// nothing run or load but what is in the program.
std::string page_html(const OrderedJson& data);

/// The data as JSON that can lie within a <script> element: no "<", ">", "&" or line separator is in it.
std::string script_json(const OrderedJson& data);
/// For the text of an HTML element.
std::string html_text(std::string_view text);

}  // namespace trainctl::report
