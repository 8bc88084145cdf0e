"""What other verbs leave in an archive means the same in its copy: signatures, erasures, the job of a scheduler."""

from __future__ import annotations
