# Runs a script as `python3 SCRIPT ARG...` would, with these differences: the
# first entry of sys.path is the workspace, because the script itself lies
# read-only outside it; a program that counts its own stack frames finds two
# more; there is a function display; and where results are collected (the
# directory "out" beside this file), the value of a last expression and the
# figures that are still open at the end are written there. No frame of this
# file shows in a traceback.
#
#   python3 -u THIS SCRIPT ARG...
#   python3 -u THIS serve once|kernel     waits for code on descriptor 3
def _kern_sbx(names):
    import posix
    import sys

    here = sys.argv[0].rpartition("/")[0]

    def load(name):
        scope = {"__name__": "kern_sbx"}
        with open(here + "/" + name, "rb") as f:
            exec(compile(f.read(), name, "exec", dont_inherit=True), scope)
        return scope

    def display(*objects, **ignored):
        """Add objects to the results of this run."""

    def fail(failed, show):
        # Shows an exception as the interpreter does. Called outside the handlers,
        # so that what a hook raises is not shown as raised "during handling of the
        # above exception". Gives the exit code.
        kind, trace = type(failed), failed.__traceback__
        sys.last_type, sys.last_value, sys.last_traceback = kind, failed, trace
        if sys.version_info >= (3, 12):
            sys.last_exc = failed

        def say(text):
            try:
                sys.stderr.write(text)
            except Exception:  # the program closed or replaced it
                pass

        wrong = None
        try:
            hook = sys.excepthook
        except AttributeError:
            say("sys.excepthook is missing\n")
            hook = show
        if hook is sys.__excepthook__:
            hook = show
        try:
            hook(kind, failed, trace)
        except SystemExit:
            raise
        except BaseException as e:
            wrong = e.with_traceback(e.__traceback__.tb_next)
        if wrong is not None:
            say("Error in sys.excepthook:\n")
            show(type(wrong), wrong, wrong.__traceback__)
            say("\nOriginal exception was:\n")
            show(kind, failed, trace)
        return 130 if isinstance(failed, KeyboardInterrupt) else 1

    mode = sys.argv[1:3]
    if not getattr(sys.flags, "safe_path", False):  # -P and PYTHONSAFEPATH
        sys.path[0] = "/workspace"
    del names["_kern_sbx"]
    names["__cached__"] = None
    out = here + "/out/results"
    try:
        posix.stat(here + "/out")
    except OSError:
        out = ""
    # Loaded now: a program may use up all descriptors.
    results = None
    if out or mode[0] == "serve":
        results = load(".kern-sbx-rich.py")["Results"](names, out)
        display = results.display
    display.__module__, display.__qualname__ = "builtins", "display"
    sys.modules["builtins"].display = display
    show = sys.__excepthook__
    failed = source = drop = None
    if mode[0] == "serve":
        waiting = load(".kern-sbx-serve.py")["Waiting"](mode[1])
        while True:
            cell = waiting.cell()
            if out:
                results.path = here + "/out/" + cell.id
            if mode[1] == "once":
                break
            waiting.run(cell, names, results, fail)
        path, source, show = cell.path, cell.source, cell.show
        sys.argv[:] = [path] + cell.args
        waiting = cell = None
    else:
        path = sys.argv[1]
        del sys.argv[0]
    names["__file__"] = path
    try:
        if source is None:
            with open(path, "rb") as f:
                source = f.read()
        if results is None:
            code = compile(source, path, "exec", dont_inherit=True)
        else:
            code, drop = results.build(source, path)
        f = source = None
    except BaseException as e:  # a syntax error is shown without a traceback
        failed = e.with_traceback(None)
    if failed is None:
        try:
            exec(code, names)
        except SystemExit:
            if results is not None:
                results.finish()
            raise
        except BaseException as e:
            failed = e.with_traceback(e.__traceback__.tb_next)
    if failed is None:
        try:
            if results is not None:
                results.finish(drop)
        except KeyboardInterrupt:
            sys.exit(130)
        return
    try:
        code = fail(failed, show)
    finally:
        if results is not None:
            results.finish()
    sys.exit(code)


# Its globals are its own: a program may do to the names of __main__ what it likes.
_kern_sbx = type(_kern_sbx)(_kern_sbx.__code__, {"__builtins__": __builtins__, "__name__": "kern_sbx"})
_kern_sbx(globals())
