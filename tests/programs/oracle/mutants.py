"""Traces with one error each, which the judge must detect."""

import judge

ONE = "(stream, seq) in (select (stream, seq) from events where op = 'pwrite' and flags = 0 order by stream, seq limit 1 offset 20)"

MUTANTS = {
    "a row is gone": f"delete from events where {ONE}",
    "a row is there twice": f"insert into events select * from events where {ONE}",
    "a row is invented": f'insert into events select * replace (seq + 100000000 as seq, 90000000 as number) from events where {ONE}',
    "a length is wrong": f'update events set "length" = "length" + 1, result = result + 1 where {ONE}',
    "a row is another thread's": f"update events set stream = (select max(stream) from events) where {ONE}",
    "a time is wrong": "update events set time = time + 1000000000 where number % 16 = 0 and op = 'pwrite'",
    "a loss is recorded that never occurred": "insert into losses select process, null, 'lane_full', 1000, null, null from events limit 1",
    "a range of losses is gone": "delete from losses",
    "all of a process is gone": "delete from events where process = (select min(process) from events)",
}


def unnoticed(trace, programs, when_full):
    """Yields the mutants that the judge accepts."""
    for name, statement in MUTANTS.items():
        mutant = judge.Judge(trace, programs, when_full, damaged=False)
        before = mutant.one("select (select count(*) from events), (select count(*) from losses)")
        (changed,) = mutant.sql.execute(statement).fetchone()
        if not changed:
            print(f"  no mutant: {name} (of {before[0]} events, {before[1]} losses)")
        elif not mutant.judge():
            yield f"the judge does not detect that {name}"
