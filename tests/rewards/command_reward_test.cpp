// A program of the user's as a reward.
#include "rewards/command_reward.h"

#include <gtest/gtest.h>

#include "io/test_files.h"

namespace quads {
namespace {

RewardOptions command(const std::string& body) {
  const std::string program =
      "import json, os, sys, time\n"
      "for line in sys.stdin:\n"
      "  x = json.loads(line)\n"
      "  print(json.dumps(" +
      body + "), flush=True)\n";
  return {.types = {"command"},
          .command = "/usr/bin/python3 -I -S -c \"" + program + "\"",
          .workers = 2,
          .timeout_s = 2};
}

TEST(CommandReward, SeesPromptResponseLabelAndMetadata) {
  const auto reward = make_reward(
      command("{'reward': len(x['prompt']) + 10 * len(x['response']) + 100 * len(x['label'])"
              " + 1000 * (x['metadata'] or {}).get('n', 0)}"));
  const Json metadata = {{"n", 4}};
  const std::vector<RewardRequest> requests = {
      {.prompt = "a", .response = "b\n\"", .label = "\xC3\xA9\xC3\xA9", .metadata = &metadata},
      {.prompt = "", .response = "\xFF", .label = ""}};
  const std::vector<RewardResult> results = reward->score(requests);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].failure + results[1].failure, "");
  EXPECT_EQ(results[0].value, 4231);
  EXPECT_EQ(results[1].value, 10);
}

TEST(CommandReward, WhatGivesNoNumberIsAFailureWithItsCause) {
  const auto reward = make_reward(command(
      "{'crash': lambda: os._exit(3), 'hang': lambda: time.sleep(1000), 'own': lambda:"
      " {'error': 'no grade'}, 'mute': lambda: {'error': ''}, 'text': lambda: {'reward': 'good'},"
      " 'none': lambda: {}, 'list': lambda: [1], 'fine': lambda: {'reward': -1.5}}"
      "[x['response']]()"));
  std::vector<RewardRequest> requests;
  for (const char* response : {"crash", "hang", "own", "mute", "text", "none", "list", "fine"}) {
    requests.push_back({.prompt = "", .response = response, .label = ""});
  }
  const std::vector<RewardResult> results = reward->score(requests);
  expect_contains(results[0].failure, "exited with status 3");
  expect_contains(results[1].failure, "did not answer within 2 s");
  EXPECT_EQ(results[2].failure, "command: no grade");
  expect_contains(results[3].failure, "an error without a text");
  expect_contains(results[4].failure, "\"good\" is not a number");
  expect_contains(results[5].failure, "key 'reward' is missing; right are {\"reward\": number}");
  expect_contains(results[6].failure, "[1] is not an object");
  EXPECT_EQ(results[7].failure, "");
  EXPECT_EQ(results[7].value, -1.5);
}

TEST(CommandReward, ACommandThatCannotRunIsAnError) {
  expect_contains(error_of([] { make_reward({.types = {"command"}}); }),
                  "--rm-type command needs --rm-command");
  const auto make = [] {
    make_reward({.types = {"command"}, .command = "no-such-program --fast", .workers = 2});
  };
  expect_contains(error_of(make), "not found");
}

}  // namespace
}  // namespace quads
