"""`python -m infonce_kernels` is the command `infonce`."""

import sys

from infonce_kernels.cli import main

sys.exit(main())
