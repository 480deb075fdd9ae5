//! Tests of paths, patterns and lists of files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use proptest::prelude::*;

use super::super::testing::TestDirectory;
use super::*;

/// Returns the names of the files that `name` selects in a directory with some files.
fn found(name: &str) -> Result<Vec<String>, String> {
    let directory = TestDirectory::new();
    for file in ["b-1.x", "b-0.x", "a.x", "a,b", "a[1]", "a1", "{2}", "02.y", "03.y", ".hidden.x", "B-2.X"] {
        directory.file(file, "");
    }
    fs::write(directory.path().join(OsStr::from_bytes(b"\xff.y")), "").unwrap();
    fs::create_dir(directory.path().join("c.x")).unwrap();
    fs::create_dir(directory.path().join("deep")).unwrap();
    directory.file("deep/d.x", "");
    let root = format!("{}/", directory.path().display());
    let path = name.split(' ').map(|part| format!("{root}{part}")).collect::<Vec<_>>().join(",");
    let short = |file: PathBuf| file.to_string_lossy().strip_prefix(&root).unwrap().to_owned();
    named(Path::new(&path))
        .map(|files| files.into_iter().map(short).collect())
        .map_err(|error| error.to_string().replace(&root, ""))
}

#[test]
fn names_patterns_and_lists_are_found() {
    let cases: [(&str, &[&str]); 17] = [
        ("a.x", &["a.x"]),
        ("absent", &["absent"]),
        ("*.x", &["a.x", "b-0.x", "b-1.x"]),
        ("b-?.x", &["b-0.x", "b-1.x"]),
        ("*.y", &["02.y", "03.y", "\u{fffd}.y"]),
        (".*.x", &[".hidden.x"]),
        ("**/d.x", &["deep/d.x"]),
        ("**/*.x", &["a.x", "b-0.x", "b-1.x", "deep/d.x"]),
        ("b-1.x a.x", &["b-1.x", "a.x"]),
        ("a.x b-*.x", &["a.x", "b-0.x", "b-1.x"]),
        // Existing files whose names have special characters.
        ("a,b", &["a,b"]),
        ("a[1]", &["a[1]"]),
        ("{2}", &["{2}"]),
        ("{02..04}.y", &["02.y", "03.y", "04.y"]),
        // As in a shell, a range may descend.
        ("b-{1..0}.x", &["b-1.x", "b-0.x"]),
        ("{b-{1..0}.x", &["{b-{1..0}.x"]),
        ("b-{1,0}.x", &["b-1.x", "b-0.x"]),
    ];
    for (name, expected) in cases {
        assert_eq!(
            found(name).as_deref(),
            Ok(&expected.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()[..]),
            "{name}"
        );
    }
    assert_eq!(unbraced("{8..11}{a,b}").unwrap().concat(), "8a8b9a9b10a10b11a11b");
}

#[test]
fn patterns_may_be_relative() {
    assert_eq!(matches("Cargo.[a-t]oml").unwrap(), [Path::new("Cargo.toml")]);
    assert_eq!(matches("./Cargo.tom?").unwrap(), [Path::new("./Cargo.toml")]);
}

#[test]
fn patterns_without_a_match_are_refused() {
    let cases = [
        ("*.z", "no file matches `*.z`: expected a path, or a pattern of existing files"),
        ("a***", "a valid pattern"),
        ("a.x *.x", "`a.x`: is named twice"),
        ("a.x ./a.x", "`./a.x`: is named twice"),
        ("deep/d.x deep/../deep/*.x", "d.x`: is named twice"),
        ("absent absent", "`absent`: is named twice"),
        ("{1000000..0}", "at most 1000000 names between its braces"),
        ("{0..1000000}", "at most 1000000 names between its braces"),
        ("{0..9999999999999999999999}", "at most 1000000 names between its braces"),
        ("{0..999}{0..999}{0..1}", "at most 1000000 names between its braces"),
    ];
    for (name, expected) in cases {
        let message = found(name).unwrap_err();
        assert!(message.contains(expected), "{message}, not {expected}");
    }
}

#[test]
fn empty_elements_of_lists_are_refused() {
    for list in ["a.csv,", ",a.csv", "a.csv,,b.csv"] {
        let message = named(Path::new(list)).unwrap_err().to_string();
        let expected = "is a list with an empty element: expected a name before and after each comma";
        assert_eq!(message, format!("`{list}`: {expected}"));
    }
}

proptest! {
    #[test]
    fn no_name_causes_a_panic(name in "[a{}.,*0-9?\\[\\]-]{0,24}") {
        let _ = named(Path::new(&format!("/nowhere/{name}")));
    }
}
