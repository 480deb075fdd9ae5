"""Adds the shared modules of tests to the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
