// Programs in the sandbox: what they are given and give, the limits, and attempts to break out.
#include "rewards/sandbox.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "io/test_files.h"
#include "rewards/reward.h"
#include "rewards/sandbox_testing.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

using SandboxTest = WithSandbox;

constexpr size_t kMiB = size_t{1} << 20;

std::string outcome(const Sandbox::Run& run) {
  EXPECT_EQ(run.cause.empty(), run.finished);
  return run.finished ? run.output : "! " + run.cause;
}

/// A sandbox with a program in it.
struct Loaded : Sandbox {
  Loaded(const SandboxOptions& options, std::string_view program, std::string_view function = "")
      : Sandbox(options) {
    load(program, function);
  }
};

std::string outcome_of(const std::string& program, const std::string& input = "",
                       const SandboxOptions& options = {}) {
  Loaded sandbox(options, program);
  return outcome(sandbox.run(input));
}

std::string value_of(const std::string& program, const std::string& input = "1") {
  Loaded sandbox({}, program, "f");
  return outcome(sandbox.run(input));
}

/// A program that says which error each expression ends with, a line each.
std::string attempts(const std::vector<std::string>& expressions) {
  std::string program =
      "import ctypes, os, socket, subprocess, sys, resource, fcntl, threading, multiprocessing\n"
      "libc = ctypes.CDLL(None, use_errno=True)\n"
      "def call(*arguments):\n"
      "  if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
      "def attempt(action):\n"
      "  try: print('SUCCEEDED', action())\n"
      "  except BaseException as error: print(type(error).__name__)\n";
  for (const std::string& expression : expressions) {
    program += "attempt(lambda: " + expression + ")\n";
  }
  return program;
}

/// Each is refused by the system, for whatever reason, and is not just a mistake of the test's.
void expect_refused(const std::vector<std::string>& expressions) {
  std::istringstream errors(outcome_of(attempts(expressions)));
  for (const std::string& expression : expressions) {
    std::string error;
    std::getline(errors, error);
    EXPECT_TRUE(error == "PermissionError" || error == "OSError" || error == "FileNotFoundError")
        << expression << ": " << error;
  }
}

// ---- What a program is given and gives

TEST_F(SandboxTest, AProgramIsRunAnewOnEachInput) {
  Loaded sandbox({}, "import sys\nx = globals().get('x', 0) + 1\nprint(x, sys.stdin.read()[::-1])",
                 "");
  EXPECT_EQ(outcome(sandbox.run("abc\n")), "1 \ncba\n");
  EXPECT_EQ(outcome(sandbox.run("")), "1 \n");
  EXPECT_EQ(outcome(sandbox.run("\xC3\xA9")), "1 \xC3\xA9\n");
}

TEST_F(SandboxTest, WaysToReadAndWrite) {
  for (const char* program :
       {"print(input())", "import sys\nsys.stdout.write(sys.stdin.readline())",
        "print(open(0).read(), end='')", "print(open('/dev/stdin').read(), end='')",
        "import os\nos.write(1, os.read(0, 9))",
        "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
        "if __name__ == '__main__':\n  print(input())",
        "import fileinput\nprint(next(iter(open(0))).strip())",
        "import threading\nthreading.stack_size(2**27)\n"
        "threading.Thread(target=lambda: print(input())).start()",
        "import atexit\natexit.register(lambda: print(input()))"}) {
    EXPECT_EQ(outcome_of(program, "a b\n"), "a b\n") << program;
  }
}

TEST_F(SandboxTest, InputsAndOutputsOfMegabytes) {
  const std::string text(5 * kMiB, 'x');
  Loaded sandbox({}, "print(input() + 'y')");
  EXPECT_TRUE(sandbox.run(text).output == text + "y\n");
  EXPECT_EQ(outcome(sandbox.run("")), "! exit status 1");  // input() at the end of the file
}

