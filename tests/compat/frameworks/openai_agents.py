"""One of the sandbox clients of the OpenAI Agents SDK, through all that the SDK asks of one: `openai_agents.py e2b|daytona|husk`. Prints a
line for each thing it tried. A scripted model drives a SandboxAgent, so that nothing leaves this machine."""

import asyncio
import io
import pathlib
import sys
import tempfile
import traceback
import urllib.request

from agents import ModelResponse, Runner, RunConfig, Usage, set_tracing_disabled
from agents.models.interface import Model
from agents.sandbox import ExecTimeoutError, LocalSnapshot, Manifest, SandboxAgent, SandboxRunConfig, WorkspaceReadNotFoundError
from agents.sandbox.entries import File
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

PORT = 8123
ROOT = {"e2b": "/home/user/workspace", "daytona": "/home/daytona/workspace", "husk": "/workspace"}


def parts(backend):
    """The client and its options."""
    if backend == "e2b":
        from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions

        return E2BSandboxClient(), E2BSandboxClientOptions(sandbox_type="e2b", template="code-interpreter-v1", envs={"GIVEN": "at create"}, exposed_ports=(PORT,))
    if backend == "daytona":
        from agents.extensions.sandbox.daytona import DaytonaSandboxClient, DaytonaSandboxClientOptions

        return DaytonaSandboxClient(), DaytonaSandboxClientOptions(env_vars={"GIVEN": "at create"}, exposed_ports=(PORT,))
    from husk.openai_agents import HuskSandboxClient, HuskSandboxClientOptions

    return HuskSandboxClient(), HuskSandboxClientOptions(template="code-interpreter", env={"GIVEN": "at create"}, exposed_ports=(PORT,))


class Scripted(Model):
    """A model that runs one command and then says what it printed."""

    async def get_response(self, system_instructions, input, *_, **__):
        done = [each for each in input if isinstance(each, dict) and each.get("type") == "function_call_output"]
        if not done:
            call = '{"cmd": "cat notes.txt; echo $((6 * 7))"}'
            answer = ResponseFunctionToolCall(type="function_call", call_id="call-1", name="exec_command", arguments=call)
        else:
            said = "it is 42" if "from the manifest" in done[0]["output"] and "42" in done[0]["output"] else f"wrong: {done[0]['output']}"
            text = ResponseOutputText(type="output_text", text=said, annotations=[])
            answer = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


