"""`maxbrod bench`: measurements that anyone can repeat, as ratios within one run."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure maxbrod against something anyone can run beside it.", no_args_is_help=True)
