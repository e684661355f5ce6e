// Which variants this processor can run.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace hearth {
namespace {

#if defined(__x86_64__)
// The instructions that cpuid reports, as bits of its registers. __builtin_cpu_supports is not
// used, because compilers' libraries know different names for it, and zig's denies all of them.
struct Processor {
  unsigned avx_and_more = 0;      // leaf 1, ecx
  unsigned avx2_and_more = 0;     // leaf 7, ebx
  unsigned vnni_and_more = 0;     // leaf 7, ecx
  unsigned amx_and_more = 0;      // leaf 7, edx
  unsigned avxvnni_and_more = 0;  // leaf 7, subleaf 1, eax
  unsigned kept = 0;              // registers that the system saves for each thread

  Processor() {
    constexpr unsigned kKeepsRegisters = 1u << 27;
    unsigned ignored = 0;
    __get_cpuid(1, &ignored, &ignored, &avx_and_more, &ignored);
    __get_cpuid_count(7, 0, &ignored, &avx2_and_more, &vnni_and_more, &amx_and_more);
    __get_cpuid_count(7, 1, &avxvnni_and_more, &ignored, &ignored, &ignored);
    if ((avx_and_more & kKeepsRegisters) != 0) {
      __asm__("xgetbv" : "=a"(kept), "=d"(ignored) : "c"(0));
    }
  }
};

constexpr bool has_all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

inline bool has_avx2() {
  constexpr unsigned kFmaAvxF16c = 1u << 12 | 1u << 28 | 1u << 29;
  constexpr unsigned kAvx2 = 1u << 5;
  constexpr unsigned kRegisters256 = 1u << 1 | 1u << 2;
  const Processor processor;
  return has_all(processor.avx_and_more, kFmaAvxF16c) && has_all(processor.avx2_and_more, kAvx2) &&
         has_all(processor.kept, kRegisters256);
}

inline bool has_avxvnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  return has_avx2() && has_all(Processor().avxvnni_and_more, kAvxVnni);
}

inline bool has_avx512vnni() {
  constexpr unsigned kFoundationBytesLengths = 1u << 16 | 1u << 30 | 1u << 31;
  constexpr unsigned kVnni = 1u << 11;
  constexpr unsigned kRegisters512 = 1u << 5 | 1u << 6 | 1u << 7;
  const Processor processor;
  return has_avx2() && has_all(processor.avx2_and_more, kFoundationBytesLengths) &&
         has_all(processor.vnni_and_more, kVnni) && has_all(processor.kept, kRegisters512);
}

inline bool has_avx512bf16() {
  constexpr unsigned kBFloat16 = 1u << 5;
  return has_avx512vnni() && has_all(Processor().avxvnni_and_more, kBFloat16);
}

// Returns whether the processor has tiles and Linux lets this process use them, after a request.
inline bool has_amx() {
#if defined(__linux__)
  constexpr unsigned kTilesOfInt8AndBFloat16 = 1u << 22 | 1u << 24 | 1u << 25;
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return has_avx512bf16() && has_all(Processor().amx_and_more, kTilesOfInt8AndBFloat16) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

#if defined(__aarch64__)
// Tests bits that Linux gives every process. Older headers lack HWCAP_ASIMDDP and HWCAP2_I8MM.
inline bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long kCapabilities = 16;
  constexpr unsigned long kDotProducts = 1ul << 20;
  return (getauxval(kCapabilities) & kDotProducts) != 0;
#else
  return false;
#endif
}

inline bool has_i8mm() {
#if defined(__linux__)
  constexpr unsigned long kMoreCapabilities = 26;
  constexpr unsigned long kMatrixProducts = 1ul << 13;
  return has_dotprod() && (getauxval(kMoreCapabilities) & kMatrixProducts) != 0;
#else
  return false;
#endif
}
#endif

}  // namespace
}  // namespace hearth
