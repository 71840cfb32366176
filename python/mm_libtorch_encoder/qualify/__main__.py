"""python -m mm_libtorch_encoder.qualify."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
