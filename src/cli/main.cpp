// The command line: subcommands, and errors turned into one line and an exit code.

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"

namespace {

constexpr int kFailed = 1, kUsage = 2, kInterrupted = 130;

// Until a command asks for stop_requested(), which lets it end in order.
void end_at_once(int) { ::_exit(kInterrupted); }

// False, after saying so, if standard output did not take everything; a closed pipe is no error.
bool flush_output() {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || errno == EPIPE || errno == 0) return true;
  std::fprintf(stderr, "quads: standard output: %s\n", std::strerror(errno));
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Stable reinforcement learning of MoE language models with NVFP4 rollouts.",
               "quads");
  app.require_subcommand(1);
  app.set_version_flag("--version", QUADS_VERSION);
  quads::cli::add_pretrain(app);
  quads::cli::add_train(app);
  quads::cli::add_eval(app);
  quads::cli::add_compare(app);
  quads::cli::add_rollout(app);
  quads::cli::add_diagnose(app);
  quads::cli::add_quantize(app);
  quads::cli::add_report(app);
  quads::cli::add_bench(app);
  quads::cli::add_info(app);
  quads::cli::add_value_checks(app);
  // Errors of write() instead: a reader that has seen enough, a limit on the size of files.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGINT, end_at_once);
  std::signal(SIGTERM, end_at_once);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto report = [&](const std::string& message) {
    const std::string text = quads::cli::with_origin(app, words, message);
    std::fprintf(stderr, "quads: %s\n", quads::cli::printable(text).c_str());
  };
  try {
    app.parse(argc, argv);
    return flush_output() ? 0 : kFailed;
  } catch (const CLI::Success& done) {
    return app.exit(done);  // --help, --version
  } catch (const CLI::Error& error) {
    report(quads::cli::usage_error(app, error));
    return kUsage;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "quads: out of memory\n");
  } catch (const std::exception& error) {
    report(error.what());
  }
  return quads::cli::was_stopped() ? kInterrupted : kFailed;
}
