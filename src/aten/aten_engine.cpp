// Finding and opening libquads_aten.so.
#include "aten/aten_engine.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace quads {
namespace {

constexpr const char* kLibrary = "libquads_aten.so";

std::filesystem::path library_path() {
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = folder / kLibrary;
  const std::filesystem::path installed = folder.parent_path() / "lib" / kLibrary;
  return std::filesystem::exists(beside) || !std::filesystem::exists(installed) ? beside
                                                                                : installed;
}

const AtenEngine& open_engine() {
  const std::filesystem::path path = library_path();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "ATen's kernels cannot be loaded: {}", dlerror());
  void* entry = dlsym(library, "quads_aten_engine");
  require(entry != nullptr, "{}: {}", path.string(), dlerror());
  return *reinterpret_cast<const AtenEngine* (*)()>(entry)();  // never closed: threads may be in it
}

}  // namespace

const AtenEngine& aten_engine() {
  static const AtenEngine& engine = open_engine();
  return engine;
}

}  // namespace quads
