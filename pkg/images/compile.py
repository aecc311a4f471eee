# Runs in a box of its own that holds nothing but the image: compiles what the
# image's python imports from, and writes the bytecode to standard output. Each
# file is two numbers on a line, the length of its path and of its content, then
# both; a line "end" closes the stream. With "auto" nothing is written for an
# image that has most of its bytecode already.
import importlib.util
import os
import py_compile
import sys

mode = sys.argv[1]
PREFIX = "/kern-pyc"
SKIP = {"__pycache__", "test", "tests", "idlelib", "turtledemo"}


def sources():
    seen = set()
    for root in sys.path:
        if not os.path.isabs(root) or not os.path.isdir(root):
            continue
        for at, dirs, files in os.walk(root):
            dirs[:] = sorted(d for d in dirs if d not in SKIP)
            if mode == "all":
                at = os.path.realpath(at)  # a layer must not put a directory over a link
            for name in sorted(files):
                path = os.path.join(at, name)
                if name.endswith(".py") and path not in seen and os.path.isfile(path):
                    seen.add(path)
                    yield path


if mode == "auto":
    have = want = 0
    for path in sources():
        want += 1
        have += os.path.exists(importlib.util.cache_from_source(path))
    if have * 5 >= want * 4:
        print("end")
        sys.exit(0)

sys.pycache_prefix = PREFIX
out = sys.stdout.buffer
tmp = "/tmp/one.pyc"
for path in sources():
    try:
        py_compile.compile(path, cfile=tmp, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        with open(tmp, "rb") as f:
            code = f.read()
    except Exception:
        continue  # not every file of a library is of this Python
    name = os.fsencode(os.path.relpath(importlib.util.cache_from_source(path), PREFIX))
    out.write(b"%d %d\n" % (len(name), len(code)) + name + code)
out.write(b"end\n")
out.flush()
