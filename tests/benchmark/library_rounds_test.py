import collections

import numpy as np

from binaries.benchmark import library_rounds, workloads


def test_tensors_are_those_of_all_clients_that_take_part_and_no_others():
  workload = workloads.get_workload('w1').scaled_down()
  tensors = library_rounds.client_tensors(workload, [[4, 1], [1, 2]])
  assert list(tensors) == [1, 2, 4]
  data = workload.make_data()
  expected = data.train(data.client_ids[4])
  assert list(tensors[4]) == ['x', 'y']
  np.testing.assert_array_equal(tensors[4]['x'], expected.x)
  np.testing.assert_array_equal(tensors[4]['y'], expected.y)


def test_states_are_carried_over_and_datasets_passed_again(
  runtime, monkeypatch
):
  workload = workloads.get_workload('w1').scaled_down()
  process = workload.build_process(workload.build_model())
  cohorts = [[0, 3], [3, 5], [3, 0]]
  rounds = library_rounds.LibraryRounds(
    runtime, process, library_rounds.client_tensors(workload, cohorts)
  )
  passed = []
  run = type(runtime).run

  def spying_run(self, computation, *args):
    if computation is process.next:
      passed.append(args[2])
    return run(self, computation, *args)

  monkeypatch.setattr(type(runtime), 'run', spying_run)
  for cohort in cohorts:
    rounds(cohort)
  assert rounds.state.round_number == 3
  counts = collections.Counter(sum(cohorts, []))
  for index, state in rounds.client_states.items():
    assert state.client_index == index
    assert state.num_rounds == counts[index]
  # Client 3's, in all three rounds.
  assert passed[0][1] is passed[1][0] is passed[2][0]
