#include "rewards/program_filter.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "rewards/piped_process.h"

namespace quads {
namespace {

constexpr const char* kRefused[] = {
    // processes
    "fork", "vfork", "execve", "execveat", "kill", "tkill", "tgkill", "rt_sigqueueinfo",
    "rt_tgsigqueueinfo", "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "ptrace",
    "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp",
    "setpgid", "setsid", "setpriority", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "ioprio_set", "move_pages", "migrate_pages", "get_robust_list",
    "timer_create",  // it can stop and continue its process, which its parent is told of
    // what stays at /tmp beside files
    "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
    // memory that RLIMIT_AS does not count, and objects that outlive a process
    "memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "msgget", "semget", "mq_open",
    "mq_unlink",
    // the network
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4",
    // the system
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsmount", "fsconfig",
    "fspick", "open_tree", "move_mount", "mount_setattr", "bpf", "perf_event_open", "userfaultfd",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "keyctl", "add_key",
    "request_key", "fanotify_init", "inotify_init", "inotify_init1", "open_by_handle_at",
    "name_to_handle_at", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl", "syslog", "personality",
    "modify_ldt", "iopl", "ioperm", "vhangup", "settimeofday", "clock_settime", "clock_adjtime",
    "adjtimex", "sethostname", "setdomainname", "landlock_create_ruleset", "vmsplice"};

// System calls that are younger than the list above (Linux 5.17's last one is 450) do not exist, as
// on an older kernel: libraries do without.
constexpr uint32_t kFirstUnknownCall = 451;

constexpr sock_filter kNoUnknownCalls[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kFirstUnknownCall, 0, 2),
    // The numbers of x32 begin above. They are left to libseccomp's check of the architecture.
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS)};

class Filter {
 public:
  Filter() : context_(seccomp_init(SCMP_ACT_ALLOW), &seccomp_release) {
    require(context_ != nullptr, "libseccomp gives no filter");
    check(seccomp_attr_set(context_.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS),
          "other architectures");
  }

  template <class... Comparisons>
  void refuse(const char* name, int error, Comparisons... comparisons) {
    const int call = seccomp_syscall_resolve_name(name);
    if (call == __NR_SCMP_ERROR) return;  // newer than this libseccomp
    check(seccomp_rule_add(context_.get(), SCMP_ACT_ERRNO(static_cast<uint32_t>(error)), call,
                           sizeof...(comparisons), comparisons...),
          name);
  }

  std::string bytes() const {
    const Descriptor file(memfd_create("filter", MFD_CLOEXEC));
    require(static_cast<bool>(file), "no memory file for a filter: {}", std::strerror(errno));
    check(seccomp_export_bpf(context_.get(), file.get()), "export");
    std::string rules(static_cast<size_t>(lseek(file.get(), 0, SEEK_END)), '\0');
    const ssize_t count = pread(file.get(), rules.data(), rules.size(), 0);
    require(count == static_cast<ssize_t>(rules.size()), "a filter cannot be read back");
    // Jumps are relative, so what stands before does not matter to them.
    return std::string(reinterpret_cast<const char*>(kNoUnknownCalls), sizeof(kNoUnknownCalls)) +
           rules;
  }

 private:
  static void check(int status, const char* what) {
    require(status == 0, "libseccomp refuses {}: {}", what, std::strerror(-status));
  }

  std::unique_ptr<void, decltype(&seccomp_release)> context_;
};

}  // namespace

std::string program_filter() {
  Filter filter;
  for (const char* name : kRefused) filter.refuse(name, EPERM);
  // A thread or nothing. The flags of clone3 are out of a filter's sight; without it, libraries use
  // clone.
  filter.refuse("clone", EPERM, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
  filter.refuse("clone3", ENOSYS);
  // Limits of other processes, and signals to them through a descriptor's owner.
  filter.refuse("prlimit64", EPERM, SCMP_A0_32(SCMP_CMP_NE, 0));
  for (const uint32_t command : {F_SETOWN, 15 /* F_SETOWN_EX */, 10 /* F_SETSIG */}) {
    filter.refuse("fcntl", EPERM, SCMP_A1_32(SCMP_CMP_EQ, command));
  }
  // Of terminals there are none; what else it does to a file of /tmp (attributes) stays.
  filter.refuse("ioctl", ENOTTY);
  return filter.bytes();
}

}  // namespace quads
