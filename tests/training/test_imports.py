"""What `import avuc.train` loads."""

from __future__ import annotations

from typing import Any

FORBIDDEN = ("avuc.study", "avuc.report", "avuc.cli", "sqlite3", "ray", "pyarrow")
CODE = f"""
import sys
import avuc.train
loaded = [name for name in sys.modules if any(name == one or name.startswith(one + ".") for one in {FORBIDDEN!r})]
print(*sorted(loaded))
"""


def test_training_loads_no_study_no_database_and_no_report(fresh_python: Any) -> None:
    loaded = fresh_python(CODE)
    assert (loaded.returncode, loaded.stdout.split()) == (0, [])


def test_the_check_sees_what_is_loaded(fresh_python: Any) -> None:
    code = CODE.replace("import avuc.train", "import avuc.study, sqlite3")
    assert {"avuc.study", "sqlite3"} <= set(fresh_python(code).stdout.split())