TEST_F(SandboxTest, OutputIsBytes) {
  EXPECT_EQ(outcome_of("import sys\nsys.stdout.buffer.write(bytes(range(256)))").size(), 256U);
  EXPECT_EQ(outcome_of("print('\\ud800')"), "! exit status 1");  // no character
}

TEST_F(SandboxTest, WaysToEnd) {
  EXPECT_EQ(outcome_of("print(1)\nexit()"), "1\n");
  EXPECT_EQ(outcome_of("print(1)\nquit(3)"), "1\n");  // not looked at, as in LiveCodeBench
  EXPECT_EQ(outcome_of("import sys\nprint(1)\nsys.exit('text')"), "1\n");
  EXPECT_EQ(outcome_of("print(1)\nraise ValueError"), "! exit status 1");
  EXPECT_EQ(outcome_of("print(1"), "! exit status 1");  // no program
  EXPECT_EQ(outcome_of(""), "");
  EXPECT_EQ(outcome_of(std::string("print(1)\0", 9)), "! exit status 1");
  EXPECT_EQ(outcome_of("import os\nprint(1)\nos._exit(0)"), "");  // never written
  EXPECT_EQ(outcome_of("import os\nprint(1, flush=True)\nos._exit(4)"), "! exit status 4");
  EXPECT_EQ(outcome_of("import ctypes\nctypes.string_at(0)"), "! signal 11");
  EXPECT_EQ(outcome_of("import sys\nprint(1)\nsys.stdout.close()"), "! exit status 1");
  EXPECT_EQ(outcome_of("import os\nos.close(1)\nprint(1)"), "! exit status 1");
  EXPECT_EQ(outcome_of("def f(n): return f(n + 1)\nf(0)"), "! exit status 1");
  EXPECT_EQ(outcome_of("def f(n): return n and f(n - 1)\nprint(f(20000))"), "0\n");
}

TEST_F(SandboxTest, NamesThatLiveCodeBenchImportsAreThere) {
  EXPECT_EQ(outcome_of("print(gcd(12, 18), Counter('aab')['a'], math.inf, pow(2, 5, 7))"),
            "6 2 inf 4\n");
  EXPECT_EQ(outcome_of("print(no_such_name)"), "! exit status 77");
}

TEST_F(SandboxTest, FunctionsAreCalledWithTheLinesOfTheInput) {
  EXPECT_EQ(value_of("def f(a, b): return a + b", "[1]\n[2, \"x\"]"), "[1, 2, \"x\"]");
  EXPECT_EQ(value_of("class Solution:\n  def f(self, a: List[int]): return sum(a)", "[1, 2]"), "3");
  EXPECT_EQ(value_of("import sys\ndef f(a):\n  print('noise')\n  return (a, 10 ** 30, True, None)"),
            "[1, 1000000000000000000000000000000, true, null]");
  // A guard keeps what a program reads and prints from the function, as in LiveCodeBench.
  const std::string guarded = "def f(a): return 7\nif __name__ == '__main__': print(f(input()))";
  EXPECT_EQ(value_of(guarded), "7");
  EXPECT_EQ(outcome_of(guarded), "! exit status 1");               // there is no line to read
  EXPECT_EQ(value_of("def f(a): return {1}"), "! exit status 1");  // not JSON
  EXPECT_EQ(value_of("def g(a): return 1"), "! exit status 1");
  EXPECT_EQ(value_of("def f(a, b): return 1"), "! exit status 1");
  EXPECT_EQ(value_of("class Solution: pass"), "! exit status 1");
}

