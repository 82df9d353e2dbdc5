"""Files of JSON lines, also after a crash."""

from __future__ import annotations

from pathlib import Path

from jobs.run.json_lines import read_lines, write_line


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    file = tmp_path / "new" / "lines.jsonl"
    assert list(read_lines(file)) == []
    write_line(file, '{"name": "Müller"}')
    with file.open("a") as opened:
        opened.write('{"name": ')
    write_line(file, "[2]")
    write_line(file, "[3]")
    assert file.read_text("utf-8") == '{"name": "Müller"}\n{"name": \n[2]\n[3]\n'
    assert list(read_lines(file)) == [{"name": "Müller"}, [2], [3]]
