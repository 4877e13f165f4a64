"""Heavy runtimes, stacks, wrappers and roots of one's own, each from `profile new` to a settled machine, and to a second
early start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from quickstart.host.progress import Quiet
from quickstart.profile import load_profile
from quickstart.reference.debootstrap import make_reference
from quickstart.reference.variant import Variant
from quickstart.store.context import Context
from quickstart.store.store import Store, default_root
from tests.vm.conftest import ADOPTED, BUILD_S, EARLY, host, quickstart
from tests.vm.turns import in_turn

SETTLED = (Path(__file__).with_name("guest") / "settled.sh").read_text()
RUN_S = 1800.0


@dataclass(frozen=True)
class Own:
    """A root of one's own: Debian's packages of a suite, and files (by path without the first slash). ``commands`` run in it."""

    suite: str
    packages: tuple[str, ...]
    files: dict[str, str]
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Application:
    """``words`` are those of `profile new`, ``unit`` is the unit that the profile then has, and ``works`` is a
    command that succeeds in the settled machine. With ``own``, `profile new` gets a tar of this root. ``most_reads`` is
    the largest number of requests to the root volume before ready (ADR 21).
    """

    words: tuple[str, ...]
    unit: str
    works: str
    own: Own | None = None
    most_reads: int | None = None


PAGE_SAYS = 'bash -c \'exec 3<>/dev/tcp/127.0.0.1/8000; printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3; grep -q "hello from" <&3\''
# Flask behind gunicorn, as the documentation of gunicorn has its unit, which keeps its state in a directory of systemd's.
FLASK = Own(
    suite="trixie",
    packages=("gunicorn", "python3-flask"),
    files={
        "opt/hello/hello.py": (
            "import os\nfrom flask import Flask\napp = Flask(__name__)\n"
            'open(os.environ["STATE_DIRECTORY"] + "/started", "a").close()\n'
            '@app.route("/")\ndef hello():\n    return "hello from flask\\n"\n'
        ),
        "etc/systemd/system/hello.service": (
            "[Unit]\nAfter=network.target\n[Service]\nType=notify\nNotifyAccess=main\nUser=www-data\n"
            "StateDirectory=hello\nRuntimeDirectory=hello\nWorkingDirectory=/opt/hello\n"
            "ExecStart=/usr/bin/gunicorn --bind 0.0.0.0:8000 --workers 2 hello:app\n"
            "ExecReload=/bin/kill -s HUP $MAINPID\nKillMode=mixed\nPrivateTmp=true\n"
            "[Install]\nWantedBy=multi-user.target\n"
        ),
    },
    commands=(("systemctl", "enable", "hello.service"),),
)
# One jar with a server in it, as Jenkins comes: it starts hundreds of classes before it listens.
SERVER = """import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.logging.Logger;
public class Main {
    public static void main(String[] words) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(8000), 0);
        server.createContext("/", exchange -> {
            byte[] page = "hello from a jar\\n".getBytes();
            exchange.sendResponseHeaders(200, page.length);
            try (var out = exchange.getResponseBody()) { out.write(page); }
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        Logger.getLogger("main").info("it listens");
    }
}
"""
JAR = Own(
    suite="bookworm",
    packages=("default-jdk-headless",),
    files={
        "opt/hello/Main.java": SERVER,
        "etc/systemd/system/hello.service": (
            "[Unit]\nAfter=network.target\n[Service]\nUser=www-data\nStateDirectory=hello\n"
            "ExecStart=/usr/bin/java -Djava.awt.headless=true -Xmx128m -jar /opt/hello/hello.jar\n"
            "SuccessExitStatus=143\n[Install]\nWantedBy=multi-user.target\n"
        ),
    },
    commands=(
        (
            "sh",
            "-c",
            "cd /opt/hello && javac Main.java && jar cfe hello.jar Main *.class && rm Main.java *.class",
        ),
        ("systemctl", "enable", "hello.service"),
    ),
)

# There is no registry: the image is a program without libraries. systemd makes the container's group, with the limits that dockerd
# found when it started. The companion's process is older than systemd's own, and may have all the descriptors of a stock boot.
DOCKER_WORKS = """{
	[ "$(docker info -f '{{.CgroupDriver}}')" = systemd ] &&
	early=$(systemctl show -P MainPID containerd) &&
	[ "$early" -lt "$(systemctl show -P MainPID systemd-journald)" ] &&
	[ "$(awk '/^Max open files/ { print $5 }' "/proc/$early/limits")" = "$(cat /proc/sys/fs/nr_open)" ] &&
	{ docker image inspect small || tar -C /usr -c bin/busybox | docker import - small; } &&
	docker run --rm --network none --cgroupns host --memory 64m --pids-limit 20 small /bin/busybox cat /proc/self/cgroup |
		grep '^0::/system.slice/docker-'
}"""


APPLICATIONS = {
    "postgresql": Application(
        ("--package", "postgresql", "--unit", "postgresql", "--ready", "tcp:5432"),
        "postgresql@15-main.service",
        "runuser -u postgres -- psql -Atc 'select 1'",
        most_reads=80,
    ),
    # Its configuration calls perl (include_shell).
    "lighttpd": Application(
        ("--package", "lighttpd", "--unit", "lighttpd", "--ready", "http:80/"),
        "lighttpd.service",
        "systemctl is-active lighttpd",
        most_reads=80,
    ),
    "php": Application(
        (
            "--package",
            "nginx",
            "--package",
            "php8.2-fpm",
            "--unit",
            "php8.2-fpm",
            "--unit",
            "nginx",
            "--ready",
            "http:80/",
        ),
        "nginx.service",
        "systemctl is-active php8.2-fpm",
        most_reads=80,
    ),
    "redis": Application(
        ("--package", "redis-server", "--unit", "redis-server", "--ready", "tcp:6379"),
        "redis-server.service",
        "redis-cli ping",
    ),
    "flask": Application(
        ("--package", "gunicorn", "--unit", "hello", "--ready", "http:8000/"),
        "hello.service",
        PAGE_SAYS,
        FLASK,
    ),
    "jar": Application(
        ("--package", "default-jdk-headless", "--unit", "hello", "--ready", "http:8000/"),
        "hello.service",
        PAGE_SAYS,
        JAR,
    ),
    "rabbitmq": Application(
        ("--package", "rabbitmq-server", "--unit", "rabbitmq-server", "--ready", "tcp:5672"),
        "rabbitmq-server.service",
        "rabbitmq-diagnostics -q ping",
    ),
    "influxdb": Application(
        ("--package", "influxdb", "--unit", "influxdb", "--ready", "tcp:8086"),
        "influxdb.service",
        'bash -c \'exec 3<>/dev/tcp/127.0.0.1/8086; printf "GET /ping HTTP/1.0\\r\\n\\r\\n" >&3; read -r line <&3; '
        "[[ $line == *204* ]]'",
    ),
    "tomcat": Application(
        ("--package", "tomcat10", "--unit", "tomcat10", "--ready", "http:8080/"),
        "tomcat10.service",
        "systemctl is-active tomcat10",
    ),
    "docker": Application(
        (
            # dockerd starts no container on Debian's kernel without AppArmor's parser, which its package recommends.
            *("--package", "docker.io", "--package", "apparmor", "--package", "busybox-static"),
            *("--unit", "docker", "--ready", "exec:docker version"),
        ),
        "docker.service",
        DOCKER_WORKS,
    ),
}
ASK = (
    ADOPTED
    + """\
