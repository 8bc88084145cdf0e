"""Builds the command of a verb from the declaration of its options, and puts flags over the configuration file.

A flag overrides the file, and the file overrides the default. No flag takes a secret, because every user of a machine
can list the command lines of its processes: secrets come from the file or from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_type_hints

import typer
from typer.models import ArgumentInfo

from maxbrod.cli.log import logging_to
from maxbrod.cli.metrics import measuring
from maxbrod.cli.process import raising_interrupt
from maxbrod.cli.progress import progress_lines
from maxbrod.cli.traces import traced
from maxbrod.errors import UsageError, naming
from maxbrod.options import METRICS, OTHER_LAYOUTS, OUTPUT, SPARK, Declared, LogOptions, LookOptions, Options, declared

if TYPE_CHECKING:
    from pydantic import ValidationError

    from maxbrod.config import Config, KafkaConfig, LogConfig, StorageConfig

O_co = TypeVar("O_co", bound=Options, covariant=True)
O = TypeVar("O", bound=Options)  # noqa: E741 - of the options

_OFF: Final = "no_"
_TOPIC_WORDS: Final = frozenset({"topics", "topic"})
_TOPIC_FLAG: Final = "topic_flag"
_ARCHIVE_WORD: Final = "archive_word"
_LOOK_S: Final = 10.0
_LOOK_AT_BROKERS_S: Final = 30.0
"""A cluster with many partitions takes its time for each answer."""
_LOG_FLAGS: Final = ("verbose", "progress", "log_file", "log_format")
_LATE: Final = ("Compacted topics", OTHER_LAYOUTS, "Disks of a lost cluster", METRICS, SPARK, OUTPUT)
"""The panels of options that few calls need, which stand last in the help."""
_KEY: Final = re.compile(r"[a-z]+_[a-z_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[O_co]):
    """One call of a verb: its options, and the whole configuration, with flags over the file."""

    options: O_co
    config: Config
    given: Mapping[str, Any]
    """The values of flags and arguments, by the names of options."""

    @property
    def as_json(self) -> bool:
        return bool(self.given.get("json"))

    @property
    def quiet(self) -> bool:
        return bool(self.given.get("quiet"))

    @property
    def silent(self) -> bool:
        """No progress and no text for people."""
        return self.quiet or self.as_json

    @property
    def archive(self) -> str:
        return self.config.archive_url


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredVerb:
    """A verb as its command declares it: its section of the file, its options, and the function that takes a `Call`."""

    section: str
    model: type[Options]
    own: tuple[str, ...]
    run: Callable[..., None]


def command(
    section: str,
    model: type[O],
    *,
    before: Iterable[type[Options]] = (),
    after: Iterable[type[Options]] = (),
    without: Iterable[str] = (),
    looks: Callable[[Mapping[str, Any]], bool] | None = None,
    has_commands: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a function that takes a `Call` a command. Flags: those of `before`, of the verb, and of `after`.

    A verb with an archive and without words of its own takes the archive as a word, too, unless it `has_commands`,
    which are words themselves.
    `looks` says whether it only looks with the flags that are given, while somebody waits; by default, a verb with
    LookOptions does. Parameters of the function besides `call` become parameters of the command.
    """
    own = [option for option in declared(model) if option.name not in {*without}]
    shared = [[option for other in models for option in declared(other)] for models in (before, (*after, LogOptions))]
    flags = [*shared[0], *own, *shared[1]]
    flags.sort(key=lambda flag: _LATE.index(flag.option.panel) if flag.option.panel in _LATE else -1)
    only_looks = looks or (lambda _: LookOptions in {*before, *after})
    has_archive = any(flag.name == "archive" for flag in (*shared[0], *shared[1]))
    topic_word = next((flag for flag in own if flag.name in _TOPIC_WORDS and flag.option.argument), None)

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(run, include_extras=True)
        extra = {
            name: parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            for name, parameter in signature(run).parameters.items()
            if name != "call"
        }
        has_words = any(flag.option.argument for flag in own) or any(map(_is_word, extra.values()))

        def invoke(**words: Any) -> None:  # noqa: ANN401 - of any type
            others = {name: words.pop(name) for name in extra}
            given = {name: word for name, word in words.items() if word is not None and word != []}
            off = [name for name in given if name.startswith(_OFF)]
            given |= {name.removeprefix(_OFF): False for name in off if given.pop(name)}
            if topic_word is not None:
                given[topic_word.name] = [*given.get(topic_word.name, []), *given.pop(_TOPIC_FLAG, [])]
                _take_words(given, topic_word, archive_too=has_archive)
            elif _ARCHIVE_WORD in given and given.setdefault("archive", given[_ARCHIVE_WORD]) != given[_ARCHIVE_WORD]:
                raise UsageError("two archives are named", hint="name it once: as a word, or with --archive")
            call = call_of(section, [option.name for option in own], given, model, looking=only_looks(given))
            with (
                logging_to(call.config.log, verb=section, quiet=call.quiet or call.as_json),
                measuring(section, call.options, archive=call.config.archive),
                traced(section, archive=call.config.archive, topics=getattr(call.options, "topics", ())),
                progress_lines(shown=call.config.log.progress),
            ):
                run(call, **others)

        shown = (flag for flag in flags if flag.flags or flag.option.argument)
        parameters = [*extra.values(), *(parameter for flag in shown for parameter in _parameters(flag))]
        if topic_word is not None:
            # As with the verbs that have a flag for it. One spelling in the help is enough.
            parameters.append(_parameter(_TOPIC_FLAG, str, typer.Option("--topic", hidden=True), repeated=True))
        if has_archive and not has_words and not has_commands:
            word = typer.Argument(metavar="ARCHIVE", help="The archive, as --archive.", callback=_demand_place)
            parameters.append(_parameter(_ARCHIVE_WORD, str, word))
        invoke.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # where typer looks
        invoke.__annotations__ = {}
        invoke.__name__, invoke.__doc__, invoke.__module__ = run.__name__, _flowing(run), run.__module__
        invoke.verb = DeclaredVerb(  # type: ignore[attr-defined] # for callers that are no command line
            section=section, model=model, own=tuple(flag.name for flag in own), run=run
        )
        return invoke

    return decorate


