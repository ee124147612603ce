"""What may be set: its four sources and their order, each mistake, and that every setting is read by the code that it is for."""

import ast
from pathlib import Path

import pytest

import rover_bus
from rover_bus.client.job_file import read_job
from rover_bus.events.errors import InputError
from rover_bus.events.settings import DEFAULTS, changed
from rover_bus.events.written_settings import SetValue, choose, dump, every_setting, load, of_processes
from rover_bus.events.written_settings import value_in as value_of

ROOT = Path(rover_bus.__file__).parent
JOB = 'name = "ads"\nprogram = ["python", "t.py"]\n[data]\ntrain = "t.csv"\n'


def job(folder, rest="", stack=None):
    path = folder / "job.toml"
    path.write_text(JOB + rest)
    return read_job(path, stack=choose(stack or [], {}))


def of(spec, name):
    return value_of(spec, every_setting()[name])


# -- who wins ----------------------------------------------------------------------------------------------------------


def test_a_processes_settings_come_from_the_environment_then_from_up_then_from_the_defaults():
    words = ["hosts.presence=20s", "members.restart_pause=200ms"]
    settings = of_processes(choose(words, {"ROVER_SET_HOSTS_PRESENCE": "5s"}))
    assert settings.hosts.presence_s == 5.0
    assert settings.members.restart_pause_s == 0.2
    assert settings.storage == DEFAULTS.storage
    assert changed(settings) == {"hosts.presence": 5.0, "members.restart_pause": 0.2}


def test_a_jobs_settings_come_from_its_file_then_from_the_environment_then_from_up(tmp_path, monkeypatch):
    up = ["leases.heartbeat=2s", "plan.cooldown=1m", "moves.rate=1MiB", "plan.policy=optimus"]
    monkeypatch.setenv("ROVER_SET_LEASES_HEARTBEAT", "3s")
    monkeypatch.setenv("ROVER_SET_PLAN_COOLDOWN", "2m")
    spec = job(tmp_path, '[leases]\nheartbeat = "4s"\n', up)
    assert of(spec, "leases.heartbeat") == 4.0
    assert of(spec, "plan.cooldown") == 120.0
    assert of(spec, "plan.policy") == "optimus"
    assert of(spec, "moves.rate") == 1 << 20
    assert of(spec, "leases.relaunches") == 100


def test_what_is_set_for_checkpoints_makes_no_job_take_some(tmp_path):
    up = ["checkpoint.stage_patience=5m"]
    assert job(tmp_path, "", up).checkpoint is None
    assert job(tmp_path, "[checkpoint]\n", up).checkpoint.stage_patience_s == 300.0


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("leases.hartbeat=2s", "did you mean leases.heartbeat?"),
        ("retention.log_aeg=1d", "did you mean retention.log_age?"),
        ("x=1", "`rover doctor --settings` lists them all"),
        ("leases.heartbeat", "write NAME=VALUE"),
        ("leases.heartbeat=2d", "2d is outside 0.01s to 1d (three silent ones are a death"),
        ("hosts.presence=0s", "outside 1s to 2m"),
        ("hosts.presence=nan", "must be a duration"),
        ("hosts.presence=soon", "a duration like '30ms'"),
        ("retention.log_size=much", "a size like '2GiB'"),
        ("leases.relaunches=1.5", "must be a whole number"),
        ("plan.least_gain=half", "must be a number"),
        ("plan.least_gain=2", "2 is outside 0 to 1"),
        ("plan.policy=optimum", "'optimum' is none of optimus, staged (how sizes are chosen"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_with_the_way_out(word, said):
    with pytest.raises(InputError) as refused:
        choose([word], {})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ROVER_SET_LEASES_HARTBEAT", "2s", "did you mean ROVER_SET_LEASES_HEARTBEAT?"),
        ("ROVER_SET_LEASES_HEARTBEAT", "2d", "ROVER_SET_LEASES_HEARTBEAT: 2d is outside"),
    ],
)
def test_a_mistake_in_the_environment_is_named_too(variable, value, said):
    with pytest.raises(InputError) as refused:
        choose([], {variable: value, "ROVER_URL": "nats://elsewhere"})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "rest", ['[moves]\nrate = "1B"\n', '[checkpoint]\nstage_patience = "2d"\n', "[plan]\nrenew_after = -1\n"]
)
def test_a_job_file_is_held_to_the_same_ranges(tmp_path, rest):
    with pytest.raises(InputError):
        job(tmp_path, rest)


@pytest.mark.parametrize(
    "stored", [b"", b"[]", b'{"x":[1,"environment"]}', b'{"hosts.presence":[1e9,"environment"]}', b'{"a":1}']
)
def test_a_bucket_that_no_service_wrote_is_not_believed(stored):
    with pytest.raises(InputError, match="ROVER_SETTINGS"):
        load(stored)


def test_what_a_service_writes_there_is_read_as_it_was():
    chosen = choose(
        ["leases.relaunches=7", "plan.search=nsga2", "hosts.presence=20s"],
        {"ROVER_SET_RETENTION_LOG_SIZE": "1GiB"},
    )
    assert load(dump(chosen)) == chosen
    assert chosen["retention.log_size"] == SetValue(1 << 30, "environment")


# -- the tree ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(every_setting()))
def test_each_has_a_reason_a_default_within_its_range_and_a_spelling_that_is_read_back(name):
    setting = every_setting()[name]
    assert len(setting.reason) > 10
    for value in setting.choices or (setting.low, setting.default, setting.high):
        assert setting.read(setting.spell(value), name) == value


@pytest.fixture(scope="module")
def read_names():
    """Every attribute that the package names, outside the modules that declare the settings."""
    paths = [path for path in ROOT.rglob("*.py") if path.name not in ("settings.py", "job.py")]
    return {
        node.attr
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }


@pytest.mark.parametrize("name", sorted(every_setting()))
def test_each_is_read_by_the_code_that_it_is_for(name, read_names):
    assert every_setting()[name].field in read_names, f"nothing reads {name}"


def test_each_of_a_job_stands_in_the_page_of_the_job_file():
    page = (ROOT.parent / "docs/job-file.md").read_text()
    keys = [name.split(".")[1] for name, setting in every_setting().items() if setting.of_job]
    assert [key for key in keys if f"| `{key}` |" not in page] == []
