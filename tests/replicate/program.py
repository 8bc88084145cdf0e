"""An ingress in a process of its own, to be killed, stopped and continued. Prints a line after each interval."""

from __future__ import annotations

import json
import sys

from maxbrod.config import Config
from maxbrod.replicate.ingress.run import Ingress


def main() -> None:
    config = Config.model_validate(json.loads(sys.argv[1]))
    with Ingress(config) as ingress:
        print("ready", flush=True)
        for line in sys.stdin:
            del line
            print(json.dumps(ingress.run().states), flush=True)


if __name__ == "__main__":
    main()
