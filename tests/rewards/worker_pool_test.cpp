// Workers that answer, hang, crash, babble, and do not start.
#include "rewards/worker_pool.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

#include "io/json.h"
#include "io/test_files.h"
#include "rewards/reward.h"

namespace quads {
namespace {

using Outcome = WorkerReply::Outcome;

// A worker in Python: `before` runs first, then for each request `x` (parsed) the statements of
// `body`; reply(...) prints an answer.
WorkerPoolOptions python(const std::string& body, const std::string& before = "") {
  return {.command = {"/usr/bin/python3", "-I", "-S", "-c",
                      "import json, os, sys, time\n"
                      "def reply(value): print(json.dumps(value), flush=True)\n" +
                          before + "\nfor line in sys.stdin:\n  x = json.loads(line)\n  " + body +
                          "\n"}};
}

std::vector<std::string> outcomes(const std::vector<WorkerReply>& replies) {
  std::vector<std::string> result;
  for (const WorkerReply& reply : replies) {
    switch (reply.outcome) {
      case Outcome::kAnswered:
        result.push_back(reply.line);
        break;
      case Outcome::kTimedOut:
        result.push_back("timed out");
        break;
      case Outcome::kBroken:
        result.push_back("broken");
        break;
    }
    EXPECT_EQ(reply.failure.empty(), reply.outcome == Outcome::kAnswered);
  }
  return result;
}

int open_descriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

bool has_children() { return waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

TEST(WorkerPool, AnswersComeInTheOrderOfTheRequests) {
  WorkerPoolOptions options = python("time.sleep(0.002 * (x % 3)); reply([x, os.getpid()])");
  options.workers = 3;
  WorkerPool pool(options);
  std::set<int> processes;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> requests;
    for (int i = 0; i < 50; ++i) requests.push_back(std::to_string(i));
    const std::vector<WorkerReply> replies = pool.run(requests);
    ASSERT_EQ(replies.size(), 50U);
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(replies[i].failure, "");
      const Json reply = parse_json(replies[i].line, "reply");
      EXPECT_EQ(reply[0], i);
      processes.insert(reply[1].get<int>());
    }
  }
  EXPECT_LE(processes.size(), 3U);  // they persist
}

TEST(WorkerPool, NoRequestsGiveNoReplies) {
  WorkerPool pool(python("reply(x)"));
  EXPECT_TRUE(pool.run({}).empty());
}

TEST(WorkerPool, RequestsAndAnswersLargerThanAPipe) {
  WorkerPoolOptions options = python("reply(x + 'b')");
  options.max_reply_bytes = size_t{8} << 20;
  WorkerPool pool(options);
  const std::string text(3'000'000, 'a');
  const std::vector<std::string> requests = {'"' + text + '"', "\"\""};
  EXPECT_EQ(outcomes(pool.run(requests)), (std::vector<std::string>{'"' + text + "b\"", "\"b\""}));
}

TEST(WorkerPool, OneThatHangsIsReplacedAndTheOthersAreAnswered) {
  WorkerPoolOptions options = python("time.sleep(1000 if x == 1 else 0); reply(x)");
  options.request_s = 1;
  WorkerPool pool(options);
  const std::vector<std::string> requests = {"0", "1", "2", "1", "3"};
  const std::vector<WorkerReply> replies = pool.run(requests);
  EXPECT_EQ(outcomes(replies), (std::vector<std::string>{"0", "timed out", "2", "timed out", "3"}));
  EXPECT_NE(replies[1].failure.find("did not answer within 1 s"), std::string::npos);
}

TEST(WorkerPool, StartingUpIsNotCountedAsTheRequestsTime) {
  WorkerPoolOptions options = python("reply(x)", "time.sleep(1.5)");
  options.request_s = 1;
  WorkerPool pool(options);
  EXPECT_EQ(outcomes(pool.run(std::vector<std::string>{"7"})), (std::vector<std::string>{"7"}));
}

TEST(WorkerPool, OneThatCrashesIsReplacedAndTheCauseIsTold) {
  WorkerPool pool(
      python("print('about to fail\\nat', x, file=sys.stderr, flush=True) if x else 0\n"
             "  os.kill(os.getpid(), 11) if x == 1 else os._exit(3) if x == 2 else reply(x)"));
  const std::vector<WorkerReply> replies =
      pool.run(std::vector<std::string>{"0", "1", "0", "2", "0"});
  EXPECT_EQ(outcomes(replies), (std::vector<std::string>{"0", "broken", "0", "broken", "0"}));
  for (const char* part :
       {"was ended by signal 11", "its standard error ends: about to fail at 1"}) {
    EXPECT_NE(replies[1].failure.find(part), std::string::npos) << replies[1].failure;
  }
  EXPECT_NE(replies[3].failure.find("exited with status 3"), std::string::npos);
}

TEST(WorkerPool, WhatIsNoLineOfJsonIsNoAnswer) {
  WorkerPoolOptions options = python(
      "sys.stdout.buffer.write([b'{}', b'nonsense\\n', b'\\n', b'{\"a\":\\n1}\\n', b'\\xff\\n',"
      " b'x' * 200000, b'1 2\\n'][x]); sys.stdout.flush(); x or os._exit(0)");
  options.max_reply_bytes = 100'000;
  WorkerPool pool(options);
  const std::vector<WorkerReply> replies =
      pool.run(std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6"});
  EXPECT_EQ(outcomes(replies), std::vector<std::string>(7, "broken"));
  EXPECT_NE(replies[1].failure.find("\"nonsense\", which is not JSON"), std::string::npos);
  EXPECT_NE(replies[5].failure.find("more than 100000 bytes"), std::string::npos);
}

TEST(WorkerPool, AnAnswerTooManyIsNotTakenForTheNext) {
  WorkerPool pool(python("sys.stdout.write(f'{x}\\n-1\\n'); sys.stdout.flush()"));
  EXPECT_EQ(outcomes(pool.run(std::vector<std::string>{"1", "2", "3"})),
            (std::vector<std::string>{"1", "2", "3"}));
}

TEST(WorkerPool, AProgramForOneRequestEachIsStartedAnew) {
  WorkerPool pool(python("reply(x); os._exit(0)"));
  EXPECT_EQ(outcomes(pool.run(std::vector<std::string>{"1", "2", "3"})),
            (std::vector<std::string>{"1", "2", "3"}));
}

TEST(WorkerPool, AWorkerThatEndedWhileIdleIsReplaced) {
  WorkerPool pool(python("reply(os.getpid())"));
  const auto ask = [&] { return pool.run(std::vector<std::string>{"0"}).at(0).line; };
  const std::string first = ask();
  const pid_t process = std::stoi(first);
  kill(process, SIGKILL);
  siginfo_t info;
  waitid(P_PID, process, &info, WEXITED | WNOWAIT);  // a dying process may still read
  const std::string second = ask();
  EXPECT_NE(second, first);
  EXPECT_EQ(ask(), second);
}

TEST(WorkerPool, AProgramThatCannotStartIsAnErrorWithItsLastWords) {
  expect_contains(error_of([] { WorkerPool({.command = {"/no/such/program"}}); }),
                  "/no/such/program cannot be started: No such file or directory");
  WorkerPool crashing(python("reply(x)", "import no_such_module"));
  for (int i = 0; i < 2; ++i) {
    const std::string message = error_of([&] { crashing.run(std::vector<std::string>{"1", "2"}); });
    for (const char* part : {"exited with status 1", "No module named 'no_such_module'"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  WorkerPoolOptions options = python("reply(x)", "time.sleep(1000)");
  options.start_s = 0.1;
  WorkerPool hanging(options);
  expect_contains(error_of([&] { hanging.run(std::vector<std::string>{"1"}); }),
                  "had read no request after 0.1 s");
  WorkerPool talking(python("reply(x)", "print('Loading', flush=True); time.sleep(1000)"));
  expect_contains(error_of([&] { talking.run(std::vector<std::string>{"1"}); }),
                  "printed \"Loading?\" before it read its first request");
  WorkerPool deaf(python("reply(x)", "os.close(0); time.sleep(1000)"));
  expect_contains(
      error_of([&] { deaf.run(std::vector<std::string>{'"' + std::string(200'000, 'a') + '"'}); }),
      "had to be killed");
}

TEST(WorkerPool, StandardErrorIsDrainedAndItsEndIsKept) {
  WorkerPool pool(
      python("sys.stderr.write('e' * 3000000 + ' the end'); sys.stderr.flush()\n"
             "  os._exit(1) if x else reply(x)"));
  const std::vector<WorkerReply> replies = pool.run(std::vector<std::string>{"0", "1"});
  EXPECT_EQ(outcomes(replies), (std::vector<std::string>{"0", "broken"}));
  EXPECT_TRUE(replies[1].failure.ends_with("eee the end"));
  EXPECT_LT(replies[1].failure.size(), 2000U);
}

TEST(WorkerPool, CancellingEndsTheRunAndThePoolStaysUsable) {
  std::atomic<bool> cancel = false;
  WorkerPoolOptions options = python("time.sleep(x); reply(x)");
  options.cancel = &cancel;
  options.request_s = 1000;
  WorkerPool pool(options);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cancel = true;
  });
  EXPECT_THROW(pool.run(std::vector<std::string>{"0", "1000"}), Interrupted);
  later.join();
  cancel = false;
  EXPECT_EQ(outcomes(pool.run(std::vector<std::string>{"0"})), (std::vector<std::string>{"0"}));
}

TEST(WorkerPool, WorkersHaveTheirThreeDescriptorsAndAGroupOfTheirOwn) {
  const int leaky = open("/dev/null", O_RDONLY);  // not close-on-exec
  WorkerPool pool(
      python("reply([sorted(os.listdir('/proc/self/fd')), os.getpgid(0) == os.getpid()])"));
  const Json reply = parse_json(pool.run(std::vector<std::string>{"0"}).at(0).line, "reply");
  close(leaky);
  EXPECT_EQ(reply[0], Json::parse(R"(["0", "1", "2", "3"])"));  // 3 is the listing's own
  EXPECT_EQ(reply[1], true);
}

TEST(WorkerPool, LeavesNeitherProcessesNorDescriptors) {
  const int before = open_descriptors();
  pid_t grandchild = 0;
  {
    WorkerPoolOptions options = python("p = os.fork()\n  if p == 0: time.sleep(1000)\n  reply(p)");
    WorkerPool pool(options);
    grandchild = std::stoi(pool.run(std::vector<std::string>{"0"}).at(0).line);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_FALSE(has_children());
  for (int i = 0; i < 500 && kill(grandchild, 0) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::ifstream status("/proc/" + std::to_string(grandchild) + "/stat");
    std::string pid, name, state;
    if (status >> pid >> name >> state && state == "Z") return;  // left to init
  }
  EXPECT_NE(kill(grandchild, 0), 0);
}

TEST(WorkerPool, OptionsAndRequestsAreChecked) {
  WorkerPoolOptions options = python("reply(x)");
  options.workers = 0;
  expect_contains(error_of([&] { WorkerPool pool(options); }),
                  "0 workers, but at least 1 is needed");
  options.workers = 1;
  for (const double limit : {0.0, -1.0, std::nan(""), 1e30}) {
    options.request_s = limit;
    expect_contains(error_of([&] { WorkerPool pool(options); }), "is not in (0, 1e6)");
  }
  WorkerPool pool(python("reply(x)"));
  expect_contains(error_of([&] {
                    pool.run(std::vector<std::string>{"1", "2\n3"});
                  }),
                  "request 1 has a line feed in it");
}

}  // namespace
}  // namespace quads
