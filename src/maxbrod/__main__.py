"""The command `maxbrod`, and `python -m maxbrod`."""

import signal


def main() -> None:
    # The first second is for imports, and Ctrl-C would raise KeyboardInterrupt in one of them: a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from maxbrod.cli.main import main as run  # noqa: PLC0415 - see above

    run()


if __name__ == "__main__":
    main()
