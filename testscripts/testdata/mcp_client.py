# The client of the Python package mcp, against `kern-sbx mcp`: sys.argv[1:] is the
# command of the server, $MARK a number of seconds that nobody else sleeps. It
# prints "done" when all is as it should be.
import asyncio
import base64
import os
import subprocess
import sys
import time

from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

MARK = os.environ["MARK"]

PNG = """
import zlib, struct
def chunk(k, d): return struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
class P:
    def _repr_png_(self):
        return (b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 2, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress((b"\\0" + b"\\xff\\0\\0" * 4) * 2)) + chunk(b"IEND", b""))
P()
"""


def lives():
    return subprocess.run(["pgrep", "-f", "^sleep " + MARK], stdout=subprocess.DEVNULL).returncode == 0


async def until(limit, ask):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if ask():
            return True
        await asyncio.sleep(0.02)
    return ask()


def text(result):
    return "".join(c.text for c in result.content if c.type == "text")


async def client(kernel):
    told, logs = [], []

    async def progress(done, total, message):
        told.append(message)

    async def log(params):
        logs.append(params.data)

    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:] + (["--kernel"] if kernel else []), env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write, logging_callback=log) as s:
        hello = await s.initialize()
        assert hello.server_info.name == "kern-sbx", hello
        tools = {t.name: t for t in (await s.list_tools()).tools}
        assert sorted(tools) == ["list_files", "read_file", "reset", "restore", "run_code", "run_command", "snapshot", "write_file"], tools
        assert tools["run_code"].input_schema["required"] == ["code"] and tools["run_code"].output_schema, tools["run_code"]
        assert tools["read_file"].annotations.read_only_hint and not tools["run_code"].annotations.read_only_hint

        async def run(code, **more):
            # The client itself checks the structured content against the schema.
            return await s.call_tool("run_code", {"code": code, **more}, progress_callback=progress)

        r = await run("print('out'); 6 * 7")
        assert not r.is_error and r.structured_content["results"] == ["42"] and "out" in text(r), r
        r = await run("1/0")
        assert r.is_error and r.structured_content["exit_code"] == 1 and "ZeroDivisionError" in text(r), r
        r = await run("while True: print('x' * 1000)", timeout_s=1)
        assert r.is_error and r.structured_content["fault"]["type"] == "timeout", r
        assert r.structured_content["stdout_truncated"] and len(text(r)) < 20000, len(text(r))
        link = [c for c in r.content if c.type == "resource_link"][0]
        got = (await s.read_resource(str(link.uri) + "?offset=500000&limit=100")).contents[0].text
        assert got.startswith("x") and "offset=500100" in got, got
        r = await run(PNG)
        images = [c for c in r.content if c.type == "image"]
        assert len(images) == 1 and images[0].mime_type == "image/png" and base64.b64decode(images[0].data)[1:4] == b"PNG", r
        r = await s.call_tool("run_command", {"command": "cat; exit 3", "stdin": "in"})
        assert r.structured_content["exit_code"] == 3 and r.structured_content["stdout"] == "in", r
        r = await s.call_tool("write_file", {"path": "d/f", "content": "\u2603"})
        assert not r.is_error, r
        r = await s.call_tool("read_file", {"path": "d/f"})
        assert text(r) == "\u2603", r
        r = await s.call_tool("read_file", {"path": "../f"})
        assert r.is_error, r
        for name, arguments in (("run_code", {}), ("run_code", {"code": 1}), ("run_code", {"code": "1", "net": True}), ("nothing", {})):
            try:
                r = await s.call_tool(name, arguments)
                raise AssertionError(r)
            except MCPError as e:
                assert e.error.code == -32602, e.error

        # What is cancelled is gone, and what takes too long for the client as well.
        call = asyncio.ensure_future(run("import subprocess; subprocess.run(['sleep', '%s'])" % MARK))
        assert await until(5, lives), "it does not run"
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            pass
        assert await until(2, lambda: not lives()), "it runs on"
        try:
            r = await s.call_tool("run_code", {"code": "import subprocess; subprocess.run(['sleep', '%s'])" % MARK}, read_timeout_seconds=1)
            raise AssertionError(r)
        except MCPError:
            pass
        assert await until(2, lambda: not lives()), "it runs on"
        r = await run("import os; os._exit(5)")
        assert r.structured_content["exit_code"] == 5 and ("FRESH" in text(r)) == kernel, r
        all = await asyncio.gather(*(run("print(%d * 111)" % i) for i in range(8)))
        assert [r.structured_content["stdout"] for r in all] == [str(i * 111) for i in range(8)], all
        begun = time.monotonic()
    assert time.monotonic() - begun < 2, "the end took %g s" % (time.monotonic() - begun)


async def main():
    for kernel in (False, True):
        await client(kernel)
    print("done")


asyncio.run(main())
