# Writes representations of objects where the host reads them when the run is
# over. The file is opened by its path each time, so code that closes every
# descriptor loses nothing. A bundle is
#
#   bundle PAIRS LEFTOUT\n  and for each pair  MIME LENGTH\n BYTES \n
#
# with LEFTOUT the number of representations that were too large.
import posix
import sys

ONE, ALL = 16 << 20, 64 << 20
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
VALUE = "<last value>"

# Taken now: a program may replace them.
make, run = compile, exec

METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
)
KINDS = {mime for _, mime in METHODS} | {"text/plain"}

pictures = set()  # hashes of the figures that were shown


def encoded(mime, data):
    if type(data) is tuple and data:  # with metadata
        data = data[0]
    if mime == "application/json" and data is not None and not isinstance(data, str):
        import json

        data = json.dumps(data)
    if isinstance(data, str):
        data = str.encode(data, "utf-8", "backslashreplace")
    elif mime in ("image/png", "image/jpeg") and isinstance(data, (bytes, bytearray, memoryview)):
        data = bytes(data)
    else:
        return b""
    return data


def bundle(value):
    found = {}

    def add(mime, get):
        try:
            data = encoded(mime, get())
        except Exception:
            return
        if data:
            found[mime] = data

    kind = type(value)
    # What an object says of its own class is not asked, and of a class the methods
    # are not bound.
    if not issubclass(kind, type):
        figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if isinstance(figure, type) and issubclass(kind, figure):
            add("image/png", lambda: drawn(value))
        method = getattr(kind, "_repr_mimebundle_", None)
        if method is not None:
            try:
                given = method(value)
                given = given[0] if isinstance(given, tuple) else given
                given = [(m, d) for m, d in given.items() if m in KINDS]
            except Exception:
                given = ()
            for mime, data in given:
                add(mime, lambda: data)
        for name, mime in METHODS:
            method = getattr(kind, name, None)
            if method is not None and mime not in found:
                add(mime, lambda: method(value))
    if "text/plain" not in found:
        try:
            found["text/plain"] = encoded("text/plain", repr(value))
        except Exception:
            found["text/plain"] = b"<unrepresentable>"
    return found


def drawn(figure):
    from io import BytesIO

    f = BytesIO()
    figure.savefig(f, format="png", bbox_inches="tight")
    data = f.getvalue()
    pictures.add(hash(data))
    return data


class Results:
    """What a run shows. With no path, nothing is written."""

    def __init__(self, names, path):
        self.names, self.path, self.owner = names, path, posix.getpid()

        def display(*objects, **ignored):
            """Add objects to the results of this run."""
            if self.path:
                for o in objects:
                    write(self.path, bundle(o))

        self.display = display

    def build(self, source, path):
        """Compiles a program, so that the value of a trailing expression is kept
        under a name that no program can write. The second code object lets go of
        it: what a destructor sees and says is then as if the expression itself had
        dropped the value."""
        try:
            tree = make(source, path, "exec", ONLY_AST, True)
            last = tree.body[-1] if tree.body else None
            if type(last).__name__ != "Expr":
                return make(tree, path, "exec", 0, True), None
            keep, drop = [make(s, path, "exec", ONLY_AST, True) for s in ("a = 0", "del a")]
            put = keep.body[0]
            put.value = last.value
            for node in put, put.targets[0], drop.body[0], drop.body[0].targets[0]:
                for place in "lineno", "col_offset", "end_lineno", "end_col_offset":
                    if hasattr(last, place):
                        setattr(node, place, getattr(last, place))
            put.targets[0].id = drop.body[0].targets[0].id = VALUE
            text = getattr(last.value, "value", getattr(last.value, "s", None))
            if len(tree.body) == 1 and isinstance(text, str):
                tree.body.append(put)  # it stays the docstring too
            else:
                tree.body[-1] = put
            return make(tree, path, "exec", 0, True), make(drop, path, "exec", 0, True)
        except (MemoryError, RecursionError):  # too deep for a tree of objects
            return make(source, path, "exec", 0, True), None

    def finish(self, drop=None, kernel=False):
        """Shows the value of the last expression and what figures are open."""
        names, value = self.names, None
        if drop is not None and VALUE in names:
            value = names[VALUE]
            if value is None:
                del names[VALUE]
        try:
            if posix.getpid() == self.owner:
                if value is not None and self.path:
                    write(self.path, bundle(value))
                if "matplotlib.pyplot" in sys.modules:
                    self.figures(kernel)
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever a representation does, the program has ended well
            pass
        finally:
            if kernel and value is not None:
                sys.modules["builtins"]._ = value
            value = None
            if drop is not None and VALUE in names:
                run(drop, names)

    def figures(self, close):
        pyplot = sys.modules["matplotlib.pyplot"]
        try:
            for number in pyplot.get_fignums() if self.path else ():
                before = set(pictures)
                found = bundle(pyplot.figure(number))
                if "image/png" in found and hash(found["image/png"]) not in before:
                    write(self.path, found)
        finally:
            if close:
                pictures.clear()
                pyplot.close("all")


def write(path, found):
    left, pairs, size = 0, [], 0
    # What is cut is said to be cut.
    text = found.get("text/plain", b"")
    if len(text) > ONE:
        found["text/plain"] = text[:ONE].decode("utf-8", "ignore").encode()
        left += 1
    for mime, data in found.items():
        if len(data) > ONE:
            left += 1
            continue
        pairs.append(b"%s %d\n%s\n" % (mime.encode(), len(data), data))
        size += len(pairs[-1])
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
    try:
        fd = posix.open(path, flags, 0o600)
    except OSError:
        return
    try:
        there = posix.fstat(fd).st_size
        if there + size > ALL:
            left, pairs = left + len(pairs), []
        if there > ALL + (64 << 10):
            return
        # One write: bundles of several threads or processes stay whole.
        data = memoryview(b"bundle %d %d\n%s" % (len(pairs), left, b"".join(pairs)))
        while data:
            data = data[posix.write(fd, data) :]
    except OSError:
        pass
    finally:
        posix.close(fd)
