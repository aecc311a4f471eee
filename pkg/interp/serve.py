# The warm side of the driver: waits on descriptor 3 for code and descriptors,
# as pkg/agent sends them, and makes the process look as if it had just been
# started for that code.
#
# A packet is `cell ID\n` with descriptors: sealed memory, stdout, stderr, and
# stdin if there is one. The memory holds fields, each as LENGTH\n BYTES: the ID,
# the file's name, the working directory, the number of arguments and those, the
# number of KEY=VALUE pairs and those, and the code.
import io
import os
import posix
import sys
from _signal import SIGINT, default_int_handler, getsignal, signal

execute = exec  # taken now, as all of these: a cell may replace them
dup2, close, write, fstat, pread, getpid, leave = (
    posix.dup2, posix.close, posix.write, posix.fstat, posix.pread, posix.getpid, posix._exit,
)


def ignore(number, frame):
    """Takes an interrupt while no code runs."""


class Library:
    """Imports nothing from the workspace."""

    def __enter__(self):
        self.path = sys.path[:]
        sys.path[:] = [p for p in self.path if p != "/workspace"]

    def __exit__(self, *_):
        sys.path[:] = self.path


def fields(memory):
    at = 0
    while at < len(memory):
        end = memory.index(b"\n", at)
        at = end + 1 + int(memory[at:end])
        yield memory[end + 1 : at]