def _take_words(given: dict[str, Any], word: Declared, *, archive_too: bool) -> None:
    """Let `maxbrod ls /backups/kafka orders` name the archive before topics. No name of a topic has a slash."""
    words = given.pop(word.name, [])
    if archive_too and words and "archive" not in given and is_place(words[0]):
        given["archive"], words = words[0], words[1:]
    if len(words) > 1 and not word.repeated:
        raise UsageError(f"{words[1]!r} is one word too many", hint="name one topic, and before it the archive")
    if words:
        given[word.name] = words if word.repeated else words[0]


def is_place(word: str) -> bool:
    """Return True if a word is a folder or a URL, and no topic, pattern or query."""
    # Between slashes is a regular expression, unless there is such a folder.
    expression = len(word) > 1 and word.startswith("/") and word.endswith("/")
    if re.search(r"\s", word) or expression or "/" not in word:
        return word in {".", ".."} or ("/" in word and Path(word).is_dir())
    return True


def _is_word(parameter: Parameter) -> bool:
    return any(isinstance(about, ArgumentInfo) for about in getattr(parameter.annotation, "__metadata__", ()))


def _demand_place(word: str | None) -> str | None:
    if word is not None and not is_place(word):
        # In the words of typer, so that it is answered as any other word too many: it may be meant for a topic.
        raise typer.BadParameter(f"Got unexpected extra argument ({word})")
    return word


def _flowing(run: Callable[..., None]) -> str | None:
    """The docstring, with each paragraph on one line: typer keeps line ends, which no terminal's width fits."""
    text = getdoc(run)
    return text and "\n\n".join(" ".join(paragraph.splitlines()) for paragraph in text.split("\n\n"))


