import json
import time

import pytest


def test_json_is_a_line_for_each_workload_and_output_appends_it(programs):
  output = programs.directory / 'out.jsonl'
  output.write_text('{"earlier": 1}\n')
  result = programs.succeed(
    'benchmark',
    '--small',
    '--workload=w4,w1',
    '--rounds=1',
    '--json',
    '--output=out.jsonl',
  )
  records = [json.loads(line) for line in result.out.splitlines()]
  assert [record['workload'] for record in records] == ['w4', 'w1']
  assert [record['num_rounds'] for record in records] == [1, 1]
  lines = [json.loads(line) for line in output.read_text().splitlines()]
  assert lines == [{'earlier': 1}, *records]
  # The progress is not in the way of a pipe.
  assert 'w4: 100%' in result.err


@pytest.mark.slow
def test_table_is_shown_without_json(programs):
  result = programs.succeed(
    'benchmark', '--small', '--workload=w4', '--rounds=1', '--reference'
  )
  heading, *rows = result.out.splitlines()
  assert heading.strip() == 'w4'
  assert 'speedup' in [row.split()[0] for row in rows]


@pytest.mark.slow
def test_nothing_is_left_running(programs):
  program = programs.start(
    'benchmark', '--small', '--workload=w1', '--rounds=1', '--reference'
  )
  workers = []
  while program.is_running() and not workers:
    workers = program.workers()
    time.sleep(0.01)
  assert len(workers) == 1  # Of the reference.
  assert program.wait().status == 0
  assert not any(worker.is_running() for worker in workers)