class Cell:
    def __init__(self, memory, path):
        def name(data):
            return data.decode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())

        f = fields(memory)
        self.id = next(f).decode("ascii")
        self.path, self.dir = name(next(f)) or path, name(next(f))
        self.args = [name(next(f)) for _ in range(int(next(f)))]
        self.env = [name(next(f)) for _ in range(int(next(f)))]
        self.source = next(f)
        self.show = sys.__excepthook__

    def enter(self):
        for pair in self.env:
            key, _, value = pair.partition("=")
            os.environ[key] = value
        if not self.dir:
            return
        try:
            posix.chdir(self.dir)
        except OSError as e:
            write(2, os.fsencode("kern-sbx: the working directory %s: %s\n" % (self.dir, e.strerror)))
            raise SystemExit(126)

    def remember(self):
        """Lets tracebacks and inspect find the source of a file that is not there."""
        with Library():
            import linecache
            import tokenize
            import traceback
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(self.source).readline)
        except SyntaxError:
            encoding = "utf-8"
        text = self.source.decode(encoding, "replace")
        lines = text.replace("\r\n", "\n").splitlines(True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        linecache.cache[self.path] = len(text), None, lines, self.path

        def show(kind, value, trace):
            if sys.stderr is None:
                return
            if isinstance(value, SyntaxError) and value.text is None and value.filename == self.path:
                if value.lineno and value.lineno <= len(lines):
                    value.text = lines[value.lineno - 1]
            if isinstance(value, SyntaxError) and trace is None:
                return sys.__excepthook__(kind, value, trace)  # needs no file
            try:
                traceback.print_exception(kind, value, trace)
            except ValueError:  # the program closed it
                pass

        self.show = show


class Waiting:
    def __init__(self, mode):
        with Library():
            import _socket

        sys.modules.pop("_socket", None)
        self.owner, self.kernel = getpid(), mode == "kernel"
        self.like = [(s.encoding, s.errors) for s in (sys.__stdin__, sys.__stdout__, sys.__stderr__)]
        self.inner = default_int_handler
        self.flush, self.count = None, 0
        fd = 3
        if self.kernel:
            # Where code that closes what it does not know rarely reaches.
            fd, self.box = self.high(3), [self.high(1), self.high(2)]
            close(3)
            self.fflush()
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
        self.flags = _socket.MSG_CMSG_CLOEXEC
        signal(SIGINT, ignore)
        posix.set_inheritable(fd, False)
        self.socket.send(b"ready")

    def high(self, fd):
        for limit in 1000, 200:
            for n in range(limit, limit + 10):
                try:
                    fstat(n)
                except OSError:
                    try:
                        return dup2(fd, n, False) or n
                    except OSError:
                        break  # beyond the limit of descriptors
        return posix.dup(fd)

    def fflush(self):
        try:
            with Library():
                import ctypes
            libc = ctypes.CDLL(None)
            stdout = ctypes.c_void_p.in_dll(libc, "stdout")
            self.flush = lambda: libc.fflush(stdout)
        except Exception:  # a build of Python without it
            pass

    def receive(self):
        data, extra, _, _ = self.socket.recvmsg(4096, 256, self.flags)
        if not data:
            leave(0)
        files = []
        for _, _, rights in extra:
            for i in range(0, len(rights) - 3, 4):
                files.append(int.from_bytes(rights[i : i + 4], sys.byteorder))
        size, parts, at = fstat(files[0]).st_size, [], 0
        while at < size:
            parts.append(pread(files[0], size - at, at))
            at += len(parts[-1])
        close(files[0])
        self.count += 1
        cell = Cell(b"".join(parts), "cell-%d" % self.count)
        if data != b"cell %s\n" % cell.id.encode():
            leave(2)
        return cell, files[1:]

    def cell(self):
        """Waits for code; gives it once the process is ready to run it."""
        while True:
            try:
                self.quiet()
                cell, files = self.receive()
                break
            except KeyboardInterrupt:
                pass
        if len(files) < 3:
            files.append(posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC))
        for fd, to in (files[2], 0), (files[0], 1), (files[1], 2):
            dup2(fd, to)
        for fd in files:
            close(fd)
        if self.kernel:
            return cell
        # The end of the process is the answer, so nothing is left to talk with.
        self.socket.close()
        for i in range(3):
            self.standard(i)
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[-2:] = [cell.path] + cell.args
        cell.enter()
        try:
            posix.stat(cell.path)
        except OSError:
            cell.remember()
        signal(SIGINT, default_int_handler)
        return cell

    def standard(self, fd):
        """Makes a standard stream as the interpreter does with -u."""
        name = "stdin", "stdout", "stderr"
        f = io.open(fd, "wb" if fd else "rb", 0 if fd else -1, closefd=False)
        (f if fd else f.raw).name = "<%s>" % name[fd]
        encoding, errors = self.like[fd]
        f = io.TextIOWrapper(f, encoding, errors, "\n", False, bool(fd))
        f.mode = "w" if fd else "r"
        setattr(sys, name[fd], f)
        setattr(sys, "__%s__" % name[fd], f)
        return f

    def quiet(self):
        """Takes interrupts away from the code, and keeps its handler."""
        while True:
            try:
                handler = getsignal(SIGINT)
                if handler is not ignore:
                    self.inner = handler
                    signal(SIGINT, ignore)
                return
            except KeyboardInterrupt:
                pass

    def guarded(self, f, *args):
        """Calls f, which may be interrupted; gives what it raised."""
        failed = None
        try:
            try:
                if self.inner is not None:
                    signal(SIGINT, self.inner)
                f(*args)
            finally:
                self.quiet()
        except BaseException as e:
            failed = e
        return failed

    def run(self, cell, names, results, fail):
        """Runs a cell of a kernel and answers."""
        code = 130
        try:
            code = self.ran(cell, names, results, fail)
        except KeyboardInterrupt:
            pass
        for f in sys.stdout, sys.stderr:
            try:
                f.flush()
            except Exception:
                pass
        try:
            if self.flush:
                self.flush()
        except Exception:
            pass
        if getpid() != self.owner:
            leave(code)  # a child that the cell forked and forgot
        self.put_back()
        try:
            self.socket.send(b"done %s %d" % (cell.id.encode(), code))
        except OSError:  # the code closed the socket: the process says it by its end
            leave(code)

    def put_back(self):
        try:
            null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
            for fd in range(3):
                if null != fd:
                    dup2(null, fd)
            if null > 2:
                close(null)
            for i, fd in enumerate(self.box):
                dup2(fd, i + 1)
        except OSError:  # closed by the code: its log is lost, not the next cell
            pass

    def ran(self, cell, names, results, fail):
        self.standard(0)
        for i, (name, f) in enumerate((("stdout", sys.__stdout__), ("stderr", sys.__stderr__))):
            try:
                usable = not f.closed
            except Exception:  # replaced, or detached
                usable = False
            if usable:
                setattr(sys, name, f)
            else:
                self.standard(i + 1)
        try:
            cell.enter()
        except SystemExit as e:
            return e.code
        sys.argv[:] = [cell.path] + cell.args
        names.pop("__file__", None)
        cell.remember()
        try:
            posix.stat(cell.path)
            names["__file__"] = cell.path
        except OSError:
            pass
        try:
            code, drop = results.build(cell.source, cell.path)
            failed = None
        except BaseException as e:
            failed = e.with_traceback(None)
        if failed is None:
            failed = self.guarded(execute, code, names)
            if failed is not None:  # without our own frame
                failed.__traceback__ = failed.__traceback__ and failed.__traceback__.tb_next
        if failed is None:
            failed = self.guarded(results.finish, drop, True)
            if failed is None:
                return 0
            return self.fail(failed.with_traceback(None), fail, cell.show)
        code = self.fail(failed, fail, cell.show)
        if self.guarded(results.finish, None, True) is not None:
            return 130
        return code

    def fail(self, failed, fail, show):
        """Shows what ended a cell; gives its exit code."""
        code = 130 if isinstance(failed, KeyboardInterrupt) else 1
        if not isinstance(failed, SystemExit):
            failed = self.guarded(fail, failed, show)
            if not isinstance(failed, SystemExit):  # that of a hook
                return code
        code = failed.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 255 if -(1 << 63) <= code < 1 << 63 else 255
        try:
            sys.stderr.write("%s\n" % (str(code),))
        except Exception:
            pass
        return 1
