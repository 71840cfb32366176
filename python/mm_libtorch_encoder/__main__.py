"""`python -m mm_libtorch_encoder` is the command line."""

import sys

from .cli import main

sys.exit(main())
