#include "kernels/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/cpu/isa_tables.h"

namespace quads::kernels {
namespace {

// Linux hands out the AMX tile registers on request, once a process.
bool request_amx_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  static const bool granted = syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
  return granted;
}

bool cpu_has_amx() {
  // GCC 12's __builtin_cpu_supports knows no AMX: CPUID leaf 7, EDX bits 22 (bf16) and 24 (tile).
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  const unsigned avx512_fp16 = 1U << 23;
  return (edx & (1U << 22)) != 0 && (edx & (1U << 24)) != 0 && (edx & avx512_fp16) != 0;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

Isa parse_isa(std::string_view name) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (name == isa_name(isa)) return isa;
  }
  fail("unknown instruction set '{}': use portable, avx2, avx512 or amx", name);
}

bool isa_available(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAmx:
      return avx512 && cpu_has_amx() && request_amx_tiles();
  }
  return false;
}

Isa best_isa() {
  for (Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2}) {
    if (isa_available(isa)) return isa;
  }
  return Isa::kPortable;
}

const CpuKernels& cpu_kernels(Isa isa) {
  require(isa_available(isa), "this CPU has no {}: the best it has is {}", isa_name(isa),
          isa_name(best_isa()));
  // One table each, made on demand: the functions that make them are compiled for their set and may
  // use its vectors to copy the table.
  switch (isa) {
    case Isa::kAvx2: {
      static const CpuKernels table = {isa, avx2::gemm_kernels(), avx2::row_kernels(),
                                       avx2::attention_kernels()};
      return table;
    }
    case Isa::kAvx512: {
      static const CpuKernels table = {isa, avx512::gemm_kernels(), avx512::row_kernels(),
                                       avx512::attention_kernels()};
      return table;
    }
    case Isa::kAmx: {
      static const CpuKernels table = {isa, amx::gemm_kernels(), avx512::row_kernels(),
                                       avx512::attention_kernels()};
      return table;
    }
    case Isa::kPortable:
      break;
  }
  static const CpuKernels table = {Isa::kPortable, portable::gemm_kernels(),
                                   portable::row_kernels(), portable::attention_kernels()};
  return table;
}

}  // namespace quads::kernels