def logged(run: Callable[..., None], verb: str) -> Callable[..., None]:
    """A command that reads no configuration file, with the options of the log."""
    hints = get_type_hints(run, include_extras=True)
    own = [word.replace(annotation=hints[name]) for name, word in signature(run).parameters.items()]
    log = [
        parameter
        for option in declared(LogOptions)
        for parameter in _parameters(option)
        if not parameter.name.startswith(_OFF)
    ]

    def invoke(**words: Any) -> None:  # noqa: ANN401 - of any type
        from maxbrod.config import LogConfig  # noqa: PLC0415 - not for `--help`

        given = {flag.name.removeprefix("log_"): words.pop(flag.name) for flag in log}
        config = _with_log(LogConfig(), {name: word for name, word in given.items() if word is not None})
        with (
            raising_interrupt(),
            logging_to(config, verb=verb, quiet=bool(words.get("as_json"))),
            progress_lines(shown=config.progress),
        ):
            run(**words)

    invoke.__signature__ = Signature([*own, *log])  # type: ignore[attr-defined] # where typer looks
    invoke.__annotations__ = {}
    invoke.__name__, invoke.__doc__, invoke.__module__ = run.__name__, _flowing(run), run.__module__
    return invoke


def with_log(app: typer.Typer, verb: str) -> typer.Typer:
    """The commands of a group, each with the options of the log."""
    for command in app.registered_commands:
        if command.callback is not None:
            name = command.name or command.callback.__name__.strip("_").replace("_", "-")
            command.callback = logged(command.callback, f"{verb} {name}")
    return app


def _parameters(flag: Declared) -> list[Parameter]:
    about = flag.option
    # What is read from text, such as 64MiB, is text to typer.
    kind = flag.type if flag.type in {bool, int, Path} and flag.reads is None else str
    kind = Path if flag.repeated and "Path" in str(flag.type) else kind
    # Without a word of ours typer shows a type, and "--json <bool>" reads as if a value had to follow.
    word = about.metavar or ("" if kind is bool else None)
    # Bounds are checked with the type, alike for flags and the file.
    shared: dict[str, Any] = {"metavar": word, "help": flag.whole_help, "show_default": False}
    if about.argument:
        words = flag.repeated or flag.name in _TOPIC_WORDS
        return [_parameter(flag.name, kind, typer.Argument(**shared), repeated=words)]
    names = list(flag.flags)
    negative = f"--no-{names[0].removeprefix('--')}" if kind is bool and about.setting is not None else None
    if negative is not None and flag.default is not False:
        names[0], negative = f"{names[0]}/{negative}", None
    info = typer.Option(*names, rich_help_panel=about.panel, **shared)
    found = [_parameter(flag.name, kind, info, repeated=flag.repeated)]
    if negative is not None:
        # What the file turns on, the command line can turn off. The help of every switch need not say so.
        found.append(_parameter(f"{_OFF}{flag.name}", bool, typer.Option(negative, hidden=True)))
    return found


def _parameter(name: str, kind: Any, info: Any, *, repeated: bool = False) -> Parameter:  # noqa: ANN401 - typer's own
    annotation: Any = list[kind] | None if repeated else kind | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, info])


