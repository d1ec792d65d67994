// Hostile text stays text.
#include "report/escape.h"

#include <gtest/gtest.h>

namespace quads {
namespace {

TEST(EscapeHtml, TurnsMarkupIntoEntities) {
  EXPECT_EQ(escape_html("</script><img src=x onerror='a&b'>\""),
            "&lt;/script&gt;&lt;img src=x onerror=&#39;a&amp;b&#39;&gt;&quot;");
}

TEST(EscapeHtml, KeepsUtf8OfEveryLength) {
  EXPECT_EQ(escape_html("a é − 🙂\n\t"), "a é − 🙂\n\t");
}

TEST(EscapeHtml, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(escape_html("\xFF"), "\uFFFD");
  EXPECT_EQ(escape_html("a\xC3"), "a\uFFFD");                              // cut off
  EXPECT_EQ(escape_html("\xC0\xAF"), "\uFFFD\uFFFD");                      // overlong '/'
  EXPECT_EQ(escape_html("\xE0\x80\xBC"), "\uFFFD\uFFFD\uFFFD");            // overlong '<'
  EXPECT_EQ(escape_html("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(escape_html("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(escape_html("\xC3<b>"), "\uFFFD&lt;b&gt;");  // a lead byte does not hide what follows
}

TEST(EscapeHtml, ReplacesControlCharacters) {
  EXPECT_EQ(escape_html(std::string_view("a\0b\x1B", 4)), "a\uFFFDb\uFFFD");
}

TEST(EscapeScriptJson, LeavesNoWayOutOfTheScript) {
  EXPECT_EQ(escape_script_json(R"(["</script>","<!--","&amp;"])"),
            R"(["\u003c/script\u003e","\u003c!--","\u0026amp;"])");
}

}  // namespace
}  // namespace quads
