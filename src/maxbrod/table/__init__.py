"""The archive as a Spark table: `spark.read.format("maxbrod").load(url)`.

Importing this registers the format with the active session, if there is one; `register` does so with any other.
"""

from __future__ import annotations

from maxbrod.table.registration import register, register_active

__all__ = ["register"]

register_active()
