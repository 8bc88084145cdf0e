"""Who opens an archive: every holder alone, a public key only what writing needs, and nobody who was removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maxbrod.errors import CorruptDataError, RefusedError, UnsupportedFormatError
from maxbrod.storage.sealing.identity import Identity, new_identity, recipient_for_key
from maxbrod.storage.sealing.rings import (
    OpenRing,
    Ring,
    Sealed,
    add_recipient,
    create_ring,
    decode_ring,
    encode_ring,
    open_with_private,
    open_with_public,
    remove_recipient,
    rotate,
)

OPS, VAULT = new_identity(), new_identity()


def first() -> Ring:
    recipient, public = recipient_for_key(OPS, "ops")
    return create_ring({recipient.id: (recipient, public)})


def opened(ring: Ring, identity: Identity = OPS) -> OpenRing:
    assert identity.private is not None
    found = open_with_private(ring, identity.private, name="ring")
    assert found is not None
    return found


def with_vault(ring: Ring) -> Ring:
    return add_recipient(opened(ring), *recipient_for_key(VAULT, "vault"))


def test_a_ring_survives_its_document() -> None:
    ring = with_vault(first())
    assert decode_ring(encode_ring(ring), name="x") == ring


def test_a_public_key_opens_the_catalog_and_no_record() -> None:
    ring = first()
    found = open_with_public(ring, OPS.public, name="ring")
    assert found is not None
    epoch = bytes.fromhex(ring.epoch.id)
    assert found.private(Sealed.CATALOG, epoch).public_key() == ring.epoch.public(Sealed.CATALOG)
    with pytest.raises(RefusedError, match=r"ops \(key, .*is a public one.*cannot read records") as refused:
        found.private(Sealed.RECORDS, epoch)
    assert "opens with ops" in (refused.value.hint or "")


def test_a_private_key_opens_both() -> None:
    ring = first()
    epoch = bytes.fromhex(ring.epoch.id)
    for kind in Sealed:
        assert opened(ring).private(kind, epoch).public_key() == ring.epoch.public(kind)


def test_a_strangers_key_opens_nothing() -> None:
    stranger = new_identity()
    assert stranger.private is not None
    assert open_with_private(first(), stranger.private, name="ring") is None


def test_the_document_names_no_public_key() -> None:
    ring = with_vault(first())
    for identity in (OPS, VAULT):
        assert identity.public.hex() not in encode_ring(ring).hex()


def test_an_added_key_opens_what_was_written_before() -> None:
    before = first()
    after = with_vault(rotate(opened(before)))
    assert opened(after, VAULT).records.keys() == {epoch.id for epoch in after.epochs}
    assert after.epochs[0] == before.epoch


def test_a_removed_key_opens_nothing_that_is_written_later() -> None:
    before = with_vault(first())
    after = remove_recipient(opened(before), "vault")
    assert VAULT.private is not None
    assert open_with_private(after, VAULT.private, name="ring") is None
    assert after.epoch.id not in opened(before, VAULT).catalog
    assert opened(after).records.keys() == {epoch.id for epoch in after.epochs}


def test_a_rotation_needs_the_secret_of_one_holder_alone() -> None:
    after = rotate(opened(with_vault(first())))
    assert len(after.epochs) == 2
    assert opened(after, VAULT).records.keys() == {epoch.id for epoch in after.epochs}


def test_the_last_key_stays() -> None:
    with pytest.raises(RefusedError, match="the only key"):
        remove_recipient(opened(first()), "ops")


def test_a_public_key_changes_no_keys() -> None:
    found = open_with_public(first(), OPS.public, name="ring")
    assert found is not None
    for change in (rotate, lambda ring: remove_recipient(ring, "ops")):
        with pytest.raises(RefusedError, match="changed with a private one"):
            change(found)


def test_a_label_and_a_key_are_there_once() -> None:
    ring = first()
    for identity, label in ((OPS, "other"), (VAULT, "ops")):
        with pytest.raises(RefusedError, match="has this key, or another with this label"):
            add_recipient(opened(ring), *recipient_for_key(identity, label))


def test_a_ring_that_a_thief_of_the_bucket_has_changed_is_refused() -> None:
    ring, other = with_vault(first()), first()
    forgeries = [
        replace(ring, epochs=other.epochs),
        replace(ring, recipients=ring.recipients[:1]),
        replace(ring, number=7),
        replace(ring, ring=other.ring),
    ]
    for forged in forgeries:
        with pytest.raises(CorruptDataError, match="altered by somebody who has none of them"):
            opened(forged)


def test_a_damaged_ring_is_named() -> None:
    for text in (b"{}", b"[]", b"{", b"\xff", encode_ring(first())[:-40]):
        with pytest.raises((CorruptDataError, UnsupportedFormatError)) as caught:
            decode_ring(text, name="keys/x.json")
        assert caught.value.object_name == "keys/x.json"


def test_a_ring_of_a_newer_release_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedFormatError, match="format 2"):
        decode_ring(encode_ring(first()).replace(b'"format": 1', b'"format": 2'), name="x")
