"""The metrics against their peers: calibration statistics, then overlap and surfaces. Prints ratios of one run.

    python benchmarks/metrics.py [calibration|shape] [options of that part]

Without a part, both run with their own defaults: `metrics_calibration.py` (MONAI, torchmetrics) and `metrics_shape.py`
(MONAI, MedPy), each in a process of its own, so that neither counts the other's memory. Exits with 1 where one fails.
"""

import subprocess
import sys
from pathlib import Path

PARTS = ("calibration", "shape")


def main() -> int:
    """Run the part that is named, or both."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if arguments and arguments[0] not in PARTS:
        print(f"no part named {arguments[0]!r}. Known: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    failed = 0
    for part in arguments[:1] or PARTS:
        file = Path(__file__).with_name(f"metrics_{part}.py")
        failed += subprocess.run([sys.executable, file, *arguments[1:]], check=False).returncode != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
