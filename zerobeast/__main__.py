"""`python -m zerobeast` is the command `beast`."""

import sys

from zerobeast.cli.main import main

sys.exit(main())
