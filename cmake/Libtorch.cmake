# libtorch from the `torch` wheel, as the imported target `libtorch`.
#
# The wheel's own TorchConfig.cmake insists on a complete CUDA toolkit; the headers and the CPU
# libraries are all that is needed here. QUADS_TORCH_DIR is the wheel's folder site-packages/torch;
# scripts/setup finds or installs it and passes it on.
set(QUADS_TORCH_DIR "" CACHE PATH "Folder of the installed torch package (site-packages/torch)")
if(NOT QUADS_TORCH_DIR)
  find_program(QUADS_PYTHON NAMES python3 HINTS ${PROJECT_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
  if(QUADS_PYTHON)
    execute_process(COMMAND ${QUADS_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                    OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(QUADS_TORCH_DIR "${_dir}" CACHE PATH "" FORCE)
  endif()
endif()
if(NOT EXISTS "${QUADS_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch not found (QUADS_TORCH_DIR='${QUADS_TORCH_DIR}'): run scripts/setup")
endif()
add_library(libtorch INTERFACE)
target_include_directories(libtorch SYSTEM INTERFACE
  ${QUADS_TORCH_DIR}/include ${QUADS_TORCH_DIR}/include/torch/csrc/api/include)
target_link_directories(libtorch INTERFACE ${QUADS_TORCH_DIR}/lib)
target_link_libraries(libtorch INTERFACE ${QUADS_TORCH_DIR}/lib/libtorch_cpu.so ${QUADS_TORCH_DIR}/lib/libc10.so)
target_link_options(libtorch INTERFACE -Wl,-rpath,${QUADS_TORCH_DIR}/lib -Wl,--allow-shlib-undefined)

file(STRINGS ${QUADS_TORCH_DIR}/version.py _version REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" QUADS_TORCH_VERSION "${_version}")
