"""`maxbrod sandbox`: a real Kafka cluster in a box."""

from __future__ import annotations

import typer

app = typer.Typer(help="A real Kafka cluster in a box, on loopback.", no_args_is_help=True)
