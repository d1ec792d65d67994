// Finding and opening libquads_aten.so and libquads_aten_cuda.so.
#include "aten/aten_engine.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace quads {
namespace {

std::filesystem::path library_path(const char* name) {
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = folder / name;
  const std::filesystem::path installed = folder.parent_path() / "lib" / name;
  return std::filesystem::exists(beside) || !std::filesystem::exists(installed) ? beside
                                                                                : installed;
}

// A function of a library that is never closed: threads may be in it.
template <class Function>
Function* open_entry(const char* name, const char* entry_name) {
  const std::filesystem::path path = library_path(name);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "ATen's kernels cannot be loaded: {}", dlerror());
  void* entry = dlsym(library, entry_name);
  require(entry != nullptr, "{}: {}", path.string(), dlerror());
  return reinterpret_cast<Function*>(entry);
}

}  // namespace

const AtenEngine& aten_engine() {
  static const AtenEngine& engine =
      *open_entry<const AtenEngine*()>("libquads_aten.so", "quads_aten_engine")();
  return engine;
}

std::unique_ptr<Blocks> make_aten_cuda_blocks(const DeviceOperands& operands) {
  static auto* const make =
      open_entry<Blocks*(const DeviceOperands&)>("libquads_aten_cuda.so", "quads_aten_cuda_blocks");
  return std::unique_ptr<Blocks>(make(operands));
}

std::unique_ptr<DeviceProduct> make_aten_cuda_product(const DeviceProductOperands& operands) {
  static auto* const make = open_entry<DeviceProduct*(const DeviceProductOperands&)>(
      "libquads_aten_cuda.so", "quads_aten_cuda_product");
  return std::unique_ptr<DeviceProduct>(make(operands));
}

}  // namespace quads
