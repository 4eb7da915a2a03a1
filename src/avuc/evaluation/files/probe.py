"""Read a .parquet file in another process first: a damaged one may end the process that reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["probe_parquet"]

# files up to this size are read as a whole, of larger ones the footer and the first rows
WHOLE_BYTES = 64 * 2**20
SECONDS = 120
# what Python and Arrow take themselves
BASE_BYTES = 2 * 2**30
MEMORY = 3

CODE = f"""
import os, sys
path, limit = os.fsencode(sys.argv[1]).decode("utf-8", "surrogateescape"), int(sys.argv[2])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pyarrow, pyarrow.parquet as parquet
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
except (ImportError, ValueError, OSError):
    pass
try:
    with parquet.ParquetFile(path) as plain:
        words = (pyarrow.string(), pyarrow.large_string(), pyarrow.binary())
        texts = [one.name for one in plain.schema_arrow if one.type in words]
    with parquet.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 16, pre_buffer=False) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group)
            for place in range(rows.num_columns):
                column = rows.column(place)
                column.path_in_schema, column.num_values, column.total_uncompressed_size
        for place, batch in enumerate(file.iter_batches(batch_size=4096, use_threads=False)):
            if os.path.getsize(path) > {WHOLE_BYTES} and place:
                break
except MemoryError:
    os._exit({MEMORY})
except BaseException:
    pass  # the reader meets the same error and says it
os._exit(0)
"""


def probe_parquet(path: Path, limit: int) -> str | None:
    """What is wrong with the file, if it ends the process that reads it or takes too much memory; else None."""
    if not sys.executable:
        return None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    command = [sys.executable, "-P", "-c", CODE, str(path), str(min(limit, 2**42) + BASE_BYTES)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"reading it takes more than {SECONDS} s"
    except OSError:
        return None  # no other process can be started here
    if done.returncode == MEMORY:
        return "it needs more memory than the limit; raise it with --max-gb or AVUC_MAX_GB"
    return f"reading it ends the process with signal {-done.returncode}" if done.returncode < 0 else None
