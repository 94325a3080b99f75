"""docs/cli.md says what `stripefs` does."""

import re
from pathlib import Path
from typing import get_args

from stripefs import errors
from stripefs.cli import mount_helper
from stripefs.cli.border import INTERRUPTED
from stripefs.cli.main import COMMANDS
from stripefs.cli.mount_options import expand
from stripefs.cli.verdict import Limit
from stripefs.config import OPTIONS, Option, resolve

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "cli.md").read_text().split("\n# The command imagefs\n")[0]


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def row(option: Option) -> str:
    switch = f"--{option.name}|--{option.opposite}" if option.opposite else f"--[no-]{option.name}"
    flag = (switch if option.is_switch else f"--{option.name} {option.metavar}").replace("|", r"\|")
    default = option.default_in_words or "none"
    return f"| `{flag}` | `{option.variable}` | `{option.section}.{option.name}` | {default} | {option.help} |"


def test_the_table_of_options_is_the_one_of_the_code() -> None:
    rows = [line for line in section("Options of mount").splitlines() if line.startswith("| `--")]
    assert rows == [row(option) for option in OPTIONS]


def test_every_command_is_in_the_first_table() -> None:
    assert set(re.findall(r"^\| `stripefs (\w+)", TEXT, re.MULTILINE)) == set(COMMANDS)


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    file = tmp_path / "stripefs.toml"
    file.write_text(example.replace("/etc/hadoop/conf", str(tmp_path)))
    assert resolve({}, config=str(file), environ={}).read.memory == 4 << 30


def test_the_example_line_of_fstab_is_accepted() -> None:
    (line,) = re.findall(r"^    hdfs://\S+ +\S+ +stripefs +(\S+) ", TEXT, re.MULTILINE)
    assert set(expand([line]).given) == {"hdfs-user", "memory"}


def test_words_of_o_that_the_document_names_are_accepted() -> None:
    paragraph = TEXT.split("Also understood there:")[1].split("Anything else")[0]
    words = [word for word in re.findall(r"`([^`]+)`", paragraph) if not word.endswith(("…", "="))]
    assert len(words) > 15
    expand(words)


def codes(title: str) -> set[int]:
    table = section("Errors and exit codes").split(f"| code | `{title}` |")[1].split("\n\n")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def test_the_exit_codes_of_the_command() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert codes("stripefs") == {0, 1, INTERRUPTED} | {each.exit_code for each in classes}


def test_the_exit_codes_of_the_helper() -> None:
    raised = [errors.ConfigError("a"), OSError(), ValueError(), KeyboardInterrupt(), errors.MountError("b")]
    assert codes("mount.stripefs") == {0, *map(mount_helper.exit_code, raised)}


def test_the_limits_of_probe() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("probe"), re.MULTILINE)
    assert rows == ["limit", *get_args(Limit)]
