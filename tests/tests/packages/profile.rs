//! The cargo profile of packages, `dist`, inherits the settings of single packages from `dev`.

use miot_tests::built::root;
use std::fs;
use toml::Table;

#[test]
fn what_tests_optimize_a_little_is_fully_optimized_in_packages() {
    let manifest: Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let level = |profile: &str, package: &str| {
        manifest["profile"][profile]["package"].get(package)?.get("opt-level")?.as_integer()
    };
    let packages = manifest["profile"]["dev"]["package"].as_table().unwrap();
    let set: Vec<_> = packages.keys().filter(|package| level("dev", package).is_some()).collect();
    assert!(set.len() > 5, "{set:?}");
    let slower: Vec<_> = set.iter().filter(|package| level("dist", package) != Some(3)).collect();
    assert!(slower.is_empty(), "add to [profile.dist.package], with opt-level = 3: {slower:?}");
}
