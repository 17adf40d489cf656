#!/usr/bin/env python3
"""The house is in order: who includes whom, headers, names, links, spelling and layout, as `make lint` checks them before its
slow analyzers. Nothing is run but scripts/house.py; docs/architecture.md has the table of who may use whom."""

import subprocess
import sys

from lib.harness import TOP

sys.exit(subprocess.run([sys.executable, TOP / "scripts/house.py"], check=False, timeout=120).returncode)
