"""A session between two messages of its user: hibernated it costs no memory, and the next call wakes it with everything
in place, here from another process that knows only its name.
"""

import subprocess
import sys

from husk import Sandbox

LATER = "from husk import Sandbox; print('later:', Sandbox.connect('support-42').run_code('notes').text)"

with Sandbox.create(name="support-42", ttl_seconds=3600, metadata={"user": "42"}) as sandbox:
    sandbox.run_code("notes = ['the printer is on fire']")
    sandbox.hibernate()
    print("parked:", sandbox.state)
    subprocess.run([sys.executable, "-c", LATER], check=True)
    print("awake:", sandbox.refresh().state)
