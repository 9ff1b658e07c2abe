"""``python -m mapping_core`` is the `mapping` command."""

from mapping_core.cli import main

if __name__ == "__main__":
    main(prog_name="mapping")
