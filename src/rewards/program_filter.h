// The system calls that a program under test may not make.
#pragma once

#include <string>

namespace quads {

/// A seccomp filter (an array of struct sock_filter, as bytes), second to the namespaces and limits
/// of the sandbox. Refused, with EPERM: starting processes and programs (threads are fine),
/// signalling, tracing or limiting others, sockets, memory that no limit counts (memfd, System V),
/// namespaces, mounts, and what a program that computes has no use for. A call of another
/// architecture ends the process. Error if libseccomp refuses.
std::string program_filter();

}  // namespace quads
