"""Every folder that the format names is in the list by which a copy decides."""

from __future__ import annotations

import re
from pathlib import Path

from maxbrod.archive.folders import FOLDERS
from maxbrod.storage.composed import OWN_FOLDER

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"


def test_whoever_adds_a_folder_to_the_format_decides_whether_it_is_copied() -> None:
    tree = FORMAT.read_text().partition("<archive url>/\n")[2].partition("```")[0]
    named = {found[1] for line in tree.splitlines() if (found := re.match(r"  ([^/ ]+)/", line))}
    assert {"catalog", OWN_FOLDER, "erasures"} <= named
    assert named | {"probes"} == set(FOLDERS)
