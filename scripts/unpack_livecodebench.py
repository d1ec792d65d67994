#!/usr/bin/env python3
"""Unpacks the private tests of LiveCodeBench's lines: unpack_livecodebench.py IN.jsonl OUT.jsonl.

They are base64 of a compressed pickle of a text, and unpickling may run code, so `quads` does not do
it. Here only a pickle of a plain text is accepted: one that names any class or function is an error.
OUT is written whole or not at all."""

import argparse
import base64
import io
import json
import pathlib
import pickle
import zlib

from whole_file import write_whole

LIMIT = 1 << 30  # bytes of one problem's tests, unpacked


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}; only a text is accepted")


def unpack(packed):
    """The tests' JSON text. What is JSON already stays as it is."""
    if packed.lstrip().startswith("["):
        return packed
    decompressor = zlib.decompressobj()
    data = decompressor.decompress(base64.b64decode(packed, validate=True), LIMIT)
    if decompressor.unconsumed_tail:
        raise ValueError(f"more than {LIMIT} bytes of tests")
    text = PlainUnpickler(io.BytesIO(data)).load()
    if not isinstance(text, str) or not isinstance(json.loads(text), list):
        raise ValueError("the private tests are not a text with a list")
    return text


def convert(source, out):
    with open(source, encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                if line.get("private_test_cases"):
                    line["private_test_cases"] = unpack(line["private_test_cases"])
            except Exception as error:
                raise ValueError(f"{source}:{number}: {type(error).__name__}: {error}") from None
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    write_whole(arguments.out, lambda out: convert(arguments.source, out))


if __name__ == "__main__":
    main()
