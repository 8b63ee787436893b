"""What is published: the package, its examples and its README."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import relais
from house import CONSUMER, DEADLINE, SDK, WORKER, RelaisServer

EXAMPLES = SDK / "examples"


@pytest.fixture
def resize(server: RelaisServer) -> Iterator[None]:
    """The example's service, and its worker as a process."""
    server.service("resize")
    environment = settings(server, WORKER)
    worker = subprocess.Popen([sys.executable, str(EXAMPLES / "resize.py")], env=environment, stderr=subprocess.PIPE)
    yield
    worker.terminate()
    _, log = worker.communicate(timeout=DEADLINE)
    assert worker.returncode == 0, log


def settings(server: RelaisServer, who: tuple[str, str]) -> dict[str, str]:
    path = {"PYTHONPATH": str(SDK / "src")}
    return {**os.environ, **path, "RELAIS_URL": server.url, "RELAIS_CLIENT": who[0], "RELAIS_SECRET": who[1]}


def run(server: RelaisServer, example: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        env=settings(server, CONSUMER),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("resize")
def test_the_examples_do_what_they_say(server: RelaisServer) -> None:
    said = run(server, "consume.py")
    assert said[-5] == "status SUCCESS 100.0"
    assert said[-4:] == [
        "{'sizes': [[320, 240], [512, 384]]}",
        "{'sizes': [[200, 100]]}",
        "failed: a scale of 0.0 leaves nothing",
        "404001 Service not found.",
    ]
    assert run(server, "consume_async.py") == ["[[[2, 2]], [[4, 4]], [[6, 6]]]"]
    result = "{'sizes': [[320, 240]]}"
    assert run(server, "terms.py") == ["True True", result, "True", result]
    rights = {"emit": ["*"], "audience": ["*"], "ticket": True}
    server.declare(clients=[{"clientId": CONSUMER[0], "clientSecret": CONSUMER[1], "notifications": rights}])
    assert run(server, "notify.py") == ["True", "True", "[]"]


def test_the_readme_shows_the_examples_as_they_are() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (SDK / "README.md").read_text(), re.DOTALL)
    examples = [path.read_text() for path in EXAMPLES.glob("*.py")]
    assert sorted(blocks) == sorted(examples)


def test_everything_public_is_exported_and_has_a_word_said_about_it() -> None:
    for name in relais.__all__:
        assert getattr(relais, name) is not None
    for path in (SDK / "src").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path.name} does not say what it is for"
        assert len(path.read_text().splitlines()) <= 600


def test_a_wheel_has_all_modules_and_the_mark_of_a_typed_package(tmp_path: Path) -> None:
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=SDK, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("relais-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("relais/")}
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        said = archive.read(metadata).decode()
    there = {str(path.relative_to(SDK / "src")) for path in (SDK / "src/relais").rglob("*.py")} | {"relais/py.typed"}
    assert packed == there
    assert "Requires-Dist: httpx" in said
    assert "Provides-Extra: rabbitmq" in said


def test_without_aio_pika_the_rest_works_and_rabbitmq_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['aio_pika'] = None; import relais; relais.Http('s', 'http://h', 'a', 'b')\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}relais.RabbitMq('q', 'amqp://h')"],
        env={**os.environ, "PYTHONPATH": str(SDK / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install 'relais[rabbitmq]'" in done.stderr
