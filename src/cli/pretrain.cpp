// quads pretrain: a supervised base for a built-in task.
#include <cstdio>
#include <regex>

#include "base/error.h"
#include "cli/task_options.h"
#include "eval/device.h"
#include "io/atomic_dir.h"
#include "io/atomic_file.h"
#include "io/output_lock.h"
#include "report/jsonl_sink.h"
#include "rl/sides.h"
#include "rl/supervised.h"
#include "tokenizer/character_tokenizer.h"
#include "tokenizer/text_files.h"

namespace quads::cli {
namespace {

struct Options {
  std::string out;
  RuntimeOptions runtime;
  BuiltInTaskOptions task;
  ScopeOptions scope;
  ModelConfig model;
  std::string precision = "bf16";
  std::string device = "cpu";
  Trainer::Options trainer;
  MicroBatchOptions micro_batch;
  SupervisedOptions training;
  std::string lr_decay = "cosine";
};

CharacterTokenizer make_tokenizer(const Task& task, const std::string& name) {
  const auto vocabulary = task.vocabulary();
  require(vocabulary.has_value(), "task {} has no vocabulary of its own to pretrain a base with",
          name);
  return CharacterTokenizer(*vocabulary);
}

// What a check says of a model's config.json, in the names of the options that it is made from.
std::string in_options(std::string message) {
  constexpr std::string_view kFile = "config.json: ";
  if (message.starts_with(kFile)) message.erase(0, kFile.size());
  for (const auto& [key, option] : std::initializer_list<std::pair<const char*, const char*>>{
           {"hidden_size", "--hidden-size"},
           {"num_hidden_layers", "--num-layers"},
           {"num_attention_heads", "--num-attention-heads"},
           {"num_key_value_heads", "--num-key-value-heads"},
           {"head_dim", "--head-dim"},
           {"num_experts", "--num-experts"},
           {"num_experts_per_tok", "--num-experts-per-tok"},
           {"moe_intermediate_size", "--moe-intermediate-size"},
           {"intermediate_size", "--intermediate-size"},
           {"max_position_embeddings", "--max-position-embeddings"}}) {
    message = std::regex_replace(message, std::regex(fmt::format("\\b{}\\b", key)), option);
  }
  return message;
}

ModelConfig make_config(const Options& options, const CharacterTokenizer& tokenizer) {
  ModelConfig config = options.model;
  config.vocab_size = tokenizer.vocab_size();
  config.pad_token_id = tokenizer.pad_id();
  if (tokenizer.eos_id()) config.eos_token_ids = {*tokenizer.eos_id()};
  config.architecture = config.num_experts > 0 ? Architecture::kQwen3Moe : Architecture::kQwen3;
  try {
    validate(config, "config.json");
    [[maybe_unused]] const ParameterLayout checked(config);
  } catch (const Error& error) {
    fail("{}", in_options(error.what()));
  }
  return config;
}

TrainerSideOptions make_side(const Options& options, const ModelConfig& config) {
  TrainerSideOptions side{.precision = parse_precision(options.precision, {}),
                          .scope = {},
                          .training = options.trainer,
                          .max_context = config.max_position_embeddings};
  if (side.precision != Precision{}) side.scope = options.scope.make(config);
  side.training.max_tokens = options.micro_batch.make(parse_device(options.device), config, false);
  check(side.training.adamw);
  return side;
}

SupervisedOptions make_training(const Options& options) {
  SupervisedOptions training = options.training;
  training.lr.decay = parse_name<LrDecay>("--lr-decay", options.lr_decay);
  training.lr.total_steps = training.num_steps;
  learning_rate(training.lr, 0);  // checks them
  return training;
}

void run(const CLI::App& command, const Options& options) {
  const std::unique_ptr<Task> task = from_options([&] { return options.task.make(); });
  const CharacterTokenizer tokenizer =
      from_options([&] { return make_tokenizer(*task, options.task.name); });
  const ModelConfig config = from_options([&] { return make_config(options, tokenizer); });
  const TrainerSideOptions side = from_options([&] { return make_side(options, config); });
  const SupervisedOptions training = from_options([&] { return make_training(options); });
  require_available(parse_device(options.device));
  const auto runtime = options.runtime.make();

  const std::atomic<bool>& stop = stop_requested();
  const OutputLock lock = OutputLock::beside(options.out);
  AtomicDir out(options.out);
  write_file_atomically(out.path() / "pretrain.toml", resolved_config(command, {"out"}));
  JsonlSink metrics(out.path() / "pretrain_metrics.jsonl");
  Parameters parameters(config);
  parameters.initialise(training.seed);
  const auto trainer = make_trainer_side(parse_device(options.device), *runtime, parameters, side);
  trainer->refresh_trainer({});
  {
    Progress progress({.label = "pretrain", .total = training.num_steps, .log_every_s = 10});
    const int64_t done =
        train_supervised(trainer->trainer(), *task, tokenizer, training, metrics, progress, stop);
    require(done == training.num_steps, "stopped at step {} of {}: no base was written", done,
            training.num_steps);
  }
  trainer->fetch_parameters();
  save_parameters(parameters, out.path());
  save_text_files(tokenizer, config.eos_token_ids, config, out.path());
  out.commit();
  std::printf("base model in %s\n", options.out.c_str());
}

}  // namespace

void add_pretrain(CLI::App& app) {
  CLI::App* command = app.add_subcommand("pretrain", "train a supervised base for a built-in task");
  const auto o = std::make_shared<Options>();
  o->model = default_base_model();
  add_config(command);
  command->add_option("--out", o->out, "model directory to write; must not exist")->required();
  o->task.add(command);
  o->runtime.add(command);
  add_device(command, o->device);
  const auto shape = [&](const char* name, int64_t& value, const char* help) {
    command->add_option(name, value, help)->capture_default_str()->check(positive());
  };
  shape("--hidden-size", o->model.hidden_size, "width of the residual stream");
  shape("--num-layers", o->model.num_hidden_layers, "layers");
  shape("--num-attention-heads", o->model.num_attention_heads, "query heads");
  shape("--num-key-value-heads", o->model.num_key_value_heads, "key and value heads");
  shape("--head-dim", o->model.head_dim, "width of a head");
  command->add_option("--num-experts", o->model.num_experts, "experts a layer; 0: a dense model")
      ->capture_default_str()
      ->check(not_negative());
  const auto of_experts = [&](const char* name, int64_t& value, const char* help) {
    command->add_option(name, value, help)->capture_default_str()->check(not_negative());
  };
  of_experts("--num-experts-per-tok", o->model.num_experts_per_tok, "experts a token");
  of_experts("--moe-intermediate-size", o->model.moe_intermediate_size, "width of an expert");
  shape("--intermediate-size", o->model.intermediate_size, "width of a dense layer");
  shape("--max-position-embeddings", o->model.max_position_embeddings, "longest sequence");
  command->add_option("--initializer-range", o->model.initializer_range, "std of initial weights")
      ->capture_default_str()
      ->check(not_negative());
  command->add_flag("--tie-word-embeddings", o->model.tie_word_embeddings,
                    "share embedding and head");
  std::vector<std::string> precisions = precision_names();
  std::erase(precisions, "nvfp4-rac");  // there is no rollout whose compensation it could replay
  command->add_option("--precision", o->precision, "of the forward")
      ->capture_default_str()
      ->check(CLI::IsMember(precisions));
  o->scope.add(command);
  SupervisedOptions& t = o->training;
  t.lr.lr = 1e-3;
  t.lr.warmup_steps = 50;
  command->add_option("--num-steps", t.num_steps, "updates")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--batch-size", t.batch_size, "solutions an update")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--seed", t.seed, "of weights and problems")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--lr", t.lr.lr, "learning rate")->capture_default_str();
  command->add_option("--min-lr", t.lr.min_lr, "learning rate at the end")->capture_default_str();
  command->add_option("--lr-warmup-steps", t.lr.warmup_steps, "updates until lr is reached")
      ->capture_default_str();
  add_names<LrDecay>(command, "--lr-decay", o->lr_decay, "from --lr to --min-lr");
  command->add_option("--weight-decay", o->trainer.adamw.weight_decay, "decoupled weight decay")
      ->capture_default_str();
  o->micro_batch.add(command);
  command->callback([command, o] { run(*command, *o); });
}

}  // namespace quads::cli