TEST_F(SandboxTest, ManyProgramsOneAfterTheOther) {
  Sandbox sandbox({});
  std::set<pid_t> processes;
  for (int i = 0; i < 3; ++i) {
    sandbox.load("import os\nprint(input(), os.listdir('/tmp'))", "");
    EXPECT_EQ(outcome(sandbox.run("a")), "a ['.stdin']\n");
    sandbox.load("def f(x): return gcd(x, 4)", "f");
    EXPECT_EQ(outcome(sandbox.run("6")), "2");
    for (const auto& [process, started] : descendants(getpid())) processes.insert(process);
  }
  EXPECT_EQ(processes.size(), 3U);  // bwrap twice, runner: still the same
  for (const char* program :
       {"open('/tmp/x', 'w')", "import os\nos.chmod('/tmp', 0)", "import os\nos.mkdir('/tmp/d')",
        "import os\nos.remove('/tmp/.stdin')\nos.symlink('/', '/tmp/.stdin')\nopen('/tmp/x','w')",
        "import os\nos.remove('/tmp/.stdin')\nos.mkfifo('/tmp/.stdin')\nos.mkdir('/tmp/d')"}) {
    sandbox.load(program, "");
    EXPECT_EQ(outcome(sandbox.run("")), "") << program;
    sandbox.load("import os\nprint(os.listdir('/tmp'), input())", "");
    EXPECT_EQ(outcome(sandbox.run("b")), "['.stdin'] b\n") << program;
  }
}

TEST_F(SandboxTest, OneThatHasDiedIsReplacedByTheNextProgram) {
  Loaded sandbox({}, "print(1)");
  EXPECT_EQ(outcome(sandbox.run("")), "1\n");
  for (const auto& [process, started] : descendants(getpid())) kill(process, SIGKILL);
  EXPECT_THROW(sandbox.run(""), SandboxError);
  EXPECT_THROW(sandbox.run(""), SandboxError);
  sandbox.load("print(2)", "");
  EXPECT_EQ(outcome(sandbox.run("")), "2\n");
  std::thread([&] {
    for (const auto& [process, started] : descendants(getpid())) kill(process, SIGKILL);
    sandbox.load("print(3)", "");
    EXPECT_EQ(outcome(sandbox.run("")), "3\n");
  }).join();
  expect_gone(descendants(getpid()));  // ended with its thread
  sandbox.load("print(4)", "");
  EXPECT_EQ(outcome(sandbox.run("")), "4\n");
}

// The first one dies with its thread, at some time after its end.
TEST_F(SandboxTest, AnotherThreadsProgramGetsASandboxOfItsOwn) {
  Loaded sandbox({}, "print(1)");
  const std::map<pid_t, std::string> first = descendants(getpid());
  std::thread([&] {
    sandbox.load("print(2)", "");
    EXPECT_EQ(outcome(sandbox.run("")), "2\n");
    for (const auto& [process, started] : descendants(getpid())) {
      EXPECT_FALSE(first.contains(process)) << process;
    }
  }).join();
}

TEST_F(SandboxTest, AnInputThatDoesNotFitIsTheSandboxesFault) {
  Loaded sandbox({.disk_bytes = kMiB}, "print(1)");
  EXPECT_THROW(sandbox.run(std::string(kMiB, 'x')), SandboxError);
}

// ---- Limits

