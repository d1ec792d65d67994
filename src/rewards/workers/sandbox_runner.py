# Runs inside the sandbox, before and beside the program under test: reads the program and its
# inputs from standard input, runs it on each in a forked child, and writes what it gave to standard
# output. It knows no expected answers and judges nothing. Started as
#   python3 -I -S -c <this file> <path for the programs' standard input, or nothing>
#
# A frame is four bytes of length (little-endian) and that many bytes. First come
#   limits (milliseconds, bytes of memory, bytes of output, threads), seccomp filter
# answered by an empty frame: all is ready. Then, by the first byte,
#   'f' and the name of a function or nothing, then a frame with the program: the next program,
#       answered by 'o', or 'd' if the one before left something in /tmp and this is not to be used;
#   'r' and an input: a run, answered by 'o' and the output, or 't' (out of time), 'x' and the exit
#       status, 's' and the signal.
# Starting is most of what a short run takes, so one sandbox runs many programs: they can start no
# process and signal none (the filter), so nothing of one is left when its process has ended, but
# files.
import _ctypes
import _signal
import atexit
import builtins
import os
import resource
import sys
import time

PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
NAME_ERROR_STATUS = 77
# What LiveCodeBench imports before a program. Imported only for a program that lacks a name.
PRELUDE = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics
import itertools, functools, operator, io, sys, json
"""


def receive():
    def exactly(count):
        parts = []
        while count:
            part = os.read(0, min(count, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    return exactly(int.from_bytes(exactly(4), "little"))


def send(frame):
    rest = memoryview(len(frame).to_bytes(4, "little") + frame)
    while rest:
        rest = rest[os.write(1, rest):]


def prctl(option, value, pointer=0):
    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
    if _ctypes.call_cdeclfunction(function, (option, value, pointer, 0, 0)) != 0:
        raise OSError("prctl failed")


def sock_fprog(filter_):
    # The bytes of a bytes object follow its header. `filter_` has to stay alive.
    address = id(filter_) + bytes.__basicsize__ - 1
    return (len(filter_) // 8).to_bytes(8, "little") + address.to_bytes(8, "little")


def input_file(path, text):
    if path:  # has a name for /dev/stdin to lead to
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    else:
        file = os.open("/tmp", os.O_RDWR | os.O_TMPFILE)
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(file, rest):]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def contents(file):
    parts = []
    offset = 0
    while part := os.pread(file, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


class Runner:
    def __init__(self, input_path):
        self.input_path = input_path
        limits = [int(word) for word in receive().split()]
        self.milliseconds, self.memory, self.output, self.threads = limits
        self.filter = receive()
        self.prelude = {}
        self.tmp_mode = os.stat("/tmp").st_mode
        _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGCHLD})
        sys.setrecursionlimit(50000)  # as LiveCodeBench has it
        sys.path.append("/usr/lib/python3/dist-packages")
        sys.argv = ["program.py"]
        builtins.exit = builtins.quit = sys.exit

    def load(self, function, program):
        self.function = function
        self.program = program
        self.names = {}
        if function:
            import json

            self.json = json
        return b"o" if self.is_clean() else b"d"

    def is_clean(self):
        if not self.input_path:
            return True  # without a sandbox, /tmp is everybody's
        try:
            os.unlink(self.input_path)
        except OSError:  # there was no run; or what is in its place shows below
            pass
        try:
            os.utime("/tmp", (0, 0))
            return os.stat("/tmp").st_mode == self.tmp_mode and not os.listdir("/tmp")
        except OSError:
            return False

    def run(self, text):
        """The answer's frame."""
        frame = self.run_once(text)
        if frame == b"x%d" % NAME_ERROR_STATUS and not self.names:
            if not self.prelude:
                exec(PRELUDE, self.prelude)
            self.names = self.prelude
            frame = self.run_once(text)
        return frame

    def run_once(self, text):
        try:
            file = input_file(self.input_path, text)
            output = os.open("/tmp", os.O_RDWR | os.O_TMPFILE)
        except OSError as error:  # an earlier run filled the disk or put something in the way
            return b"x/tmp: " + str(error).encode()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = self.child(file, output, text)
            finally:
                os._exit(status)
        os.close(file)
        status = self.wait_for(child)
        answer = contents(output)
        os.close(output)
        if status is None:
            return b"t"
        if os.WIFSIGNALED(status):
            return b"s%d" % os.WTERMSIG(status)
        if os.WEXITSTATUS(status):
            return b"x%d" % os.WEXITSTATUS(status)
        return b"o" + answer

    def wait_for(self, child):
        """The process's wait status, or None if it ran out of time. It is no more."""
        deadline = time.monotonic() + self.milliseconds / 1000
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            left = deadline - time.monotonic()
            if left <= 0:
                os.kill(child, _signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            # The signal says only that it is worth looking: a stop sends it as well, and one may be
            # left from the run before.
            _signal.sigtimedwait({_signal.SIGCHLD}, left)

    def child(self, file, output, text):
        """The exit status of the process, which ends with this."""
        nothing = os.open("/dev/null", os.O_RDWR)
        os.dup2(nothing if self.function else file, 0)
        os.dup2(nothing if self.function else output, 1)
        os.dup2(nothing, 2)
        os.dup2(output, 3)  # a function's result
        os.closerange(4 if self.function else 3, 256)
        seconds = self.milliseconds // 1000 + 2
        for limit, value in (
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_AS, self.memory),
            (resource.RLIMIT_FSIZE, self.output),
            (resource.RLIMIT_NPROC, self.threads),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
        ):
            _, hard = resource.getrlimit(limit)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))
        # What a program does when it is run, it does not do when it is asked for a function.
        name = "program" if self.function else "__main__"
        main = type(sys)(name)
        main.__dict__.update(self.names)
        main.__name__ = name
        sys.modules[name] = main
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGCHLD})
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, sock_fprog(self.filter))
        status = 0
        try:
            exec(compile(self.program, "program.py", "exec"), main.__dict__)
            if self.function:
                self.call(main.__dict__, text)
        except SystemExit:
            status = 1 if self.function else 0
        except NameError:
            status = NAME_ERROR_STATUS
        except BaseException:
            status = 1
        # What the interpreter does at its end: threads are joined, buffers written.
        threading = sys.modules.get("threading")
        if threading:
            threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        return status

    def call(self, names, text):
        arguments = [self.json.loads(line) for line in text.decode().split("\n")]
        if "Solution" in names:
            function = getattr(names["Solution"](), self.function)
        else:
            function = names[self.function]
        result = memoryview(self.json.dumps(function(*arguments)).encode())
        while result:
            result = result[os.write(3, result):]


runner = Runner(sys.argv[1])
send(b"")
while True:
    request = receive()
    if request[:1] == b"f":
        send(runner.load(request[1:].decode(), receive()))
    else:
        send(runner.run(request[1:]))
