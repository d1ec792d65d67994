// Which device a command samples on.
#pragma once

#include <string_view>

#include "eval/generator.h"
#include "model/parameter_files.h"

namespace quads {

enum class Device { kCpu, kCuda };

/// GeneratorOptions::prefill_chunk for a GPU: rows that fill it; their scratch stays small beside
/// the weights.
inline constexpr int64_t kDevicePrefillChunk = 4096;

/// "cpu" or "cuda". Error on anything else.
Device parse_device(std::string_view name);

/// Error where this program or this machine cannot compute on it: before a model is read for it.
void require_available(Device device);

/// The error of --device cuda in a program that was built without CUDA.
[[noreturn]] void fail_without_cuda();

/// As CpuGenerator, on a GPU, with weights that are read from files; `files` must outlive it.
/// `share` is not looked at, and a kv_memory_bytes of 0 takes what memory the weights leave. Error
/// where the program was built without CUDA or there is no device.
std::unique_ptr<EngineGenerator> make_cuda_generator(const ParameterFiles& files,
                                                     const GeneratorOptions& options,
                                                     std::span<const Request> calibration,
                                                     const GenerateOptions& sampling);

}  // namespace quads
