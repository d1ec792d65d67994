// The command line: subcommands, and errors turned into one line and an exit code.

#include <cstdio>
#include <new>

#include "base/error.h"
#include "cli/command.h"

namespace {

// CLI11 says "--seed: At Most 1 required but received 2".
std::string usage_error(const CLI::Error& error) {
  const std::string text = error.what();
  const size_t at = text.find(": At Most 1 required but received ");
  if (at == std::string::npos) return text;
  return fmt::format("{} is given {} times: give it once", text.substr(0, at),
                     text.substr(text.rfind(' ') + 1));
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
  quads::cli::add_report(app);
  quads::cli::add_bench(app);
  quads::cli::add_info(app);
  constexpr int kFailed = 1, kUsage = 2;
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& done) {
    return app.exit(done);  // --help, --version
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "quads: %s\n", usage_error(error).c_str());
    return kUsage;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "quads: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quads: %s\n", error.what());
  }
  return kFailed;
}