def call_of(
    section: str,
    own: Iterable[str],
    given: Mapping[str, Any],
    model: type[Options] = Options,
    *,
    looking: bool = False,
) -> Call[Any]:
    """Lay flags over the file. A verb need not have a section there. UsageError: a flag or the file is wrong.

    A verb that is `looking` soon gives up what does not answer, unless the file says how long to wait.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - not for `--help`

    from maxbrod.config import Config, find_config, lay_over, load_config  # noqa: PLC0415

    found = find_config(given.get("config"))
    config = Config() if found is None else load_config(found[1])
    if looking and "deadline_s" not in config.storage.model_fields_set:
        config = config.model_copy(update={"storage": _waiting(config.storage, _LOOK_S)})
    if looking and "patience" not in config.model_fields_set:
        config = config.model_copy(update={"patience": _LOOK_AT_BROKERS_S})
    mine = {name: given[name] for name in own if name in given}
    options = getattr(config, section) if section in Config.model_fields else model()
    try:
        config = _with_shared(config, given)
        options = lay_over(options, mine) if mine else options
    except ValidationError as error:
        raise _usage_error(error, section, model) from None
    if section in Config.model_fields:
        config = config.model_copy(update={section: options})
    return Call(options=options, config=config, given=given)


def _with_shared(config: Config, given: Mapping[str, Any]) -> Config:
    from pydantic import TypeAdapter  # noqa: PLC0415 - not for `--help`

    from maxbrod.config import ARCHIVE_VARIABLE  # noqa: PLC0415
    from maxbrod.option_values import Seconds  # noqa: PLC0415

    changed: dict[str, Any] = {"archive": os.environ[ARCHIVE_VARIABLE]} if os.environ.get(ARCHIVE_VARIABLE) else {}
    changed |= {name: given[name] for name in ("archive", "layout") if name in given}
    if "patience" in given:
        try:
            patience_s = TypeAdapter(Seconds).validate_python(given["patience"])
        except ValueError:
            raise UsageError("--patience is not a time such as 60s, 5m or 1h", hint="see --help") from None
        config = config.model_copy(update={"patience": patience_s, "storage": _waiting(config.storage, patience_s)})
    spark = {name: given[name] for name in ("engine", "master") if name in given}
    if spark.get("engine", "auto") not in {"auto", "spark", "local"}:
        raise UsageError("--engine is none of auto, spark and local", hint="see --help")
    if spark:
        changed["spark"] = config.spark.model_copy(update=spark)
    log = {name.removeprefix("log_"): given[name] for name in _LOG_FLAGS if name in given}
    if log:
        changed["log"] = _with_log(config.log, log)
    s3 = {name.removeprefix("s3_"): value for name, value in given.items() if name.startswith("s3_")}
    if s3:
        changed["storage"] = _with_s3(config.storage, s3)
    for flag, section in (("archive_key", "encryption"), ("signing_key", "signing")):
        if flag in given:
            storage = changed.get("storage", config.storage)
            keys = getattr(storage, section).model_copy(update={"key_file": given[flag]})
            changed["storage"] = storage.model_copy(update={section: keys})
    if "bootstrap" in given or "command_config" in given:
        changed["kafka"] = kafka_of(config.kafka, given.get("bootstrap"), given.get("command_config"))
    return config.model_copy(update=changed)


def _waiting(storage: StorageConfig, seconds: float) -> StorageConfig:
    """The same store, given up after so many seconds. A request that gets no answer ends then, too."""
    timeout_s = min(storage.request_timeout_s, max(seconds, 1.0))
    return storage.model_copy(update={"deadline_s": seconds, "request_timeout_s": timeout_s})


def _with_s3(storage: StorageConfig, given: Mapping[str, Any]) -> StorageConfig:
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    from maxbrod.config import S3Config, complaints  # noqa: PLC0415

    try:
        section = S3Config.model_validate({**storage.s3.model_dump(), **given})
    except ValidationError as error:
        raise UsageError(f"the S3 options contradict each other: {complaints(error, S3Config)}") from None
    return storage.model_copy(update={"s3": section})


def _with_log(section: LogConfig, given: Mapping[str, Any]) -> LogConfig:
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    try:
        return type(section).model_validate({**section.model_dump(), **given})
    except ValidationError:
        raise UsageError("--log-format is neither text nor json", hint="see --help") from None


def kafka_of(section: KafkaConfig | None, bootstrap: str | None, properties: Path | None) -> KafkaConfig | None:
    """The connection of the file with what flags say. Client properties replace it, but for the brokers."""
    from maxbrod.config import from_java_properties, kafka_config  # noqa: PLC0415 - as above
    from maxbrod.java_properties import load_properties  # noqa: PLC0415

    if properties is None:
        return kafka_config(section, None, bootstrap)
    loaded = load_properties(properties)
    known = bootstrap or (section.bootstrap if section is not None else None)
    with naming(str(properties)):
        return from_java_properties({**loaded, **({} if known is None else {"bootstrap.servers": known})})


def _usage_error(error: ValidationError, section: str, model: type[Options]) -> UsageError:
    flags = {option.name: _flag(option) for option in declared(model)}
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    if first["loc"]:
        message = f"{flags.get(str(first['loc'][0]), first['loc'][0])} {message}"
    else:
        # About several options, which the message names as the file does.
        message = _KEY.sub(lambda found: flags.get(found[0], found[0]), message)
    return UsageError(message, hint=f"see 'maxbrod {section} --help'")


def _flag(option: Declared) -> str:
    return option.flags[0] if option.flags else (option.option.metavar or option.name)