WORKS >/dev/null && echo works
systemctl --failed --no-legend --plain | wc -l
sync
"""
)


def tar_of(own: Own, place: Path) -> Path:
    """A tar of the root, without the directory that our own images have."""
    place.mkdir()
    words = {"name": "own", "suite": own.suite, "packages": list(own.packages), "unit": "ssh.service"}
    lines = "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in words.items())
    (place / "profile.toml").write_text(f'schema = 1\n{lines}[ready]\nkind = "tcp"\nport = 22\n')
    differing = Variant(name="own", written=own.files, ran=own.commands)
    archive = place / "root.tar.zst"
    with Store(default_root()) as store:
        tree = make_reference(load_profile(str(place)), Context(store, Quiet()), differing).tree
        kept = ("--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "--exclude=./fast")
        host("tar", *kept, "-C", tree, "--zstd", "-cf", archive, ".")
    return archive


# The others take more than five minutes on two cores without KVM.
SHORT = ("postgresql", "lighttpd", "php", "redis", "influxdb")


@pytest.mark.parametrize("name", in_turn(APPLICATIONS, SHORT))
def test_from_profile_new_to_a_second_early_start(name: str, tmp_path: Path) -> None:
    application = APPLICATIONS[name]
    profile, out = tmp_path / "profile", tmp_path / "out"
    rootfs = ("--rootfs", tar_of(application.own, tmp_path / "own")) if application.own else ()
    written = quickstart(
        *("profile", "new", name, *application.words, *rootfs, "-o", profile, "--json"),
        timeout_s=2 * BUILD_S,
    )
    assert written.status == 0, written.err
    built = quickstart(
        *("build", "--no-trial", "--profile", profile, *rootfs, "-o", out, "--json"),
        timeout_s=2 * BUILD_S,
    )
    assert built.status == 0, built.err
    verified = quickstart("verify", out, "--json", timeout_s=BUILD_S)
    assert (verified.status, verified.result["fallback"]) == (0, ""), (verified.err, verified.out[-2000:])
    # The profile's budget is more than what `profile new` saw, and `verify` ends with 0 only within it.
    assert application.most_reads is None or verified.result["requests"] <= application.most_reads
    ask = SETTLED + ASK.replace("WORKS", application.works).replace("UNIT", application.unit)
    # The second time, the volume has been used: the stamp, or the comparison of all files, lets it start early again.
    for _ in range(2):
        called = quickstart("run", out, "--json", *EARLY, "--exec", ask, timeout_s=RUN_S)
        assert called.status == 0, called.err
        assert called.result["fallback"] is None
        assert called.result["exec_stdout"].split() == ["running", "same", "active", "works", "0"]
