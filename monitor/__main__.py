"""``python -m monitor`` is ``monitor``."""

from monitor.cli.main import main

main()
