"""docs/cli.md and docs/config.md agree with `stripefs`."""

import re
from pathlib import Path
from typing import get_args

from stripefs import errors
from stripefs.cli import mount_helper
from stripefs.cli.bottleneck import Limit
from stripefs.cli.mounting import expand
from stripefs.cli.output import INTERRUPTED
from stripefs.config import resolve
from tests.support.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
TEXT = (DOCS / "cli.md").read_text()
CONFIG = (DOCS / "config.md").read_text().split("\n## stripefs\n")[1].split("\n## imagefs\n")[0]


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", CONFIG, re.DOTALL)
    file = tmp_path / "stripefs.toml"
    file.write_text(example.replace("/etc/hadoop/conf", str(tmp_path)))
    assert resolve({}, config=str(file), environ={}).read.memory == 4 << 30


def test_the_example_line_of_fstab_is_accepted() -> None:
    (line,) = re.findall(r"^    hdfs://\S+ +\S+ +stripefs +(\S+) ", CONFIG, re.MULTILINE)
    assert set(expand([line]).given) == {"hdfs-user", "memory"}


def test_words_of_o_that_the_document_names_are_accepted() -> None:
    paragraph = CONFIG.split("Also understood there:")[1].split("Anything else")[0]
    words = [word for word in re.findall(r"`([^`]+)`", paragraph) if not word.endswith(("…", "="))]
    assert len(words) > 15
    expand(words)


def codes(title: str) -> set[int]:
    table = TEXT.split(f"| code | `{title}` |")[1].split("\n\n")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def test_the_exit_codes_of_the_command() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert codes("stripefs") == {0, 1, INTERRUPTED} | {each.exit_code for each in classes}


def test_the_exit_codes_of_the_helper() -> None:
    raised = [errors.ConfigError("a"), OSError(), ValueError(), KeyboardInterrupt(), errors.MountError("b")]
    assert codes("mount.stripefs") == {0, *map(mount_helper.exit_code, raised)}


def test_the_limits_of_probe() -> None:
    table = TEXT.split("\n### probe: the limit that binds\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert rows == ["limit", *get_args(Limit)]
