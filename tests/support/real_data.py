"""Where the real data lie: CALIBSEG_DATA, else beside the checkout. Tests that need them skip where they are absent."""

import os
from pathlib import Path

DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[3] / "shared" / "data"))
