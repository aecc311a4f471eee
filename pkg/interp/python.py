# Runs a script as `python3 SCRIPT ARG...` would, with two differences: the
# first entry of sys.path is the workspace, because the script itself lies
# read-only outside it, and a program that counts its own stack frames finds two
# more. No frame of this file shows in a traceback.
def _kern_sbx():
    import sys

    path = sys.argv[1]
    del sys.argv[0]
    sys.path[0] = "/workspace"
    names = globals()
    del names["_kern_sbx"]
    names["__file__"] = path
    names["__cached__"] = None
    failed = None
    try:
        with open(path, "rb") as f:
            source = f.read()
        code = compile(source, path, "exec", dont_inherit=True)
        f = source = None
    except BaseException as e:  # a syntax error is shown without a traceback
        failed = e.with_traceback(None)
    if failed is None:
        try:
            exec(code, names)
            return
        except SystemExit:
            raise
        except BaseException as e:
            failed = e.with_traceback(e.__traceback__.tb_next)
    # Out of the handlers, so that what a hook raises is not shown as raised
    # "during handling of the above exception".
    kind, trace = type(failed), failed.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, failed, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = failed
    show = sys.__excepthook__

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
    sys.exit(130 if isinstance(failed, KeyboardInterrupt) else 1)


_kern_sbx()
