"""`python -m sandlot`."""

import sys

from sandlot.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
