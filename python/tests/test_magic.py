"""The cell magic of notebooks, called as IPython calls it."""

import pytest

import miot


class Shell:
    """What IPython offers to an extension."""

    def register_magic_function(self, function, kind, name):
        self.registered = (kind, name)
        self.magic = function


@pytest.fixture
def magic():
    shell = Shell()
    miot.load_ipython_extension(shell)
    assert shell.registered == ("cell", "miot")
    return shell.magic


def test_cell_is_traced_and_shown(magic, tmp_path, capsys):
    trace = magic(f"-o {tmp_path}/kept", f"open('{tmp_path}/written', 'w').write('x' * 1000)\nprint('done')\n")
    assert capsys.readouterr().out == "done\n"
    writes = trace.events(["result"], op="write", path=f"{tmp_path}/written").to_arrow()
    assert writes.to_pylist() == [{"result": 1000}]
    assert trace.dir == f"{tmp_path}/kept" and "events" in trace._repr_html_()


def test_shell_cell_and_failures(magic, capsys):
    trace = magic("--shell", "echo out; echo err >&2; cat /etc/hostname > /dev/null")
    assert sorted(capsys.readouterr().out.split()) == ["err", "out"]
    assert any(row["path"] == "/etc/hostname" for row in trace.files)
    with pytest.raises(miot.Error, match="exit code 3"):
        magic("", "raise SystemExit(3)")
    with pytest.raises(miot.OptionError, match="expected %%miot"):
        magic("--bash", "")
