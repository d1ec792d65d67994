// Runs one parser on mutated inputs: fuzz_X [COUNT [SEED]], or on given ones: fuzz_X FILE...
//
// libFuzzer would do the same but needs clang, which nothing else here needs. This takes GCC and
// 300 lines: the parsers are built once more with -fsanitize-coverage=trace-pc (scripts/fuzz), and
// inputs that took new paths are mutated further. A run depends on COUNT, SEED and the program
// alone. Every input is in the file fuzz_X.input while it runs, so it is there whatever ends the
// program.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>

#include "base/error.h"
#include "fuzz/coverage.h"
#include "fuzz/fuzz.h"
#include "fuzz/mutator.h"
#include "io/file.h"

namespace quads {
namespace {

// Of processor time, so that a busy machine does not matter; sanitizers take some ten times longer.
constexpr int kSecondsPerInput = 10;

std::string input_path;

void end_for_time(int) {
  static constexpr char kMessage[] = "fuzz: the input takes too long: ";
  (void)!::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  (void)!::write(STDERR_FILENO, input_path.data(), input_path.size());
  (void)!::write(STDERR_FILENO, "\n", 1);
  ::_exit(1);
}

void start_clock() {
  const itimerval limit{.it_interval = {}, .it_value = {.tv_sec = kSecondsPerInput, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

// The Error for which the parser refused the input, if it did; what it must not do ends the
// program.
std::optional<std::string> refusal(std::string_view input) {
  start_clock();
  try {
    fuzz_one(input);
    return std::nullopt;
  } catch (const Error& e) {
    return e.what();
  } catch (const std::exception& e) {
    fmt::print(stderr, "fuzz: {}: {}\n", input_path, e.what());
    ::_exit(1);
  }
}

void fuzz(uint64_t count, uint64_t seed) {
  const UniqueFd file = open_file(input_path, O_CREAT | O_RDWR | O_TRUNC);
  Mutator mutator(seed, fuzz_corpus(), fuzz_words());
  uint64_t accepted = 0;
  uint64_t kept = 0;
  const auto run = [&](std::string input) {
    require(::ftruncate(file.get(), 0) == 0, "{}: {}", input_path, errno_text());
    require(::lseek(file.get(), 0, SEEK_SET) == 0, "{}: {}", input_path, errno_text());
    write_all(file.get(), std::as_bytes(std::span(input)), input_path);
    start_coverage();
    const std::optional<std::string> error = refusal(input);
    if (found_new_paths()) {
      ++kept;
      mutator.keep(std::move(input));
    }
    return error;
  };
  for (const std::string& input : fuzz_corpus()) {
    const std::optional<std::string> error = run(input);
    require(!error, "fuzz: a good input is refused: {}: {}", input_path, error.value_or(""));
  }
  for (uint64_t i = 0; i < count; ++i) {
    accepted += run(mutator.next()) ? 0 : 1;
    if ((i + 1) % 100'000 == 0) {
      fmt::print("{} inputs, {} with new paths\n", i + 1, kept);
      std::fflush(stdout);
    }
  }
  std::filesystem::remove(input_path);
  fmt::print("{} inputs: {} accepted, {} refused, {} with new paths\n", count, accepted,
             count - accepted, kept);
}

int main(std::span<const char* const> arguments) {
  ::signal(SIGPROF, end_for_time);
  input_path = std::filesystem::path(arguments[0]).filename().string() + ".input";
  const auto number = [&](size_t i, uint64_t otherwise) {
    return i < arguments.size() ? std::strtoull(arguments[i], nullptr, 10) : otherwise;
  };
  if (arguments.size() > 1 && std::filesystem::exists(arguments[1])) {
    for (const char* path : arguments.subspan(1)) {
      input_path = path;
      fmt::print("{}: {}\n", path,
                 refusal(read_text_file(path, size_t{1} << 30)).value_or("accepted"));
    }
  } else {
    fuzz(number(1, 10'000), number(2, 1));
  }
  return 0;
}

}  // namespace
}  // namespace quads

int main(int argc, char** argv) {
  try {
    return quads::main(std::span(argv, static_cast<size_t>(argc)));
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
