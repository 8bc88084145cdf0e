"""What encryption costs: the same backup and the same restore, with keys and without."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from maxbrod.config import Config, EncryptionConfig, StorageConfig
from maxbrod.storage.sealing.identity import new_identity
from maxbrod_bench.race import Figure, Lap, share
from maxbrod_bench.stage import B_RECORDS, Load, Stage, open_stage


def measure_encryption(scale: float, rounds: int) -> list[Figure]:
    with open_stage(scale=scale, rounds=rounds) as stage:
        return race_encryption(stage)


def race_encryption(stage: Stage) -> list[Figure]:
    """Data B. Under 25 % of the throughput may be lost: 1.33 times the time."""
    load = stage.write("bench-sealed", B_RECORDS, json=True)
    keys = EncryptionConfig(secret_key=SecretStr(new_identity().private_text))
    plain = _config(stage, load, stage.disk / "plain", EncryptionConfig())
    sealed = _config(stage, load, stage.disk / "sealed", keys)
    laps = stage.race(
        {
            "backup": partial(_back_up, stage, load, plain),
            "sealed backup": partial(_back_up, stage, load, sealed),
            "restore": partial(stage.time_restore, plain, load),
            "sealed restore": partial(stage.time_restore, sealed, load),
        }
    )
    return [
        share("B, encrypted backup, time over a plain one", laps["sealed backup"], laps["backup"], wanted=1.33),
        share("B, encrypted restore, time over a plain one", laps["sealed restore"], laps["restore"], wanted=1.33),
    ]


def _config(stage: Stage, load: Load, archive: Path, keys: EncryptionConfig) -> Config:
    return stage.config(load.topic, archive).model_copy(update={"storage": StorageConfig(encryption=keys)})


def _back_up(stage: Stage, load: Load, config: Config) -> Lap:
    shutil.rmtree(config.archive_url, ignore_errors=True)
    return stage.time(lambda: stage.run_backup(config, records=load.records))
