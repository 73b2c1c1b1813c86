"""Entry point of `python -m liftedstruct`."""

import sys

from liftedstruct.cli import main

sys.exit(main())