TEST_F(SandboxTest, RunsThatTakeTooLongAreEndedAndTheNextOneIsRun) {
  const std::string program =
      "import signal, threading, time\nx = input()\n"
      "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
      "if x == 'sleep': time.sleep(1000)\n"
      "if x == 'spin':\n  while True: pass\n"
      "if x == 'thread': threading.Thread(target=time.sleep, args=(1000,)).start()\n"
      "if x == 'exit':\n  import atexit\n  atexit.register(time.sleep, 1000)\n"
      "print(x)";
  std::vector<std::thread> threads;
  for (const char* input : {"sleep", "spin", "thread", "exit"}) {
    threads.emplace_back([&program, input] {
      Loaded sandbox({.run_s = 2}, program);
      EXPECT_EQ(outcome(sandbox.run(input)), "! out of time") << input;
      EXPECT_EQ(outcome(sandbox.run("ok")), "ok\n");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SandboxTest, MemoryIsLimited) {
  SandboxOptions options;
  options.memory_bytes = 256 * kMiB;
  options.disk_bytes = 16 * kMiB;
  EXPECT_EQ(outcome_of("x = bytearray(100 << 20)\nprint(len(x))", "", options), "104857600\n");
  EXPECT_EQ(outcome_of("x = bytearray(300 << 20)\nprint(len(x))", "", options), "! exit status 1");
  EXPECT_EQ(outcome_of("x = []\nwhile True: x.append(bytearray(1 << 20))", "", options),
            "! exit status 1");
  // Memory that is not address space: files without names, pipes.
  EXPECT_EQ(outcome_of("import os\nfiles, total = [], 0\n"
                       "try:\n"
                       "  while True:\n"
                       "    files.append(os.open('/tmp', os.O_TMPFILE | os.O_RDWR))\n"
                       "    for _ in range(8): total += os.write(files[-1], bytes(1 << 20))\n"
                       "except OSError:\n"
                       "  for file in files: os.close(file)\n"
                       "  print(8 << 20 < total < 17 << 20)",
                       "", options),
            "True\n");
  EXPECT_EQ(outcome_of("import os\ncount = 0\n"
                       "try:\n"
                       "  while True:\n    os.pipe()\n    count += 1\n"
                       "except OSError: print(count < 64)",
                       "", options),
            "True\n");
}

TEST_F(SandboxTest, TheDiskIsSmallAndTheNextRunSurvivesAFullOne) {
  SandboxOptions options;
  options.disk_bytes = 4 * kMiB;
  const std::string program =
      "import os\n"
      "if input() == 'fill':\n"
      "  for folder in ('/tmp', '/', '/dev', '/usr', '/usr/local', '/etc', '/var'):\n"
      "    try:\n"
      "      with open(folder + '/x', 'wb') as file:\n"
      "        for _ in range(100): file.write(bytes(1 << 20))\n"
      "    except OSError as error: print(folder, os.strerror(error.errno))\n"
      "  os.remove('/tmp/x')\n"
      "else: print('fine')";
  Loaded sandbox(options, program);
  EXPECT_EQ(outcome(sandbox.run("fill")),
            "/tmp No space left on device\n/ Read-only file system\n/dev Read-only file system\n"
            "/usr Read-only file system\n/usr/local Read-only file system\n"
            "/etc Read-only file system\n/var No such file or directory\n");
  EXPECT_EQ(outcome(sandbox.run("ok")), "fine\n");
  Loaded full(options, "f = open('/tmp/x', 'wb', 0)\nwhile True: f.write(bytes(1 << 16))");
  EXPECT_EQ(outcome(full.run("")), "! exit status 1");
  EXPECT_TRUE(outcome(full.run("a")).starts_with("! exit status "));
  Loaded blocked({}, "import os\nos.remove('/tmp/.stdin')\nos.mkdir('/tmp/.stdin')");
  EXPECT_EQ(outcome(blocked.run("")), "");
  EXPECT_TRUE(outcome(blocked.run("")).starts_with("! exit status /tmp: "));
}

TEST_F(SandboxTest, OutputIsLimited) {
  SandboxOptions options;
  options.output_bytes = kMiB;
  EXPECT_EQ(outcome_of("print('x' * 1000000)", "", options).size(), 1'000'001U);
  EXPECT_EQ(outcome_of("print('x' * 1100000)", "", options), "! exit status 1");
  EXPECT_EQ(outcome_of("while True: print('x' * 1000)", "", options), "! exit status 1");
  Loaded function(options, "def f(x): return 'x' * 1100000", "f");
  EXPECT_EQ(outcome(function.run("1")), "! exit status 1");
}

TEST_F(SandboxTest, AThreadBombEndsInAnError) {
  SandboxOptions options;
  options.threads = 16;
  EXPECT_EQ(outcome_of("import threading, time\ncount = 0\n"
                       "try:\n"
                       "  while True:\n"
                       "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
                       "    count += 1\n"
                       "except RuntimeError: print(4 < count < 16)",
                       "", options),
            "True\n");
}

// ---- Attempts to break out

TEST_F(SandboxTest, ProcessesCannotBeStarted) {
  expect_refused({"os.fork()", "os.forkpty()", "subprocess.run(['/bin/true'])",
                  "os.execv('/bin/true', ['true'])", "os.posix_spawn('/bin/true', ['true'], {})",
                  "multiprocessing.Process(target=print).start()",
                  // fork, vfork, clone with SIGCHLD, clone3
                  "call(57)", "call(58)", "call(56, 17, 0, 0, 0, 0)", "call(435, 0, 0)"});
  EXPECT_EQ(outcome_of("import os\nprint(os.system('true') != 0)"), "True\n");
  // A fork bomb, and a process that would stay behind.
  EXPECT_EQ(outcome_of("import os\nwhile True: os.fork()"), "! exit status 1");
}

TEST_F(SandboxTest, TheTimeLimitHoldsWhateverTheRunnerIsTold) {
  SandboxOptions options;
  options.run_s = 0.5;
  Loaded sandbox(options, "import time\ntime.sleep(3)\nprint('late')");
  // What a stop, a continuation or the end of an earlier run sends.
  std::jthread signals([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const auto& [process, started] : descendants(getpid())) kill(process, SIGCHLD);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  EXPECT_EQ(outcome(sandbox.run("")), "! out of time");
  EXPECT_EQ(outcome(sandbox.run("")), "! out of time");
}

TEST_F(SandboxTest, OtherProcessesCannotBeTouched) {
  const std::vector<std::string> expressions = {
      "os.kill(os.getppid(), 9)", "os.kill(1, 9)", "os.kill(-1, 9)", "os.killpg(0, 9)",
      "os.pidfd_open(os.getppid())", "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
      "fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())", "fcntl.fcntl(1, 10, 9)",
      "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
      "os.sched_setaffinity(os.getppid(), {0})", "os.setsid()",
      // ptrace(PTRACE_ATTACH), process_vm_writev, tgkill
      "call(101, 16, os.getppid(), 0, 0)", "call(311, os.getppid(), 0, 0, 0, 0, 0)",
      "call(234, os.getppid(), os.getppid(), 9)"};
  expect_refused(expressions);
}

TEST_F(SandboxTest, NamespacesMountsAndOtherMachineryAreRefused) {
  const std::vector<std::string> expressions = {
      "call(272, 0x10000000)",                     // unshare(CLONE_NEWUSER)
      "call(308, 0, 0)",                           // setns
      "call(165, b'x', b'/tmp', b'tmpfs', 0, 0)",  // mount
      "call(166, b'/tmp', 0)",                     // umount2
      "call(161, b'/tmp')",                        // chroot
      "call(319, b'x', 0)",                        // memfd_create
      "call(29, 0, 1 << 30, 0o1600)",              // shmget
      "call(321, 0, 0, 0)",                        // bpf
      "call(323, 0)",                              // userfaultfd
      "call(425, 1, 0)",                           // io_uring_setup
      "call(304, 0, 0, 0)",                        // open_by_handle_at
      "call(250, 0, 0)",                           // keyctl
      "call(169, 0, 0, 0)",                        // reboot
      "call(222, 1, 0, 0)",                        // timer_create
      "call(463, 0, 0, 0, 0, 0, 0)",               // setxattrat
      "call(600)",                                 // a call that is not there yet
      "os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0))",
      "os.chown('/tmp', 0, 0)",
      "os.setuid(0)"};
  expect_refused(expressions);
  EXPECT_EQ(outcome_of("import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 39)\nprint('x32')"),
            "! signal 31");
}

TEST_F(SandboxTest, AttributesOfTmpCannotPassAnythingOn) {
  const std::vector<std::string> expressions = {
      "os.setxattr('/tmp', 'user.note', b'x')", "os.removexattr('/tmp', 'user.note')",
      "os.setxattr('/tmp', 'system.posix_acl_default', b'x')",
      "fcntl.ioctl(os.open('/tmp', 0), 0x40086602, b'x' * 8)",    // FS_IOC_SETFLAGS
      "fcntl.ioctl(os.open('/tmp', 0), 0x401C5820, b'x' * 28)"};  // FS_IOC_FSSETXATTR
  expect_refused(expressions);
}

TEST_F(SandboxTest, FilesOfTheMachineAreOutOfSight) {
  const TempDir folder;
  const fs::path secret = folder.path() / "answer";
  std::ofstream(secret) << "42";
  fs::permissions(folder.path(), fs::perms::all);
  fs::permissions(secret, fs::perms::all);
  std::vector<std::string> expressions;
  for (const std::string& path :
       {secret.string(), std::string("/proc/1/environ"), std::string("/proc/self/environ"),
        std::string("/etc/passwd"), std::string("/root"), std::string("/sys/kernel"),
        std::string("/usr/../..") + secret.string(), std::string(QUADS_SOURCE_DIR)}) {
    expressions.push_back("open('" + path + "').read()");
    expressions.push_back("os.stat('" + path + "')");
  }
  expect_refused(expressions);
  EXPECT_EQ(outcome_of("import os\nprint(sorted(os.listdir('/')), sorted(os.listdir('/dev')),"
                       " os.listdir('/usr/local'), sorted(os.listdir('/tmp')))"),
            "['bin', 'dev', 'etc', 'lib', 'lib64', 'tmp', 'usr'] "
            "['null', 'random', 'stdin', 'urandom', 'zero'] [] ['.stdin']\n");
  // Links are followed inside the sandbox only, and lead nowhere.
  EXPECT_EQ(outcome_of("import os\nos.symlink('" + secret.string() +
                       "', '/tmp/link')\nprint(open('/tmp/link').read())"),
            "! exit status 1");
  expect_refused({"os.link('/usr/bin/python3', '/tmp/l')", "open('/usr/bin/python3', 'r+b')",
                  "os.remove('/usr/bin/python3')"});
  EXPECT_EQ(std::ifstream(secret).get(), '4');
}

TEST_F(SandboxTest, NothingOfThisProcessIsInherited) {
  setenv("QUADS_TEST_SECRET", "42", 1);
  const int leaky = open("/dev/null", O_RDWR);  // not close-on-exec
  EXPECT_EQ(outcome_of("import os\n"
                       "def is_open(number):\n"
                       "  try: return bool(os.fstat(number))\n"
                       "  except OSError: return False\n"
                       "print(sorted(os.environ), [n for n in range(1024) if is_open(n)])\n"
                       "print(os.getuid() != 0, os.getpid() < 10, os.getcwd())"),
            "['LC_CTYPE', 'OPENBLAS_NUM_THREADS', 'PWD'] [0, 1, 2]\nTrue True /tmp\n");
  close(leaky);
  unsetenv("QUADS_TEST_SECRET");
}

TEST_F(SandboxTest, ThereIsNoNetwork) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(server, 4), 0);
  ASSERT_EQ(getsockname(server, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const std::vector<std::string> expressions = {
      "socket.create_connection(('127.0.0.1', " + port + "))", "socket.socket(socket.AF_UNIX)",
      "socket.socketpair()", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
      "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"};
  expect_refused(expressions);
  EXPECT_EQ(accept(server, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  close(server);
}

TEST_F(SandboxTest, AnAnswerCannotBeForged) {
  // Ends before its value is known; frames, statuses and lies on every descriptor; objects that
  // claim to equal everything.
  for (const char* program :
       {"import os\ndef f(x): os._exit(0)", "import os\nos._exit(0)", "import sys\nsys.exit(0)",
        "def f(x): raise SystemExit(0)", "def f(x): exit()",
        "import os\ndef f(x):\n"
        "  for n in list(range(3)) + list(range(4, 99)):\n"
        "    try: os.write(n, b'\\x02\\0\\0\\0o7')\n"
        "    except OSError: pass\n"
        "  os._exit(0)"}) {
    const std::string outcome = value_of(program);
    EXPECT_TRUE(outcome.empty() || outcome.starts_with("! ")) << program << ": " << outcome;
  }
  EXPECT_EQ(value_of("class Any(int):\n"
                     "  def __eq__(self, other): return True\n"
                     "  def __repr__(self): return '7'\n"
                     "def f(x): return Any(3)"),
            "3");
  // The frames and names of what runs it hold inputs, and no answers; what it changes there dies
  // with its process.
  Loaded sandbox({},
                 "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
                 "frame.f_globals['send'] = frame.f_globals['runner'].run = lambda *x: b'ojoke'\n"
                 "print(input())",
                 "");
  EXPECT_EQ(outcome(sandbox.run("1")), "1\n");
  EXPECT_EQ(outcome(sandbox.run("2")), "2\n");
}

// ---- The sandbox's own end

TEST_F(SandboxTest, LeavesNoProcessInTheMiddleOfARun) {
  std::atomic<bool> cancel = false;
  SandboxOptions options;
  options.cancel = &cancel;
  options.run_s = 1000;
  std::map<pid_t, std::string> processes;
  {
    Loaded sandbox(options, "input()\nimport time\ntime.sleep(1000)");
    outcome(sandbox.run(""));
    std::thread later([&] {
      for (int i = 0; i < 1000 && processes.size() < 4; ++i) {  // bwrap twice, runner, program
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        processes = descendants(getpid());
      }
      cancel = true;
    });
    EXPECT_THROW(sandbox.run("go"), Interrupted);
    later.join();
  }
  EXPECT_GE(processes.size(), 4U);
  expect_gone(processes);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(SandboxTest, EndsWhenThisProcessIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    Loaded sandbox({.run_s = 1000}, "import time\ninput()\ntime.sleep(1000)");
    sandbox.run("");
    const ssize_t written = write(ready[1], "x", 1);
    sandbox.run("go");
    _exit(written == 1 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::map<pid_t, std::string> processes;
  for (int i = 0; i < 500 && processes.size() < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    processes = descendants(owner);
  }
  EXPECT_GE(processes.size(), 4U);
  kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  expect_gone(processes);
  close(ready[0]);
  close(ready[1]);
}

TEST(SandboxOptionsTest, WhereBubblewrapIsMissingTheErrorSaysWhatToDo) {
  const std::string path = getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const std::string message = error_of([] { check_sandbox({}); });
  setenv("PATH", path.c_str(), 1);
  for (const char* part : {"cannot be run under bubblewrap", "No such file or directory",
                           "Install the Debian packages bubblewrap", "--code-sandbox none"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(SandboxOptionsTest, KindsAreNamed) {
  EXPECT_EQ(parse_sandbox_kind("bwrap"), SandboxKind::kBubblewrap);
  EXPECT_EQ(parse_sandbox_kind("none"), SandboxKind::kNone);
  expect_contains(error_of([] { parse_sandbox_kind("docker"); }), "unknown sandbox 'docker'");
}

TEST(SandboxOptionsTest, WithoutIsolationLimitsAndFilterHold) {
  const SandboxOptions options = {.kind = SandboxKind::kNone, .run_s = 2};
  check_sandbox(options);
  EXPECT_EQ(outcome_of("print(input())", "a", options), "a\n");
  EXPECT_EQ(outcome_of("import time\ntime.sleep(1000)", "", options), "! out of time");
  EXPECT_EQ(outcome_of("import os\nos.fork()", "", options), "! exit status 1");
  EXPECT_EQ(outcome_of("x = bytearray(2 << 30)", "", options), "! exit status 1");
  EXPECT_EQ(
      outcome_of("import threading\nt = threading.Thread(target=print)\nt.start()", "", options),
      "\n");
}

}  // namespace
}  // namespace quads
