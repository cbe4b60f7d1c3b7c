//! Real programs work on the mount, and their files are correct.

use crate::mounted::{MountDirs, Mounted, shell};
use miot_tests::built::root;
use miot_tests::process::run;
use std::path::Path;

fn on_a_mount(name: &str, options: &[&str], test: impl FnOnce(&Mounted)) {
    let mounted = MountDirs::new(name).mounted(options);
    test(&mounted);
    mounted.end();
}

fn sh(directory: &Path, script: &str) -> String {
    run(&mut shell(directory, script)).success().stdout
}

#[test]
fn git_keeps_a_repository() {
    on_a_mount("fuse-git", &[], |mounted| {
        let script = format!(
            "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME=$PWD
             git init -q repository; cd repository
             cp -r {0}/proto {0}/docs .
             git add -A; git -c user.name=a -c user.email=a@b commit -qm first
             git mv docs papers; echo more >> papers/reference/trace.md; git rm -rq proto/tests
             git -c user.name=a -c user.email=a@b commit -qam second
             git checkout -q HEAD~1; git checkout -q -; git gc -q; git fsck --strict; git status --porcelain; git log --oneline | wc -l",
            root().display()
        );
        assert_eq!(sh(&mounted.place.mount, &script).trim(), "2");
        let below = mounted.place.source.join("repository");
        assert_eq!(sh(&below, "git -c safe.directory='*' status --porcelain"), "");
    });
}

#[test]
fn sqlite_keeps_a_database_with_two_writers() {
    for journal in ["delete", "wal"] {
        on_a_mount("fuse-sqlite", &[], |mounted| {
            let script = format!(
                "sqlite3 db 'pragma journal_mode={journal}; create table t(n integer, s text);' > out
                 insert() {{ for i in $(seq 20); do sqlite3 -cmd '.timeout 60000' db \
                    \"insert into t select value, hex(randomblob(100)) from generate_series(1, 50);\"; done; }}
                 insert & a=$!; insert & b=$!; wait $a; wait $b
                 sqlite3 db 'pragma integrity_check; select count(*) from t; vacuum; pragma integrity_check;'"
            );
            assert_eq!(sh(&mounted.place.mount, &script), "ok\n2000\nok\n", "{journal}");
        });
    }
}

#[test]
fn fio_verifies_its_writes() {
    for (options, jobs) in [
        (
            ["--cache", "auto"],
            "--name=a --rw=randwrite --bs=4k --name=b --rw=write --bs=1m --name=c --rw=randwrite --bs=512-64k --ioengine=mmap",
        ),
        (
            ["--cache", "none"],
            "--name=a --rw=randwrite --bs=4k --direct=1 --name=b --rw=write --bs=1m --name=c --rw=randwrite --bs=3k --ioengine=mmap",
        ),
    ] {
        on_a_mount("fuse-fio", &options, |mounted| {
            let script = format!(
                "fio --output=log --size=16m --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --fallocate=none {jobs}; grep -c 'err= 0' log"
            );
            assert_eq!(sh(&mounted.place.mount, &script).trim(), "3", "{options:?}");
        });
    }
}

#[test]
fn source_tree_is_the_same_through_tar() {
    on_a_mount("fuse-tar", &[], |mounted| {
        let script = format!(
            "tar -C {} --exclude=./target --exclude=./.git -cf ../tree.tar .
             tar -xpf ../tree.tar; mkdir ../direct; tar -C ../direct -xpf ../tree.tar
             sums() {{ find . -type f -exec sha256sum {{}} + | sort -k 2; find . -printf '%p %y %m %s %T@ %l\\n' | grep -v '^\\. ' | sort; }}
             sums > ../through; cd ../direct; sums > ../directly; cd ../source; sums > ../below
             cmp ../through ../directly; cmp ../through ../below; wc -l < ../through",
            root().display()
        );
        let lines: usize = sh(&mounted.place.mount, &script).trim().parse().unwrap();
        assert!(lines > 500, "{lines}");
    });
}
