"""The command reference: Markdown pages and man pages, generated from the click commands and the declared options.

    model      reads the click commands of a program into plain values
    markdown   writes docs/reference/PROGRAM.md
    man        writes PROGRAM.1, and PROGRAM-COMMAND.1 for each command with its subcommands

`python -m cliref` writes all of them (`./scripts/docs` runs it). tests/unit/checkout/test_cli_reference.py compares
committed pages with the text that it would write.
"""
