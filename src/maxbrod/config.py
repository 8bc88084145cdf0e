"""The configuration file: reads YAML, substitutes `${ENV}`, validates, and lays flags and arguments over it.

Connections are declared here. Each verb's section is declared in the verb's own `options.py`; the file can set every
option that a flag sets. Secrets are `SecretStr` from the moment they are read: no repr, error or dump shows them.
A mistake in the file is a UsageError that names the file and the key, never the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from maxbrod.backup.options import BackupOptions
from maxbrod.check.options import CheckOptions
from maxbrod.compact.options import CompactOptions
from maxbrod.compare.options import CompareOptions
from maxbrod.convert.options import ConvertOptions
from maxbrod.copy.options import CopyOptions
from maxbrod.drill.options import DrillOptions
from maxbrod.erase.options import EraseOptions
from maxbrod.errors import RefusedError, UsageError, naming
from maxbrod.evidence.options import EvidenceOptions
from maxbrod.groups.options import GroupsOptions
from maxbrod.hold.options import HoldOptions
from maxbrod.inspect.options import GcOptions, LsOptions, ShowOptions, StatusOptions
from maxbrod.kafka_section import KafkaConfig as KafkaConfig  # noqa: PLC0414 - offered here, as all sections are
from maxbrod.kafka_section import SaslConfig as SaslConfig  # noqa: PLC0414
from maxbrod.kafka_section import TlsConfig as TlsConfig  # noqa: PLC0414
from maxbrod.kafka_section import from_java_properties as from_java_properties  # noqa: PLC0414
from maxbrod.key.options import KeyOptions
from maxbrod.lock.options import LockOptions
from maxbrod.mount.options import MountOptions
from maxbrod.option_values import Seconds, Words
from maxbrod.options import Options, declared
from maxbrod.private_files import is_private
from maxbrod.prune.options import PruneOptions
from maxbrod.query.options import QueryOptions
from maxbrod.repair.options import RepairOptions
from maxbrod.replicate.options import EgressTreeOptions, IngressTreeOptions, ReplicateOptions
from maxbrod.restore.options import RestoreOptions
from maxbrod.schedule.options import RunOptions
from maxbrod.sections import JobConfig, MessagesConfig, SectionModel, demand_names, key, known_keys, suggestion
from maxbrod.serve.options import ServeOptions
from maxbrod.state.options import StateOptions

S3StorageClass = Literal["STANDARD", "STANDARD_IA", "GLACIER_IR", "GLACIER"]
S3Encryption = Literal["AES256", "aws:kms", "aws:kms:dsse", "sse-c"]

CONFIG_FILE: Final = "maxbrod.yaml"
CONFIG_VARIABLE: Final = "MAXBROD_CONFIG"
ARCHIVE_VARIABLE: Final = "MAXBROD_ARCHIVE"
_KEY_VARIABLES: Final = {
    "secret_key": "MAXBROD_KEY",
    "key_file": "MAXBROD_KEY_FILE",
    "passphrase": "MAXBROD_PASSPHRASE",
    "passphrase_file": "MAXBROD_PASSPHRASE_FILE",
}
_CALL: Final = "call maxbrod.{}"
_SHARED: Final = frozenset({"layout", "patience"})
"""What the Python functions take besides the options of their verb."""
VARIABLE: Final = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})")


class S3Config(SectionModel):
    """Settings for `s3://`. Defaults come from the usual `AWS_*` variables, or from the machine's role."""

    endpoint: str | None = key("A server other than Amazon's.")
    region: str | None = key("The region.")
    path_style: bool = key("Put the bucket into the path, not into the host name.", default=True)
    access_key_id: SecretStr | None = key("The access key. Needs secret_access_key.")
    secret_access_key: SecretStr | None = key("The secret of the access key.")
    session_token: SecretStr | None = key("The session token of temporary credentials.")
    storage_class: S3StorageClass | None = key("The storage class of new objects.")
    encryption: S3Encryption | None = key("Server-side encryption of new objects.")
    kms_key_id: str | None = key("The KMS key, for aws:kms and aws:kms:dsse.")
    bucket_key: bool | None = key("Use an S3 bucket key, for aws:kms and aws:kms:dsse.")
    customer_key: SecretStr | None = key(
        "The key for sse-c: 256 bits in base64. Without this key the archive cannot be read."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_encryption_context(cls, values: object) -> object:
        if isinstance(values, dict) and "encryption_context" in values:
            raise ValueError("the S3 client cannot send an encryption context; use a KMS key that needs none")
        return values

    @model_validator(mode="after")
    def _keys(self) -> S3Config:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        return self

    @model_validator(mode="after")
    def _encryption(self) -> S3Config:
        kms = self.encryption in {"aws:kms", "aws:kms:dsse"}
        if not kms and (self.kms_key_id is not None or self.bucket_key is not None):
            raise ValueError("kms_key_id and bucket_key need encryption aws:kms or aws:kms:dsse")
        if (self.encryption == "sse-c") != (self.customer_key is not None):
            raise ValueError("encryption sse-c and customer_key belong together")
        return self


class GcsConfig(SectionModel):
    """Settings for `gs://`. Defaults come from GOOGLE_APPLICATION_CREDENTIALS, or from the machine's account."""

    credentials_file: Path | None = key("A key file of a service account, or of a user (gcloud's own).")
    endpoint: str | None = key("A server other than https://storage.googleapis.com that serves its XML API.")


class AzureConfig(SectionModel):
    """Settings for `az://`. Defaults come from the usual `AZURE_*` variables, or from the machine's identity."""

    account: str | None = key("The storage account.")
    account_key: SecretStr | None = key("The key of the account.")
    sas_token: SecretStr | None = key("A shared access signature, instead of the key.")
    endpoint: str | None = key("The account's blob service, if not https://ACCOUNT.blob.core.windows.net.")


class EncryptionConfig(SectionModel):
    """The keys of an encrypted archive. A new archive is encrypted for all that is given; any one of them opens it.

    If nothing is given here, `MAXBROD_KEY`, `MAXBROD_KEY_FILE`, `MAXBROD_PASSPHRASE` and `MAXBROD_PASSPHRASE_FILE` of
    the environment are.
    """

    key_file: Path | None = key("A file with a key that 'maxbrod key create' has made: a private or a public one.")
    secret_key: SecretStr | None = key("The key itself, such as ${MAXBROD_KEY}.")
    public_keys: Words = Field(
        default=(), description="Public keys. With these alone a host backs up, and can read no record."
    )
    passphrase: SecretStr | None = key("A passphrase of at least 12 letters.")
    passphrase_file: Path | None = key("A file with the passphrase.")
    kms_key: str | None = key("A key of Amazon's KMS: its id, ARN or alias. Needs maxbrod[aws].")
    kms_region: str | None = key("The region of KMS. By default AWS_REGION.")
    kms_endpoint: str | None = key("A server other than Amazon's that serves KMS.")
    command: Words = Field(
        default=(), description="A program that wraps and unwraps a key: called with wrap or unwrap, and the label."
    )

    @property
    def given(self) -> bool:
        """True if there is a key of any kind."""
        return any(
            (
                self.key_file,
                self.secret_key,
                self.public_keys,
                self.passphrase,
                self.passphrase_file,
                self.kms_key,
                self.command,
            )
        )

    @classmethod
    def of_environment(cls) -> EncryptionConfig:
        found = {name: os.environ.get(variable) for name, variable in _KEY_VARIABLES.items()}
        return cls.model_validate({name: value for name, value in found.items() if value})


class SigningConfig(SectionModel):
    """The key that signs every commit to the catalog. It is kept outside the archive."""

    key_file: Path | None = key("An Ed25519 private key in PEM form, which signs every commit; see --signing-key.")
    trusted_keys: tuple[Path, ...] = key(
        "Public keys that have signed earlier commits: those of former keys, and of other writers.", default=()
    )


class StorageConfig(SectionModel):
    """How to reach the storage of an archive, beyond its URL, and how long to retry."""

    s3: S3Config = S3Config()
    gcs: GcsConfig = GcsConfig()
    azure: AzureConfig = AzureConfig()
    encryption: EncryptionConfig = Field(default_factory=EncryptionConfig.of_environment)
    signing: SigningConfig = SigningConfig()
    create_only: bool = key(
        "Create objects, and neither overwrite nor delete one. For a writer that may do neither: every put is "
        "conditional, also the end of an upload in parts to S3. What should be deleted stays behind.",
        default=False,
    )
    lock: Annotated[
        Seconds | None,
        Field(description="In S3: lock every new object for this long, such as 30d (Object Lock)."),
    ] = None
    lock_mode: Literal["governance", "compliance"] = key(
        "The mode of these locks. compliance: nobody can end one, not even the owner of the account.",
        default="governance",
    )
    shared: bool = key("In a directory: give other users the access that the umask allows.", default=False)
    ca_file: Path | None = key("Authorities in PEM form to trust in addition to those of the system.")
    request_timeout_s: float = key("Seconds for one request, from connecting to its last byte.", default=60.0, gt=0)
    deadline_s: float = key(
        "Seconds for one operation with all its retries. A request in progress then still has its own timeout.",
        default=180.0,
        ge=0,
    )


class RegistryConfig(SectionModel):
    """How to log in to a schema registry, and its TLS. The URL is the option schema_registry of a verb."""

    username: str | None = key("The user name. Needs password.")
    password: SecretStr | None = key("The password, or the secret of an API key.")
    token: SecretStr | None = key("A bearer token, instead of user name and password. It is used until it expires.")
    tls: TlsConfig = TlsConfig()

    @model_validator(mode="after")
    def _login(self) -> RegistryConfig:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.token is not None and self.username is not None:
            raise ValueError("a registry takes a token, or username and password, not both")
        return self


class SparkConfig(SectionModel):
    """Where the work runs. On this machine by default."""

    engine: Literal["auto", "spark", "local"] = key(
        "auto: small work is done without Spark, unless its master is a cluster. spark: "
        "everything runs on Spark. local: without Spark, whatever the size.",
        default="auto",
    )
    master: str = key("local[*] (this machine), spark://…, yarn, k8s://… or sc://…", default="local[*]")
    conf: dict[str, str] = Field(default_factory=dict, description="Settings of Spark.")


class LogConfig(SectionModel):
    """What is logged besides the output of a verb, and where. Every line has the id of its run."""

    verbose: bool = key("Print each step to standard error.", default=False)
    progress: bool = key("Print the progress to standard error as JSON, a line each second.", default=False)
    file: Path | None = key("Append each step, warning and error to this file. A rotated file is opened again.")
    format: Literal["text", "json"] = key("How lines are written, on standard error too.", default="text")


class Config(SectionModel):
    """A whole configuration file: what all verbs share, and a section for each verb."""

    # Workers import this module for the connections alone; building the validator of all sections takes 60 ms.
    model_config = ConfigDict(defer_build=True)

    archive: str | None = Field(default=None, description="The archive: a folder, s3://bucket/prefix, gs://… or az://…")
    layout: str | None = Field(
        default=None, description="The archive's layout: kafka (maxbrod's own), kbak, kbs, binlog, avro or parquet."
    )
    patience: Annotated[Seconds, Field(description="How long to wait for an unavailable broker.")] = 120.0
    kafka: KafkaConfig | None = None
    storage: StorageConfig = Field(default_factory=StorageConfig)
    registry: RegistryConfig = RegistryConfig()
    spark: SparkConfig = SparkConfig()
    log: LogConfig = LogConfig()
    backup: BackupOptions = BackupOptions()
    restore: RestoreOptions = RestoreOptions()
    mount: MountOptions = MountOptions()
    groups: GroupsOptions = GroupsOptions()
    compare: CompareOptions = CompareOptions()
    drill: DrillOptions = DrillOptions()
    evidence: EvidenceOptions = EvidenceOptions()
    status: StatusOptions = StatusOptions()
    ls: LsOptions = LsOptions()
    show: ShowOptions = ShowOptions()
    state: StateOptions = StateOptions()
    check: CheckOptions = CheckOptions()
    query: QueryOptions = QueryOptions()
    convert: ConvertOptions = ConvertOptions()
    copies: CopyOptions = CopyOptions()
    compact: CompactOptions = CompactOptions()
    erase: EraseOptions = EraseOptions()
    gc: GcOptions = GcOptions()
    prune: PruneOptions = PruneOptions()
    hold: HoldOptions = HoldOptions()
    key: KeyOptions = KeyOptions()
    lock: LockOptions = LockOptions()
    repair: RepairOptions = RepairOptions()
    run: RunOptions = RunOptions()
    jobs: Annotated[dict[str, JobConfig], AfterValidator(demand_names)] = Field(
        default_factory=dict, description="The jobs of `maxbrod run`, by name; see below."
    )
    clusters: dict[str, KafkaConfig] = Field(
        default_factory=dict, description="Further clusters that jobs can name. Each has the keys of kafka."
    )
    messages: MessagesConfig = MessagesConfig()
    serve: ServeOptions = ServeOptions()
    replicate: ReplicateOptions = ReplicateOptions()
    egress_tree: EgressTreeOptions = EgressTreeOptions()
    ingress_tree: IngressTreeOptions = IngressTreeOptions()

    @model_validator(mode="before")
    @classmethod
    def _patience_of_backup(cls, values: object) -> object:
        # Earlier releases had it in the section of backup, though all verbs that use a cluster obey it.
        section = values.get("backup") if isinstance(values, dict) else None
        if not isinstance(values, dict) or not isinstance(section, dict) or "patience" not in section:
            return values
        rest = {name: value for name, value in section.items() if name != "patience"}
        return {"patience": section["patience"], **values, "backup": rest}

    @property
    def archive_url(self) -> str:
        """The archive. UsageError: none is named."""
        if self.archive is None:
            hint = "give --archive URL, or write a configuration file with 'maxbrod init'"
            raise UsageError("no archive is named", hint=hint)
        return self.archive

    @property
    def cluster(self) -> KafkaConfig:
        """The connection to the cluster. UsageError: none is named."""
        if self.kafka is None:
            hint = "give --bootstrap HOST:PORT, or write a configuration file with 'maxbrod init'"
            raise UsageError("no cluster is named", hint=hint)
        return self.kafka


def find_config(given: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, Path] | None:
    """Return who names the configuration file, and the file: the flag, a variable, this folder, the user's folder.

    A variable that is empty means that there is none. RefusedError: others can write to the file that was found.
    """
    if given is not None:
        return "--config", given
    if (named := environ.get(CONFIG_VARIABLE)) is not None:
        return (CONFIG_VARIABLE, Path(named)) if named else None
    own = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "maxbrod" / CONFIG_FILE
    for name, file in ("this folder", Path(CONFIG_FILE)), ("the user's folder", own):
        if file.is_file():
            # Nobody has named it: in a shared folder, another user may have put it there.
            if not is_private(file):
                raise RefusedError(
                    "others can write to this configuration file, or own it, and it was not named but found",
                    object_name=str(file),
                    hint=f"name it with --config {file}, if it is meant; or set {CONFIG_VARIABLE} to nothing",
                )
            return name, file
    return None


def load_config(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read one file. UsageError names the file and the wrong key."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the configuration cannot be read: {error.strerror}", object_name=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration is not YAML: {_where(error)}", object_name=str(path)) from None
    try:
        with naming(str(path)):
            return Config.model_validate(_expand(document if document is not None else {}, environ))
    except ValidationError as error:
        raise UsageError(f"the configuration is wrong: {complaints(error)}", object_name=str(path)) from None
    except KeyError as error:
        raise UsageError(
            f"the configuration needs the environment variable {error.args[0]}, which is not set",
            object_name=str(path),
            hint=f"set it, or write ${{{error.args[0]}:-a default}}; $$ stands for a plain $",
        ) from None


def _expand(node: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401 - any YAML
    """Substitute variables after parsing, so that no value can change the structure of the document."""
    if isinstance(node, str):
        return VARIABLE.sub(lambda match: _value(match, environ), node)
    if isinstance(node, dict):
        # YAML takes the key `yes`, which restore has, for the truth value.
        return {"yes" if key is True else key: _expand(value, environ) for key, value in node.items()}
    if isinstance(node, list):
        return [_expand(value, environ) for value in node]
    return node


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    name = match["name"]
    if name is None:
        return "$"
    if name in environ:
        return environ[name]
    if match["default"] is None:
        raise KeyError(name)
    return match["default"]


def _where(error: Exception) -> str:
    # Only the position: a YAML error quotes the line, which may contain a secret.
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "its text cannot be parsed"


def complaints(error: ValidationError, model: Any = None) -> str:  # noqa: ANN401 - a model or a dataclass
    """Each mistake with its key; for an unknown key the nearest known one. No value is repeated: it may be a secret."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the file'}: {_complaint(one, model)}" for one in found)


_NO_SECTION: Final = frozenset({"model_type", "model_attributes_type", "dataclass_type", "dataclass_exact_type"})


def _complaint(complaint: Any, model: Any) -> str:  # noqa: ANN401 - pydantic's own dictionary
    if complaint["type"] in _NO_SECTION:
        return "this is a section, in which lines such as 'name: value' are expected"
    if complaint["type"] not in {"extra_forbidden", "unexpected_keyword_argument"}:
        return str(complaint["msg"]).removeprefix("Value error, ")
    *place, name = complaint["loc"]
    return f"unknown{suggestion(str(name), known_keys(Config if model is None else model, place))}"


OptionsType = TypeVar("OptionsType", bound=Options)


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a declaration of options
    return TypeAdapter(model)


def lay_over(options: OptionsType, given: Mapping[str, Any]) -> OptionsType:
    """The options with those given instead. Raises pydantic's ValidationError."""
    model: Any = type(options)
    changed: OptionsType = _adapter(model).validate_python({**vars(options), **given})
    return changed


def kafka_config(
    base: KafkaConfig | None, given: KafkaConfig | Mapping[str, str] | None, bootstrap: str | None
) -> KafkaConfig | None:
    """The connection, and instead of its brokers `bootstrap`."""
    if given is not None and not isinstance(given, KafkaConfig):
        given = from_java_properties({**given, **({} if bootstrap is None else {"bootstrap.servers": bootstrap})})
    found = given or base
    if bootstrap is None:
        return found
    return KafkaConfig(bootstrap=bootstrap) if found is None else found.model_copy(update={"bootstrap": bootstrap})


def config_with(
    config: Config | Path | str | None,
    section: str,
    given: Mapping[str, Any],
    *,
    archive: str | Path | None = None,
    bootstrap: str | None = None,
    kafka: KafkaConfig | Mapping[str, str] | None = None,
    storage: StorageConfig | None = None,
) -> Config:
    """The configuration of a Python call: arguments over the file. `given` are options of the verb, and shared ones."""
    base = config if isinstance(config, Config) else Config() if config is None else load_config(Path(config))
    before = getattr(base, section)
    obeyed = {known.name for known in declared(type(before)) if known.option.python}
    unknown = next((name for name in given if name not in obeyed | _SHARED), None)
    if unknown is not None:
        message = f"{section} has no option {unknown}{suggestion(unknown, obeyed | _SHARED)}"
        raise UsageError(message, operation=_CALL.format(section))
    for known in declared(type(before)):
        # Else a program would do what its file says not to, such as restore where the file says dry_run.
        if not known.option.python and known.name != "yes" and getattr(before, known.name) != known.default:
            message = f"{section}.{known.name} of the configuration is for the command line only"
            raise UsageError(message, operation=_CALL.format(section), hint=f"use 'maxbrod {section}', or remove it")
    changed = {
        "archive": str(archive) if archive is not None else base.archive,
        "kafka": kafka_config(base.kafka, kafka, bootstrap),
        "storage": storage or base.storage,
    }
    try:
        changed |= _shared_values({name: value for name, value in given.items() if name in _SHARED})
        changed[section] = lay_over(before, {name: value for name, value in given.items() if name in obeyed})
    except ValidationError as error:
        message = f"an argument is wrong: {complaints(error, type(before))}"
        raise UsageError(message, operation=_CALL.format(section)) from None
    return base.model_copy(update=changed)


def _shared_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Validated by themselves: a configuration without a section for each verb."""
    return {name: getattr(Config.model_validate(dict(given)), name) for name in given}
