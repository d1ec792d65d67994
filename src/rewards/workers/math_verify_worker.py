"""Compares mathematical answers with math-verify: a JSON line in, a JSON line out.

In: {"label": "x^2-1", "answer": "(x-1)(x+1)"}. Out: {"equal": true}, or {"error": "..."} where the
label cannot be read in time. Runs as `python3 -c <this text> SECONDS`, the processor time for each
of three steps: reading the label, reading the answer, comparing them. It is not wall time, so that
a busy machine decides nothing.
"""

import sys

sys.path = [path for path in sys.path if path]  # nothing from the current directory

import json
import logging
import os
import resource
import signal

try:
    from math_verify import LatexExtractionConfig, parse, verify
except ImportError as error:
    sys.exit(f"{sys.executable} cannot import math-verify (pip install math-verify): {error}")

MEMORY_BYTES = 2 << 30
NO_LIMIT = 0  # math-verify's own limits are in wall time


class OutOfTime(BaseException):
    pass


def out_of_time(*_):
    raise OutOfTime


def within(seconds, function, *arguments):
    # Rings again where someone catches it.
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.1)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read(text):
    """All of `text` as one answer: nothing is looked for inside it."""
    return parse("\\boxed{" + text + "}", [LatexExtractionConfig()], parsing_timeout=NO_LIMIT)


def equal(label, answer):
    return verify(label, answer, timeout_seconds=NO_LIMIT)


def compare(request, seconds):
    try:
        label = within(seconds, read, request["label"])
    except OutOfTime:
        return {"error": f"math-verify cannot read the label {request['label'][:100]!r} in {seconds} s"}
    try:
        answer = within(seconds, read, request["answer"])
        return {"equal": within(seconds, equal, label, answer)}
    except OutOfTime:
        return {"equal": False}


def main():
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, out_of_time)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no reply
    equal(read("x+1"), read("\\frac{1}{2}"))  # the first time builds tables
    seconds = int(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(compare(json.loads(line), seconds)), file=replies, flush=True)


main()
