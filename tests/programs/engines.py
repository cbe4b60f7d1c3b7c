"""Runs the statements of `miot export --format views` in an engine and prints the rows of each view.

engines.py ENGINE SCRIPT DIR: a line of JSON for each table of the trace DIR, with the types that the
columns of its files have in the engine; then one for each view, with its rows. Times are
microseconds since 1970.
"""

import json
import os
import sys

TABLES = ["events", "processes", "threads", "files", "losses", "clocks", "devices"]
IO = (
    "duration node process pid tid layer op class job job_system rank user uid exe comm file path file2 path2 handle"
    " offset offset2 length result bytes flags stream request enclosing cpu_time mpi_rank"
).split()
COUNTS = (
    "requests reads writes copies read_bytes write_bytes copy_bytes duration longest failed processes".split()
)
VIEWS = {
    "io": (IO, ["time", "begin"]),
    "file_stats": (["path", "layer", *COUNTS], ["begin", "end"]),
    "job_stats": (["job", "job_system", "layer", "nodes", "files", *COUNTS], ["begin", "end"]),
    "paths": (["file", "node", "path"], []),
}


def duckdb():
    import duckdb

    sql = duckdb.connect()
    sql.execute("SET TimeZone = 'UTC'")
    return (
        lambda text: sql.execute(text),
        lambda text: sql.execute(text).fetchall(),
        lambda time: f'epoch_us("{time}")',
        lambda name: f'"{name}"',
    )


def spark():
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        # Compiling a query takes longer than a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": os.getcwd(),
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    return (
        session.sql,
        lambda text: [tuple(row) for row in session.sql(text).collect()],
        lambda time: f"unix_micros(`{time}`)",
        lambda name: f"`{name}`",
    )


def clickhouse():
    from chdb import session

    # Without a path it is in a temporary directory.
    chdb = session.Session()

    def rows(text):
        found = chdb.query(text, "JSONCompactEachRow").bytes().decode()
        return [tuple(json.loads(line)) for line in found.splitlines()]

    # Otherwise 64-bit numbers are strings.
    chdb.query("SET output_format_json_quote_64bit_integers = 0")
    return (
        chdb.query,
        rows,
        lambda time: f"toUnixTimestamp64Micro(`{time}`)",
        lambda name: f"`{name}`",
    )


def types(engine, rows, directory):
    describe = {
        "duckdb": "DESCRIBE SELECT * FROM '{}/*.parquet'",
        "spark": "DESCRIBE QUERY SELECT * FROM parquet.`{}`",
        "clickhouse": "DESCRIBE file('{}/*.parquet')",
    }[engine]
    if engine == "spark":
        rows("SET spark.sql.legacy.parquet.nanosAsLong = true")
    for table in TABLES:
        columns = {row[0]: row[1] for row in rows(describe.format(f"{directory}/{table}"))}
        print(json.dumps({"table": table, "columns": columns}))


def main():
    engine, script, directory = sys.argv[1:]
    run, rows, time, name = {"duckdb": duckdb, "spark": spark, "clickhouse": clickhouse}[engine]()
    types(engine, rows, directory)
    with open(script, encoding="utf-8") as file:
        for statement in file.read().split(";\n"):
            if statement.strip():
                run(statement)
    for view, (columns, times) in VIEWS.items():
        wanted = ", ".join([name(column) for column in columns] + [time(column) for column in times])
        found = rows(f"SELECT {wanted} FROM {view}")
        # DuckDB's sums are decimal numbers.
        whole = [[int(v) if not isinstance(v, (str, int, type(None))) else v for v in row] for row in found]
        print(json.dumps({"view": view, "columns": columns + times, "rows": sorted(whole, key=json.dumps)}))


main()
