"""A store that several machines use."""

from dataclasses import replace

from tasks.storage.process_ids import ProcessId
from tasks.tracking.runs import finish, start_parent
from tasks.tracking.tags import PARTIAL, PROCESS


def test_the_run_of_a_command_that_another_machine_is_at_is_left_to_it(store):
    """The lock of a store holds on one machine alone: two would write, and delete, the same members."""
    theirs = start_parent("same", {"seed": 1})
    assert start_parent("same", {"seed": 1}).run_id == theirs.run_id
    store.client.set_tag(theirs.run_id, PROCESS, str(replace(ProcessId.current(), host="elsewhere")))
    mine = start_parent("same", {"seed": 1})
    assert mine.run_id != theirs.run_id
    finish(mine.run_id, outcome=PARTIAL)
    assert start_parent("same", {"seed": 1}).run_id == mine.run_id
    store.client.set_terminated(theirs.run_id, "KILLED")
    store.client.delete_run(mine.run_id)
    assert start_parent("same", {"seed": 1}).run_id == theirs.run_id
