// The same samples, log-probabilities, routing and residual sums whatever the engine's bounds,
// schedule, threads, and the company a request keeps.
#include <algorithm>
#include <map>

#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

struct Case {
  std::string name;
  std::string precision;
  Rac rac;
  QuantizeScope::What what = QuantizeScope::What::kExperts;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Outcome {
  std::vector<Sample> samples;
  std::vector<std::vector<int64_t>> sums;
  int64_t preemptions;
};

class EngineInvariance : public ::testing::TestWithParam<Case> {
 protected:
  static TestModel make_model(int threads = 1) {
    const Case& c = GetParam();
    return TestModel(parse_precision(c.precision, c.rac), {.what = c.what}, threads);
  }
  static Outcome run(TestModel& m, const Engine::Options& bounds,
                     const std::vector<Request>& requests, GenerateOptions options,
                     Schedule schedule = Schedule::kAuto) {
    CpuBackend backend(m.runtime, m.model, schedule);
    Engine engine(backend, bounds);
    ResidualSums sums(m.model.sites(), m.runtime.num_threads());
    options.residual_sums = &sums;
    options.record_routing = true;
    std::vector<Sample> samples = engine.generate(requests, options);
    EXPECT_EQ(engine.cache().free_pages(), engine.cache().pages()) << "pages were lost";
    return {std::move(samples), sums.totals(), engine.preemptions()};
  }
  static Outcome reference(TestModel& m) {
    return run(m, {.max_context = 64}, make_requests(3), make_options());
  }
  static void expect_same_outcome(const Outcome& a, const Outcome& b, const std::string& what) {
    expect_same(a.samples, b.samples, what);
    EXPECT_EQ(a.sums, b.sums) << what;
  }
};

TEST_P(EngineInvariance, NumberOfRunningSequences) {
  TestModel m = make_model();
  const Outcome expected = reference(m);
  for (const int64_t max_running : {1, 3, 64}) {
    expect_same_outcome(
        expected,
        run(m, {.max_running = max_running, .max_context = 64}, make_requests(3), make_options()),
        "max_running " + std::to_string(max_running));
  }
}

TEST_P(EngineInvariance, PagesThatForcePreemption) {
  TestModel m = make_model();
  const Outcome expected = reference(m);
  // 40 + 20 - 1 positions need 4 pages: no fewer will do.
  for (const int64_t pages : {4, 5, 7, 11}) {
    const Outcome outcome =
        run(m, {.max_context = 64, .kv_pages = pages}, make_requests(3), make_options());
    expect_same_outcome(expected, outcome, std::to_string(pages) + " pages");
    if (pages == 7) {
      EXPECT_GT(outcome.preemptions, 0);
    }
  }
}

TEST_P(EngineInvariance, SizeOfPrefillChunks) {
  TestModel m = make_model();
  const Outcome expected = reference(m);
  for (const int64_t chunk : {1, 7, 1000}) {
    expect_same_outcome(expected,
                        run(m, {.max_context = 64, .kv_pages = 9, .prefill_chunk = chunk},
                            make_requests(3), make_options()),
                        "prefill_chunk " + std::to_string(chunk));
  }
}

TEST_P(EngineInvariance, ThreadsAndSchedules) {
  TestModel one = make_model(1);
  TestModel three = make_model(3);
  const std::vector<Request> requests = make_requests(12);  // enough rows for three threads
  const Outcome expected = run(one, {.max_context = 64}, requests, make_options());
  for (const Schedule schedule : {Schedule::kAuto, Schedule::kByRows, Schedule::kTogether}) {
    const std::string what = "schedule " + std::to_string(static_cast<int>(schedule));
    expect_same_outcome(expected, run(one, {.max_context = 64}, requests, make_options(), schedule),
                        what + ", 1 thread");
    expect_same_outcome(expected,
                        run(three, {.max_context = 64}, requests, make_options(), schedule),
                        what + ", 3 threads");
  }
}

TEST_P(EngineInvariance, OrderOfRequests) {
  TestModel m = make_model();
  const Outcome expected = reference(m);
  std::vector<Request> requests = make_requests(3);
  std::ranges::reverse(requests);
  std::swap(requests[0], requests[2]);
  Outcome outcome =
      run(m, {.max_running = 4, .max_context = 64, .kv_pages = 12}, requests, make_options());
  std::ranges::stable_sort(outcome.samples, {}, &Sample::prompt_index);
  expect_same_outcome(expected, outcome, "another order");
}

TEST_P(EngineInvariance, SharedPromptEqualsRequestsOfTheirOwn) {
  TestModel m = make_model();
  const Outcome expected = reference(m);
  std::vector<Request> requests;
  for (const Request& r : make_requests(3)) {
    for (int32_t i = 0; i < 3; ++i) requests.push_back({r.prompt_index, r.prompt, 1, i});
  }
  expect_same_outcome(expected, run(m, {.max_context = 64}, requests, make_options()),
                      "nothing shared");
}

TEST_P(EngineInvariance, ScoringGivesTheLogprobsOfGeneration) {
  TestModel m = make_model();
  const Outcome expected = reference(m);
  for (const int64_t chunk : {1, 512}) {
    Engine engine(m.backend, {.max_context = 64, .prefill_chunk = chunk});
    const std::vector<std::vector<float>> scored = engine.score(expected.samples, 1.0F);
    for (size_t i = 0; i < scored.size(); ++i) {
      EXPECT_EQ(bits(scored[i]), bits(expected.samples[i].logprobs)) << "sample " << i;
    }
  }
}

TEST_P(EngineInvariance, DecodingEqualsPrefill) {
  // A response's last token is drawn alike when all tokens before it are given as the prompt.
  TestModel m = make_model();
  GenerateOptions options = make_options();
  options.sampling.temperature = 0.0F;  // the key's position is the same; greedy shows any change
  const Outcome expected = run(m, {.max_context = 64}, make_requests(1), options);
  for (const Sample& s : expected.samples) {
    std::vector<int32_t> prompt = s.prompt;
    prompt.insert(prompt.end(), s.response.begin(), s.response.end() - 1);
    options.max_new_tokens = 1;
    const Outcome last =
        run(m, {.max_context = 64}, {{s.prompt_index, prompt, 1, s.sample_index}}, options);
    EXPECT_EQ(last.samples[0].response[0], s.response.back());
    EXPECT_EQ(bits(last.samples[0].logprobs)[0], bits(s.logprobs).back());
    EXPECT_EQ(last.samples[0].routing, s.routing);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, EngineInvariance,
    ::testing::Values(Case{"bf16", "bf16", {}}, Case{"fp8", "fp8", {}}, Case{"nvfp4", "nvfp4", {}},
                      Case{"w4a16", "w4a16", {}},
                      Case{"rac25channel", "nvfp4-rac", {0.25, RacGranularity::kChannel}},
                      Case{"rac50block", "nvfp4-rac", {0.5, RacGranularity::kBlock}},
                      Case{"rac100channel", "nvfp4-rac", {1.0, RacGranularity::kChannel}},
                      Case{"linears", "nvfp4", {}, QuantizeScope::What::kLinears},
                      Case{"linearsrac50",
                           "nvfp4-rac",
                           {0.5, RacGranularity::kChannel},
                           QuantizeScope::What::kLinears}),
    [](const auto& info) { return info.param.name; });

TEST(Engine, SamplesDifferAndSomeStop) {
  // Guards the tests above against a model that says the same whatever happens.
  TestModel m;
  Engine engine(m.backend, {.max_context = 64});
  const std::vector<Sample> samples = engine.generate(make_requests(8), make_options());
  ASSERT_EQ(samples.size(), 48U);
  int64_t stopped = 0, full = 0, equal = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& s = samples[i];
    EXPECT_EQ(s.prompt_index, 100 + static_cast<int64_t>(i) / 8);
    EXPECT_EQ(s.sample_index, static_cast<int32_t>(i % 8));
    ASSERT_FALSE(s.response.empty());
    EXPECT_EQ(s.response.size(), s.logprobs.size());
    for (float logprob : s.logprobs) EXPECT_LE(logprob, 0.0F);
    EXPECT_EQ(std::ranges::count(s.response, 0), s.finish == FinishReason::kStop ? 1 : 0);
    if (s.finish == FinishReason::kStop) {
      EXPECT_EQ(s.response.back(), 0);
      ++stopped;
    } else {
      EXPECT_EQ(s.finish, FinishReason::kLength);
      EXPECT_EQ(s.response.size(), 20U);
      ++full;
    }
    if (i % 8 != 0) equal += s.response == samples[i - 1].response;
  }
  EXPECT_GT(stopped, 3);
  EXPECT_GT(full, 3);
  EXPECT_LT(equal, 6);
}

TEST(Engine, CallbacksSeeEveryTokenInOrderAndEverySampleOnce) {
  TestModel m;
  Engine engine(m.backend, {.max_running = 5, .max_context = 64, .kv_pages = 12});
  std::map<std::pair<int64_t, int32_t>, Sample> streamed, finished;
  GenerateOptions options = make_options();
  options.on_token = [&](int64_t prompt, int32_t sample, int32_t token, float logprob) {
    Sample& s = streamed[{prompt, sample}];
    s.response.push_back(token);
    s.logprobs.push_back(logprob);
  };
  options.on_finished = [&](const Sample& s) {
    EXPECT_TRUE(finished.emplace(std::pair(s.prompt_index, s.sample_index), s).second);
  };
  const std::vector<Sample> samples = engine.generate(make_requests(3), options);
  EXPECT_EQ(finished.size(), samples.size());
  for (const Sample& s : samples) {
    const std::pair key(s.prompt_index, s.sample_index);
    EXPECT_EQ(streamed[key].response, s.response);
    EXPECT_EQ(bits(streamed[key].logprobs), bits(s.logprobs));
    expect_same(finished[key], s, "callback");
  }
}

TEST(Engine, RoutingHoldsTwoExpertsOfSparseLayersForEveryFedPosition) {
  TestModel m;
  Engine engine(m.backend, {.max_context = 64});
  GenerateOptions options = make_options();
  options.record_routing = true;
  for (const Sample& s : engine.generate(make_requests(2), options)) {
    const size_t positions = s.prompt.size() + s.response.size() - 1;
    ASSERT_EQ(s.routing.size(), positions * 3 * 2);
    for (size_t p = 0; p < positions; ++p) {
      for (size_t layer = 0; layer < 3; ++layer) {
        const int32_t* experts = s.routing.data() + (p * 3 + layer) * 2;
        if (layer == 1) {
          EXPECT_EQ(experts[0], -1);
          EXPECT_EQ(experts[1], -1);
        } else {
          EXPECT_TRUE(experts[0] >= 0 && experts[0] < 8 && experts[1] >= 0 && experts[1] < 8);
          EXPECT_NE(experts[0], experts[1]);
        }
      }
    }
  }
}

TEST(Engine, NoNewTokensGiveEmptyResponses) {
  TestModel m;
  Engine engine(m.backend, {.max_context = 64});
  GenerateOptions options = make_options();
  options.max_new_tokens = 0;
  const std::vector<Sample> samples = engine.generate(make_requests(2), options);
  ASSERT_EQ(samples.size(), 12U);
  for (const Sample& s : samples) {
    EXPECT_TRUE(s.response.empty());
    EXPECT_TRUE(s.logprobs.empty());
    EXPECT_EQ(s.finish, FinishReason::kLength);
  }
}

TEST(Engine, AStopTokenDrawnFirstEndsTheResponse) {
  TestModel m;
  Engine engine(m.backend, {.max_context = 64});
  GenerateOptions options = make_options();
  for (int32_t token = 0; token < kVocab; ++token) options.stop_tokens.push_back(token);
  for (const Sample& s : engine.generate(make_requests(3), options)) {
    EXPECT_EQ(s.response.size(), 1U);
    EXPECT_EQ(s.logprobs.size(), 1U);
    EXPECT_EQ(s.finish, FinishReason::kStop);
  }
  EXPECT_EQ(engine.cache().free_pages(), engine.cache().pages());
}

TEST(Engine, CancellingKeepsWhatWasDrawn) {
  TestModel m;
  Engine engine(m.backend, {.max_running = 4, .max_context = 64});
  const std::vector<Sample> all = engine.generate(make_requests(3), make_options());
  std::atomic<bool> cancel = false;
  GenerateOptions options = make_options();
  options.cancel = &cancel;
  int64_t tokens = 0;
  options.on_token = [&](int64_t, int32_t, int32_t, float) {
    if (++tokens == 40) cancel = true;
  };
  const std::vector<Sample> some = engine.generate(make_requests(3), options);
  ASSERT_EQ(some.size(), all.size());
  int64_t cut = 0, empty = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_LE(some[i].response.size(), all[i].response.size());
    EXPECT_TRUE(
        std::equal(some[i].response.begin(), some[i].response.end(), all[i].response.begin()));
    if (some[i].finish == FinishReason::kCancelled) {
      cut += !some[i].response.empty();
      empty += some[i].response.empty();
    } else {
      expect_same(all[i], some[i], "finished before");
    }
  }
  EXPECT_GT(cut, 0);
  EXPECT_GT(empty, 0);
  // The engine is as new.
  expect_same(all, engine.generate(make_requests(3), make_options()), "after a cancellation");
}

TEST(Engine, AVocabularyWhoseLogitsAreTakenAFewRowsAtATime) {
  ModelConfig config = small_config();
  config.vocab_size = 66'003;  // 64 rows at a time
  config.num_hidden_layers = 1;
  config.hidden_size = 32;
  config.tie_word_embeddings = true;
  TestModel m({}, {}, 2, kernels::best_isa(), config);
  CpuBackend together(m.runtime, m.model, Schedule::kTogether);
  Engine engine(together, {.max_context = 32});
  Engine alone(m.backend, {.max_running = 1, .max_context = 32});
  std::vector<Request> requests;
  for (int32_t i = 0; i < 70; ++i) requests.push_back({i, {i, 65'999 - i}, 1, 0});
  GenerateOptions options = make_options();
  options.max_new_tokens = 1;
  expect_same(engine.generate(requests, options), alone.generate(requests, options),
              "70 rows of logits");
}

}  // namespace
}  // namespace quads
