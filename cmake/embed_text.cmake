# Writes OUTPUT, a C++ file that defines quads::NAME, declared in HEADER, as the contents of the text
# file INPUT. Run as: cmake -DINPUT=... -DOUTPUT=... -DNAME=... -DHEADER=... -P embed_text.cmake
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "// Generated from a text file; see embed_text.cmake.
#include \"${HEADER}\"

namespace quads {
const std::string_view ${NAME} = R\"quads_text(${text})quads_text\";
}  // namespace quads
")
