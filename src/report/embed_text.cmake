# Writes OUTPUT, a C++ file that defines quads::NAME as the contents of the text file INPUT.
# Run as: cmake -DINPUT=... -DOUTPUT=... -DNAME=... -P embed_text.cmake
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "// Generated from a text file; see embed_text.cmake.
#include \"report/assets.h\"

namespace quads {
const std::string_view ${NAME} = R\"quads_text(${text})quads_text\";
}  // namespace quads
")
