"""The options of `maxbrod key`."""

from dataclasses import dataclass
from pathlib import Path

from maxbrod.options import Options, option


@dataclass(frozen=True, kw_only=True)
class KeyOptions(Options):
    name: str | None = option("The file; to remove a key, its label or id.", metavar="NAME", argument=True)
    label: str | None = option("The label: whose key it is, or what it is for.", metavar="LABEL")
    public_key: Path | None = option(
        "Add the holder of this key, whose public half is enough: a file of 'maxbrod key create'.", metavar="FILE"
    )
    passphrase_file: Path | None = option("Add a passphrase, the first line of this file.", metavar="FILE")
    kms: str | None = option("Add a key of Amazon's KMS: its id, ARN or alias.", metavar="KEY")
    command: bool = option("Add the program of storage.encryption.command.", default=False)
    signing: bool = option(
        "Make a key that signs (Ed25519), for drills, evidence and the catalog, not one that opens.", default=False
    )