class Suite:
    def __init__(self, backend, place):
        self.client, self.options = parts(backend)
        self.root = ROOT[backend]
        self.place = place

    def manifest(self):
        return Manifest(root=self.root, entries={"notes.txt": File(content=b"from the manifest\n")}, environment={"value": {"OF_MANIFEST": "yes"}})

    async def try_exec(self):
        done = await self.session.exec("echo out; echo err >&2; echo $GIVEN $OF_MANIFEST; pwd; exit 3")
        found = (done.stdout.decode(), done.stderr.decode(), done.exit_code)
        assert found == (f"out\nat create yes\n{self.root}\n", "err\n", 3), found
        done = await self.session.exec("printf", "%s|", "a b", "$HOME", shell=False)
        assert done.stdout == b"a b|$HOME|", done.stdout

    async def try_exec_timeout(self):
        try:
            await self.session.exec("sleep 60", timeout=1)
        except ExecTimeoutError:
            return
        raise AssertionError("it did not time out")

    async def try_files(self):
        content = bytes(range(256)) * 1000
        await self.session.write(pathlib.Path("new/place/data.bin"), io.BytesIO(content))
        assert (await self.session.read(pathlib.Path("new/place/data.bin"))).read() == content
        assert await self.session.read_bounded(pathlib.Path("new/place/data.bin"), max_bytes=10) == content[:10]
        assert (await self.session.read(pathlib.Path("notes.txt"))).read() == b"from the manifest\n"
        await self.session.mkdir("made/by/us", parents=True)
        names = {pathlib.Path(entry.path).name for entry in await self.session.ls("new/place")}
        assert "data.bin" in names, names
        await self.session.rm("new", recursive=True)
        assert not (await self.session.exec("ls new")).ok()

    async def try_missing_file(self):
        for read in (self.session.read, lambda path: self.session.read_bounded(path, max_bytes=5)):
            try:
                await read(pathlib.Path("no/such/file"))
            except WorkspaceReadNotFoundError:
                continue
            raise AssertionError("it was read")

    async def try_pty(self):
        started = await self.session.pty_exec_start("python3 -q", tty=True, yield_time_s=3)
        assert started.process_id is not None, started
        said = started.output
        for _ in range(10):
            update = await self.session.pty_write_stdin(session_id=started.process_id, chars="print('x' * 5)\n", yield_time_s=2)
            said += update.output
            if b"xxxxx" in said:
                break
        assert b"xxxxx" in said, said
        await self.session.pty_terminate_all()

    async def try_long_command(self):
        started = await self.session.pty_exec_start("echo begun; sleep 2; echo done; exit 4", tty=False, yield_time_s=0.3)
        said, update = started.output, started
        while update.exit_code is None and update.process_id is not None:
            update = await self.session.pty_write_stdin(session_id=started.process_id, chars="", yield_time_s=5)
            said += update.output
        assert (said, update.exit_code) == (b"begun\ndone\n", 4), (said, update)

    async def try_port(self):
        started = await self.session.pty_exec_start(f"python3 -m http.server {PORT} --directory {self.root}", tty=False, yield_time_s=1)
        endpoint = await self.session.resolve_exposed_port(PORT)
        answer = await asyncio.to_thread(fetch, endpoint.url_for("http"))
        assert b"notes.txt" in answer, answer
        assert started.process_id is not None
        await self.session.pty_terminate_all()

    async def try_workspace_outlives_the_sandbox(self):
        """Closed with a snapshot, it comes back in another sandbox with the state that was serialized."""
        snapshot = LocalSnapshot(id="kept", base_path=self.place)
        session = await self.client.create(snapshot=snapshot, manifest=self.manifest(), options=self.options)
        async with session:
            await session.write(pathlib.Path("kept.txt"), io.BytesIO(b"kept"))
            assert await session.running()
        assert not await session.running()
        state = self.client.deserialize_session_state(self.client.serialize_session_state(session.state))
        await self.client.delete(session)
        again = await self.client.resume(state)
        try:
            async with again:
                assert (await again.read(pathlib.Path("kept.txt"))).read() == b"kept"
        finally:
            await self.client.delete(again)

    async def try_resume_of_a_running_one(self):
        await self.session.exec("echo alive >/tmp/alive")
        state = self.client.deserialize_session_state(self.client.serialize_session_state(self.session.state))
        again = await self.client.resume(state)
        await again.start()
        assert (await again.exec("cat /tmp/alive")).stdout == b"alive\n"

    async def try_agent(self):
        agent = SandboxAgent(name="one", instructions="Answer.", model=Scripted(), default_manifest=self.manifest())
        config = RunConfig(sandbox=SandboxRunConfig(client=self.client, options=self.options))
        result = await Runner.run(agent, "What is it?", run_config=config)
        assert result.final_output == "it is 42", result.final_output

    async def run(self, only):
        failed = 0
        self.session = await self.client.create(manifest=self.manifest(), options=self.options)
        await self.session.start()
        try:
            for name in [each for each in dir(self) if each.startswith(f"try_{only}")]:
                try:
                    await asyncio.wait_for(getattr(self, name)(), 120)
                    print(f"ok {name[4:]}", flush=True)
                except Exception as error:
                    failed += 1
                    traceback.print_exc()
                    print(f"not ok {name[4:]}: {type(error).__name__}: {str(error)[:500]}", flush=True)
        finally:
            await self.session.aclose()
            await self.client.delete(self.session)
            if hasattr(self.client, "close"):
                await self.client.close()
        return failed


def fetch(url):
    """The test's own resolver: names below .localhost are this machine, which not every C library knows."""
    parts = urllib.request.urlparse(url)
    request = urllib.request.Request(parts._replace(netloc=f"127.0.0.1:{parts.port}").geturl(), headers={"Host": parts.netloc})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read()


if __name__ == "__main__":
    set_tracing_disabled(True)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(1 if asyncio.run(Suite(sys.argv[1], pathlib.Path(place)).run("".join(sys.argv[2:]))) else 0)
