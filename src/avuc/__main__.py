"""`python -m avuc`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # `python -m` searches the working directory first, where a random.py of the user would hide Python's own; a study
    # adds the directory again when it needs a module of the user
    if sys.path and Path(sys.path[0]) == Path.cwd() != Path(__file__).parents[1]:
        del sys.path[0]
    from avuc.cli import main

    sys.exit(main())
