"""`python -m tests.chaos --kills 200`: the long run, for as many faults as wanted."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from monitor.stack import KafkaBroker
from tests.chaos.lab import SHORT_LIVES, Lab
from tests.chaos.run import Chaos, assert_exactly_once, assert_same_verdicts, rerun, traffic


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=200, help="kill -9 in all; pauses and leaves come on top"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--faults-between-checks", type=int, default=25)
    args = parser.parse_args()
    left, round_ = args.kills, 0
    with KafkaBroker() as broker, tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        while left > 0:
            round_ += 1
            lab = Lab(broker.bootstrap, f"chaos-{round_}", Path(folder), SHORT_LIVES)
            lab.make_input()
            chaos = Chaos(lab, seed=args.seed + round_)
            load = traffic(lab, args.seed + round_)
            try:
                chaos.start()
                while chaos.kills() < min(left, args.faults_between_checks):
                    chaos.random_fault()
                    time.sleep(1.0)
                load.end()
                chaos.settle()
                counts = assert_exactly_once(lab)
                counts["compared with a clean run"] = assert_same_verdicts(lab, rerun(lab))
            finally:
                lab.kill_workers()
            left -= chaos.kills()
            print(f"round {round_} (seed {chaos.seed}): {counts}; {dict(chaos.done)}", flush=True)


if __name__ == "__main__":
    main()
