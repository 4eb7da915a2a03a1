"""`python -m avuc`."""

import sys

from avuc.cli import main

if __name__ == "__main__":
    sys.exit(main())
