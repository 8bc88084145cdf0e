"""The storage of these tests is in memory: hypothesis makes hundreds of archives."""

from __future__ import annotations

from support.storages import memory_storage as storage

__all__ = ["storage"]
