"""Files that only this user may create or read: locks, folders and keys, and the user's cache folder.

A user who can write to a folder can create a pipe or a link with the name of a file that we are about to open. So
nothing here follows a link, waits for a pipe, or trusts a file of another user.

The cache is for files that are slow to create. A cached folder is complete or absent, never partial, even after
`kill -9`. Everything in it can be created again, so deleting it is always safe. It must not contain secrets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from maxbrod.errors import RefusedError, UsageError

_SAFELY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022


@contextmanager
def opened(path: Path, *, create: bool) -> Iterator[int]:
    """Yield a descriptor of a regular file of this user, created with mode 0600 if `create`.

    OSError if it cannot be opened. RefusedError if something else has that name, or another user owns the file.
    """
    try:
        descriptor = os.open(path, _SAFELY | (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY), 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink() or path.is_fifo() or path.is_socket():
            raise _refused("this is not a file, but has the name of one of ours", path) from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise _refused("this is not a file of this user, but has the name of one", path)
        yield descriptor
    finally:
        os.close(descriptor)


def private_opener(path: str, flags: int) -> int:
    """For `open(…, opener=private_opener)`: a file that is created can be read by this user alone.

    One that exists keeps its mode, which its owner has chosen, for example for a collector of logs.
    """
    return os.open(path, flags, 0o600)


def create_private(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file, durably. OSError if it cannot be written, FileExistsError if anything has that name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def create_pair(path: Path, private: bytes, public: bytes) -> Path:
    """Create the files of a key: `path`, mode 0600, and its public half, whose path is returned.

    RefusedError if either exists: nothing is replaced, since what the older key has made needs it.
    """
    public_path = path.with_name(f"{path.name}.pub")
    try:
        create_private(path, private)
        try:
            create_private(public_path, public, mode=0o644)
        except OSError:
            # Nobody has used it yet, and a key whose public half is missing or another one's would mislead.
            path.unlink()
            raise
    except FileExistsError as error:
        raise _refused(
            "there is a file already", Path(error.filename or path), "give another name, or move that file away"
        ) from error
    except OSError as error:
        raise UsageError(f"the key cannot be written: {error.strerror}", object_name=str(path)) from error
    return public_path


def make_private(folder: Path) -> None:
    """Create a folder with mode 0700. OSError if impossible, RefusedError if it exists and is not private.

    Its mode is not repaired: what others have put into it meanwhile would stay there, and be trusted.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(folder):
        raise _written_by_others(folder)


def refuse_foreign(folder: Path) -> None:
    """RefusedError if anything in this folder, or the folder itself, belongs to others or can be written by them.

    Root counts as oneself. The target of a link is not examined: whoever made the link has chosen it.
    """
    for path in (folder, *folder.rglob("*")):
        found = path.lstat()
        if not (stat.S_ISLNK(found.st_mode) and _is_own(found)) and not _is_private(found):
            raise _written_by_others(path, folder)


def is_private(folder: Path) -> bool:
    """True if only this user or root can create files there."""
    return _is_private(folder.stat())


def _is_private(found: os.stat_result) -> bool:
    return _is_own(found) and not found.st_mode & _OTHERS_WRITE


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid in {os.geteuid(), 0}


def refuse_readable_key(path: Path, found: os.stat_result) -> None:
    """RefusedError if anyone but its owner may read a private key. A group may read root's, as is usual on servers."""
    allowed = 0o040 if found.st_uid == 0 and os.geteuid() != 0 else 0
    if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS & ~allowed:
        raise RefusedError(
            f"others may read this private key (mode {stat.S_IMODE(found.st_mode):04o})",
            object_name=str(path),
            hint=f"chmod 600 {path}; if others could read it for long, create a new key",
        )


def _refused(what: str, path: Path, hint: str = "find out who created it, and remove it") -> RefusedError:
    return RefusedError(what, object_name=str(path), hint=hint)


def _written_by_others(path: Path, folder: Path | None = None) -> RefusedError:
    """The way out is for the whole folder: what has lost a part is not made again, and many parts may be like this."""
    folder = folder or path
    hint = f"remove {folder}, as it can be made again; or, if you trust all that is in it: chmod -R go-w {folder}"
    return _refused("others can write to this, or own it", path, hint)


def state_path() -> Path:
    """The folder of what must outlive a cache: `$XDG_STATE_HOME/maxbrod`, or that of the platform. May be missing."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "maxbrod"


def cache_dir() -> Path:
    """`$MAXBROD_CACHE`, or the platform's cache folder. Created if missing; OSError if that fails.

    RefusedError if others can write to it, because it holds classes and programs that are run: whatever they have put
    into it would run as this user.
    """
    folder = cache_path()
    make_private(folder)
    # Resolved, because a class archive is bound to the exact path of each jar.
    return folder.resolve()


def cache_path() -> Path:
    """The path of the cache folder, which may not exist."""
    if own := os.environ.get("MAXBROD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maxbrod"


def filled(name: str, fill: Callable[[Path], None]) -> Path:
    """The cached folder `name`, which `fill` creates the first time. One process fills it, the others wait.

    RefusedError if anything in it belongs to another user, or can be written by one.
    """
    folder = cache_dir() / name
    if not folder.is_dir():
        with _locked(folder.with_name(f"{name}.lock")):
            if not folder.is_dir():
                _fill(folder, fill)
    refuse_foreign(folder)
    return folder


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    # The lock makes this the only filler, so what exists was left by a killed one.
    for abandoned in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    # On the same file system as the result, or the rename would not be atomic.
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(building)
        building.chmod(0o755)
        # Installers and JVMs create files by the user's umask, which may let a group write.
        for path in building.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o7755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel releases the lock with the process, so a killed filler blocks nobody.
    with opened(path, create=True) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
