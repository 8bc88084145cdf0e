"""`python -m maxbrod` is the command `maxbrod`."""

from maxbrod.cli.main import main

if __name__ == "__main__":
    main()
