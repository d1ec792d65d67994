// The command line: subcommands, and errors turned into one line and an exit code.

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"

namespace {

// The first word that its command does not know, in one line; CLI11 lists them all, backwards.
std::optional<std::string> unknown_word(const CLI::App& app) {
  std::string path = app.get_name();
  const CLI::App* command = &app;
  while (command->remaining().empty()) {
    const std::vector<CLI::App*> given = command->get_subcommands();
    if (given.empty()) return std::nullopt;
    command = given.front();
    path += " " + command->get_name();
  }
  std::string word = command->remaining().front();
  if (!word.starts_with('-')) {
    const bool commands = !command->get_subcommands([](const CLI::App*) { return true; }).empty();
    return fmt::format("unknown {} {}; see {} --help", commands ? "command" : "argument", word,
                       path);
  }
  word = word.substr(0, word.find('='));
  const bool of_train = command->get_name() == "compare" &&
                        app.get_subcommand("train")->get_option_no_throw(word) != nullptr;
  return fmt::format("unknown option {}; {}see {} --help", word,
                     of_train ? "flags of quads train go after --, as in -- --lr 1e-3; " : "",
                     path);
}

// CLI11 says "--seed: At Most 1 required but received 2".
std::string usage_error(const CLI::App& app, const CLI::Error& error) {
  if (const auto unknown = unknown_word(app)) return *unknown;
  std::string text = error.what();
  const size_t at = text.find(": At Most 1 required but received ");
  if (at == std::string::npos) return text;
  return fmt::format("{} is given {} times: give it once", text.substr(0, at),
                     text.substr(text.rfind(' ') + 1));
}

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
  // Errors of write() instead: a reader that has seen enough, a limit on the size of files.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  constexpr int kFailed = 1, kUsage = 2, kInterrupted = 130;
  try {
    app.parse(argc, argv);
    return flush_output() ? 0 : kFailed;
  } catch (const CLI::Success& done) {
    return app.exit(done);  // --help, --version
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "quads: %s\n", quads::cli::printable(usage_error(app, error)).c_str());
    return kUsage;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "quads: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quads: %s\n", quads::cli::printable(error.what()).c_str());
  }
  return quads::cli::was_stopped() ? kInterrupted : kFailed;
}
