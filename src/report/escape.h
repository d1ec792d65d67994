// Making text from files harmless inside HTML, SVG and scripts.
#pragma once

#include <string>
#include <string_view>

namespace quads {

/// For element content and quoted attribute values of HTML and SVG: & < > " ' become entities, and
/// control characters that XML forbids become U+FFFD. UTF-8 passes through; bytes that are not
/// UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

/// For JSON inside a script element: every '<', '>' and '&' of the JSON, which can only stand in
/// its strings, becomes a \u escape, so that no "</script>" or "<!--" is left.
std::string escape_script_json(std::string_view json);

}  // namespace quads
