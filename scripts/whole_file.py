"""Writes a file whole or not at all; for the scripts beside it."""

import os
import pathlib
import sys


def write_whole(path, write):
    """Calls write(file) on a text file beside `path` that takes its name when all went well. Else nothing
    is left of it, and the program ends with one line: its own name and what was wrong."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as out:
            write(out)
        os.replace(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {error}")
