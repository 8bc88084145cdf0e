"""The storages of these tests."""

from __future__ import annotations

from backups.storages import shelf, storage

__all__ = ["shelf", "storage"]
