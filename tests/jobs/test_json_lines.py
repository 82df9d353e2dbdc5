"""Files of JSON lines, also after a crash."""

from __future__ import annotations

from pathlib import Path

from jobs.json_lines import read_lines, write_line


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


def test_a_cut_inside_a_character_costs_its_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes('{"name": "Mü'.encode()[:-1])
    write_line(file, "[2]")
    assert list(read_lines(file)) == [[2]]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    write_line(file, '{"name": "one\u2028two\x85three"}')
    assert list(read_lines(file)) == [{"name": "one\u2028two\x85three"}]
