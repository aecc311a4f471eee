# Runs a script as `python3 SCRIPT ARG...` would, with two differences: the
# first entry of sys.path is the workspace, because the script itself lies
# read-only outside it, and no frame of this file shows in a traceback.
def _kern_sbx():
    import sys

    path = sys.argv[1]
    del sys.argv[0]
    sys.path[0] = "/workspace"
    names = globals()
    del names["_kern_sbx"]
    names["__file__"] = path
    names["__cached__"] = None
    names.pop("__annotations__", None)
    try:
        with open(path, "rb") as f:
            source = f.read()
        code = compile(source, path, "exec", dont_inherit=True)
    except BaseException as e:  # a syntax error is shown without a traceback
        sys.excepthook(type(e), e, None)
        sys.exit(1)
    del source, f
    try:
        exec(code, names)
    except SystemExit:
        raise
    except BaseException as e:
        tb = e.__traceback__.tb_next
        try:
            e.__traceback__ = tb
            sys.last_type, sys.last_value, sys.last_traceback = type(e), e, tb
            sys.excepthook(type(e), e, tb)
        except SystemExit:
            raise
        except BaseException as hook:
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(hook), hook, hook.__traceback__.tb_next)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(type(e), e, tb)
        sys.exit(130 if isinstance(e, KeyboardInterrupt) else 1)


_kern_sbx()
