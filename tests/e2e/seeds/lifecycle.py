"""A box, a command in it, and the box gone. Everything else is a variation on these lines."""

from husk import Sandbox

sandbox = Sandbox.create(ttl_seconds=300)
print(sandbox.exec("echo hello from the sandbox").stdout, end="")
sandbox.kill()
print(sandbox.refresh().state)
