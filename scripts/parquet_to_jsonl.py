#!/usr/bin/env python3
"""Converts a Parquet file (verl's data, say) to JSON Lines: parquet_to_jsonl.py IN.parquet OUT.jsonl.

Needs pyarrow. Rows are read in batches, so a file may be larger than memory. OUT is written whole or
not at all. A value that JSON does not have (bytes, NaN) is an error with row and column; dates
become texts in ISO form."""

import argparse
import datetime
import json
import pathlib

from whole_file import write_whole


def plain(value):
    if isinstance(value, (datetime.date, datetime.datetime, datetime.time)):
        return value.isoformat()
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


def convert(source, out):
    from pyarrow.parquet import ParquetFile

    row = 0
    for batch in ParquetFile(source).iter_batches(batch_size=256):
        for line in batch.to_pylist():
            try:
                text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=plain)
            except (TypeError, ValueError) as error:
                column = next((k for k, v in line.items() if not is_json(v)), "?")
                raise ValueError(f"{source}: row {row}, column '{column}': {error}") from None
            out.write(text + "\n")
            row += 1


def is_json(value):
    try:
        json.dumps(value, allow_nan=False, default=plain)
    except (TypeError, ValueError):
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    write_whole(arguments.out, lambda out: convert(arguments.source, out))


if __name__ == "__main__":
    main()
