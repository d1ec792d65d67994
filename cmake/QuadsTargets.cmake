# Compiler settings and the functions with which the folders declare their targets.

# Results must not depend on the compiler's mood: products and sums are fused only where the source
# says so, and floating-point identities are never assumed.
add_library(quads_options INTERFACE)
set(QUADS_CXX_OPTIONS -Wall -Wextra -ffp-contract=off -fno-math-errno)
if(QUADS_WERROR)
  list(APPEND QUADS_CXX_OPTIONS -Werror)
endif()
if(QUADS_FUZZ)
  list(APPEND QUADS_CXX_OPTIONS -fsanitize-coverage=trace-pc)
endif()
if(QUADS_SANITIZE OR QUADS_FUZZ)
  list(APPEND QUADS_CXX_OPTIONS
       -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(quads_options INTERFACE -fsanitize=address,undefined)
endif()
if(QUADS_COVERAGE)
  list(APPEND QUADS_CXX_OPTIONS --coverage -DQUADS_COVERAGE)
  target_link_options(quads_options INTERFACE --coverage)
endif()
target_compile_options(quads_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${QUADS_CXX_OPTIONS}>)

find_program(QUADS_CCACHE ccache)
if(QUADS_CCACHE)
  # Paths are hashed relative to the sources, so that another checkout finds what this one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${QUADS_CCACHE})
endif()
find_program(QUADS_MOLD mold)
if(QUADS_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# quads_library(NAME SOURCES ... DEPENDS ...): the library quads_NAME of the folder src/NAME. A folder
# links only to what it may use, so that the linker enforces the layers.
function(quads_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(quads_${name} STATIC ${ARG_SOURCES})
  target_include_directories(quads_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(quads_${name} PUBLIC quads_options ${ARG_DEPENDS})
endfunction()

# quads_test(NAME SOURCES ... DEPENDS ...): one test program a folder, run by ctest as NAME.
function(quads_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE QUADS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(test_${name} PRIVATE quads_options ${ARG_DEPENDS} GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND test_${name})
endfunction()

# quads_tool(NAME SOURCES ... DEPENDS ...): a program that tests/oracle runs.
function(quads_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
endfunction()

# embed_text(NAME INPUT HEADER): writes NAME.cpp into the folder's build directory, which defines the
# std::string_view quads::NAME, declared in HEADER, as the contents of the text file INPUT.
set(QUADS_EMBED_TEXT ${CMAKE_CURRENT_LIST_DIR}/embed_text.cmake)
function(embed_text name input header)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DOUTPUT=${output} -DNAME=${name} -DHEADER=${header}
            -P ${QUADS_EMBED_TEXT}
    DEPENDS ${input} ${QUADS_EMBED_TEXT}
    VERBATIM)
endfunction()
