"""What `import avuc.train` loads."""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = ("avuc.study", "avuc.report", "avuc.cli", "sqlite3", "ray", "pyarrow")
CODE = f"""
import sys
import avuc.train
loaded = [name for name in sys.modules if any(name == one or name.startswith(one + ".") for one in {FORBIDDEN!r})]
print(*sorted(loaded))
"""


def test_training_loads_no_study_no_database_and_no_report() -> None:
    loaded = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def test_the_check_sees_what_is_loaded() -> None:
    code = CODE.replace("import avuc.train", "import avuc.study, sqlite3")
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"avuc.study", "sqlite3"} <= set(loaded)
