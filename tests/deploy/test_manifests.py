"""The manifests of deploy/: their flags, variables, paths and volume options are ones that work."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import engine, until

from batchscope.exporter import cli
from batchscope.exporter.config import resolve
from batchscope.schemas.request_keys import read_salt
from batchscope.schemas.ring import RingReader, list_rings, lock_exporter, roster, set_level

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()))
POD = KUBERNETES[0]["spec"]["template"]["spec"]
EXPORTER, GROUP = 65532, 65533
FIXED = {"PYTHONPATH"}


def pod_containers() -> Any:
    return [*POD["initContainers"], *POD["containers"]]


def compose_commands() -> Any:
    found = COMPOSE["services"].values()
    return [
        s["command"] for s in found if s["image"].startswith("batchscope") and "entrypoint" not in s
    ]


def pod_commands() -> Any:
    found = (c for c in pod_containers() if c["image"].startswith("batchscope"))
    return [c["args"] for c in found if "command" not in c]


@pytest.mark.parametrize("words", [*compose_commands(), *pod_commands()], ids=lambda w: w[0])
def test_every_command_is_one_that_the_command_line_takes(words: Any) -> None:
    args = cli._parser(words).parse_args(words)
    if words[0] == "serve":
        config = resolve(vars(args), env={"BATCHSCOPE_TOKEN": "x"})
        assert config["listen"][0] == "0.0.0.0"
        assert config["dir"] == Path("/run/batchscope")


def test_there_are_commands_to_test() -> None:
    assert [words[0] for words in compose_commands()] == ["serve", "dashboard"]
    assert [words[0] for words in pod_commands()] == ["serve"]


def known_variables() -> Any:
    """All that our sources read."""
    sources = [path for top in ("schemas", "adapters", "exporter", "dashboard")
               for path in (ROOT / top).rglob("*.py")]  # fmt: skip
    texts = (path.read_text() for path in sources)
    read = {name for text in texts for name in re.findall(r'"(BATCHSCOPE(?:_[A-Z]+)*)"', text)}
    from batchscope.exporter.config import SETTINGS

    return read | {setting.env for setting in SETTINGS} | FIXED


def test_every_variable_is_one_that_we_read() -> None:
    told = {name for s in COMPOSE["services"].values() for name in s.get("environment", {})}
    told |= {one["name"] for c in pod_containers() for one in c.get("env", [])}
    assert told <= known_variables()
    assert "BATCHSCOPE_DIR" in told


def variables(container: Any) -> Any:
    return {one["name"]: one.get("value") for one in container.get("env", [])}


def test_in_the_pod_both_see_the_rings_where_their_variables_say() -> None:
    vllm, exporter = POD["containers"]
    folder = variables(vllm)["BATCHSCOPE_DIR"]
    assert folder in exporter["args"]
    assert {"name": "rings", "mountPath": folder} in vllm["volumeMounts"]
    assert {"name": "rings", "mountPath": folder, "readOnly": True} in exporter["volumeMounts"]
    control = {"name": "rings", "mountPath": f"{folder}/ctl", "subPath": "ctl"}
    assert control in exporter["volumeMounts"]
    (rings,) = (v for v in POD["volumes"] if v["name"] == "rings")
    assert rings["emptyDir"]["medium"] == "Memory"


def test_in_the_pod_every_mount_is_of_a_volume_and_the_users_differ() -> None:
    volumes = {volume["name"] for volume in POD["volumes"]}
    mounts = [mount["name"] for c in pod_containers() for mount in c["volumeMounts"]]
    assert set(mounts) == volumes
    exporter = POD["containers"][1]["securityContext"]
    assert exporter["runAsUser"] == EXPORTER
    assert exporter["readOnlyRootFilesystem"] is True
    assert POD["securityContext"]["fsGroup"] == exporter["runAsGroup"] == GROUP
    assert variables(POD["containers"][0])["BATCHSCOPE_GROUP"] == str(GROUP)


def test_probes_and_monitor_name_a_port_that_is_there() -> None:
    exporter, monitor = POD["containers"][1], KUBERNETES[1]
    (port,) = exporter["ports"]
    assert exporter["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
    labels = KUBERNETES[0]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"] == labels


def test_in_the_composition_both_see_the_rings_and_the_exporter_may_only_write_control() -> None:
    services = COMPOSE["services"]
    folder = services["engine"]["environment"]["BATCHSCOPE_DIR"]
    assert folder in services["exporter"]["command"]
    assert {f"rings:{folder}", f"control:{folder}/ctl"} <= set(services["engine"]["volumes"])
    assert {f"rings:{folder}:ro", f"control:{folder}/ctl"} <= set(services["exporter"]["volumes"])
    assert services["exporter"]["user"] == f"{EXPORTER}:{GROUP}"
    named = {v.partition(":")[0] for s in services.values() for v in s.get("volumes", [])}
    assert named == set(COMPOSE["volumes"])


def test_what_the_page_names_is_there() -> None:
    text = (ROOT / "docs" / "adapters.md").read_text()
    linked = set(re.findall(r"\(\.\./(deploy/[\w.]+)\)", text))
    assert linked == {f"deploy/{path.name}" for path in DEPLOY.iterdir()}
    for line in re.findall(r"^batchscope (.+?)(?:\s{2,}#.*)?$", text, re.MULTILINE):
        cli._parser(line.split()).parse_args(line.split())


def test_the_image_installs_extras_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (extras,) = re.findall(r"/src\[([\w,]+)\]", text)
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in declared for extra in extras.split(","))
    assert f"USER {EXPORTER}:{GROUP}" in text


@contextmanager
def mounted(folder: Any, options: Any) -> Iterator[Any]:
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def as_the_exporter() -> Iterator[None]:
    """The sidecar's user and group, and no other."""
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(GROUP)
    os.seteuid(EXPORTER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def assert_that_the_exporter_can_work(rings: Any) -> None:
    until(lambda: list_rings(rings))
    until(lambda: read_salt(rings))
    with as_the_exporter():
        (one,) = roster(rings)
        assert (one.state, one.problem) == ("attached", None)
        RingReader(list_rings(rings)[0]).close()
        set_level(rings, one.ring_uuid, 1)
        assert read_salt(rings) is not None
        os.close(lock_exporter(rings))
        with pytest.raises(PermissionError):
            (rings / "new.ring").write_bytes(b"")


@pytest.fixture
def reachable() -> Any:
    """A folder that others may enter."""
    made = Path("/dev/shm") / f"batchscope-deploy-{os.getpid()}"
    made.mkdir(mode=0o755)
    yield made
    for path in [*made.iterdir(), made]:
        path.rmdir()


def test_the_volumes_of_the_composition_let_the_exporter_read_and_ask(reachable: Any) -> None:
    options = {name: COMPOSE["volumes"][name]["driver_opts"]["o"] for name in ("rings", "control")}
    group = COMPOSE["services"]["engine"]["environment"]["BATCHSCOPE_GROUP"]
    with mounted(reachable / "rings", options["rings"]) as rings:
        (rings / "ctl").mkdir()
        with (
            mounted(rings / "ctl", options["control"]),
            engine(rings, BATCHSCOPE="1", BATCHSCOPE_GROUP=group),
        ):
            assert_that_the_exporter_can_work(rings)


def test_the_pods_volume_lets_the_exporter_read_and_ask(reachable: Any) -> None:
    """As the kubelet makes it for an fsGroup: setgid, the group's, open; ctl is the init's."""
    group = variables(POD["containers"][0])["BATCHSCOPE_GROUP"]
    assert "mkdir -p -m 2770 /rings/ctl" in POD["initContainers"][0]["command"][-1]
    with mounted(reachable / "rings", f"size=64m,mode=2777,gid={GROUP}") as rings:
        with as_the_exporter():
            subprocess.run(["mkdir", "-p", "-m", "2770", str(rings / "ctl")], check=True)
        with engine(rings, BATCHSCOPE="1", BATCHSCOPE_GROUP=group):
            assert_that_the_exporter_can_work(rings)
