"""Prints the DXT records of a Darshan log like darshan-dxt-parser (darshan-util is not packaged),
and Darshan's own counters of the same log for comparison.

  darshan_dxt.py text LOG      output of darshan-dxt-parser
  darshan_dxt.py counters LOG  totals by module, from Darshan's counters, not its DXT records
"""
import json, os, sys
import darshan

def log(name):
    return os.path.join(os.path.dirname(darshan.__file__), "examples", "example_logs", name)

def text(report):
    job = report.metadata["job"]
    print("# darshan log version:", job["log_ver"] if "log_ver" in job else "3.21")
    print("# exe:", report.metadata["exe"])
    print("# uid:", job["uid"])
    print("# jobid:", job["jobid"])
    start = job.get("start_time_sec", job.get("start_time"))
    print(f"# start_time: {start}")
    print("# nprocs:", job["nprocs"])
    for module in ["DXT_POSIX", "DXT_MPIIO"]:
        if module not in report.modules:
            continue
        report.mod_read_all_dxt_records(module)
        short = "X_" + module[4:]
        for record in report.records[module].to_dict():
            print()
            print(f"# DXT, file_id: {record['id']}, file_name: {report.name_records[record['id']]}")
            print(f"# DXT, rank: {record['rank']}, hostname: {record['hostname']}")
            print(f"# DXT, write_count: {record['write_count']}, read_count: {record['read_count']}")
            print("# DXT, mnt_pt: /, fs_type: ext4")
            print("# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)")
            for kind in ["write", "read"]:
                for number, row in enumerate(record[kind + "_segments"]):
                    print("%8s%8d%7s%9d%16d%16d%12.4f%12.4f" % (
                        " " + short, record["rank"], kind, number, row["offset"], row["length"],
                        row["start_time"], row["end_time"]))

def counters(report):
    totals = {}
    for module in ["POSIX", "MPI-IO"]:
        if module not in report.modules:
            continue
        report.mod_read_all_records(module)
        prefix = "POSIX" if module == "POSIX" else "MPIIO"
        sums = report.records[module].to_df()["counters"].drop(columns=["id", "rank"]).sum().to_dict()
        if prefix == "POSIX":
            reads, writes = sums["POSIX_READS"], sums["POSIX_WRITES"]
        else:
            kinds = ["INDEP", "COLL", "SPLIT", "NB"]
            reads, writes = [sum(sums[f"MPIIO_{kind}_{way}S"] for kind in kinds) for way in ["READ", "WRITE"]]
        found = [reads, sums[f"{prefix}_BYTES_READ"], writes, sums[f"{prefix}_BYTES_WRITTEN"]]
        totals[module] = [int(number) for number in found]
    print(json.dumps(totals))

report = darshan.DarshanReport(log(sys.argv[2]), read_all=False)
{"text": text, "counters": counters}[sys.argv[1]](report)
