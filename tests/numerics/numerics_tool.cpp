// Runs the reference arithmetic on raw little-endian numbers from stdin and writes raw results to
// stdout, so that scripts can hold it against other libraries.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"
#include "tool_main.h"

namespace quads {
namespace {

constexpr char kUsage[] =
    "usage: numerics_tool bf16|e2m1|e4m3        FP32 in, codes out\n"
    "       numerics_tool e4m3-decode           codes in, FP32 out\n"
    "       numerics_tool nvfp4 ROWS K G        FP32 in; packed codes, block scales, values out\n"
    "       numerics_tool fp8 ROWS K BLOCK_ROWS FP32 in; codes, FP32 scales, values out\n";

std::vector<char> read_stdin() {
  std::vector<char> bytes;
  char buffer[65536];
  while (const size_t count = std::fread(buffer, 1, sizeof(buffer), stdin)) {
    bytes.insert(bytes.end(), buffer, buffer + count);
  }
  return bytes;
}

template <class T>
void write(const std::vector<T>& values) {
  const size_t count = std::fwrite(values.data(), sizeof(T), values.size(), stdout);
  require(count == values.size(), "cannot write to stdout");
}

template <class Encode>
void encode_all(const std::vector<float>& x, Encode encode) {
  std::vector<decltype(encode(0.0F))> codes;
  for (const float value : x) codes.push_back(encode(value));
  write(codes);
}

bool run(const std::vector<std::string>& args) {
  const std::vector<char> bytes = read_stdin();
  std::vector<float> x(bytes.size() / sizeof(float));
  std::memcpy(x.data(), bytes.data(), x.size() * sizeof(float));
  const std::string mode = args.empty() ? "" : args[0];
  if (mode == "bf16" && args.size() == 1) {
    encode_all(x, [](float value) { return to_bf16(value).bits; });
  } else if (mode == "e2m1" && args.size() == 1) {
    encode_all(x, [](float value) { return e2m1_encode(value); });
  } else if (mode == "e4m3" && args.size() == 1) {
    encode_all(x, [](float value) { return e4m3_encode(value); });
  } else if (mode == "e4m3-decode" && args.size() == 1) {
    std::vector<float> values;
    for (const char code : bytes) values.push_back(e4m3_decode(static_cast<uint8_t>(code)));
    write(values);
  } else if (mode == "nvfp4" && args.size() == 4) {
    const Nvfp4Matrix matrix =
        quantise_nvfp4(x, std::stoll(args[1]), std::stoll(args[2]), std::stof(args[3]), "stdin");
    write(matrix.packed);
    write(matrix.block_scales);
    write(dequantise_nvfp4(matrix, "stdin"));
  } else if (mode == "fp8" && args.size() == 4) {
    const Fp8Matrix matrix =
        quantise_fp8(x, std::stoll(args[1]), std::stoll(args[2]), std::stoll(args[3]), "stdin");
    write(matrix.codes);
    write(matrix.scales);
    write(dequantise_fp8(matrix, "stdin"));
  } else {
    return false;
  }
  return true;
}

}  // namespace
}  // namespace quads

int main(int argc, char** argv) {
  return quads::tool_main([&] {
    if (!quads::run({argv + 1, argv + argc})) quads::fail("{}", quads::kUsage);
  });
}
