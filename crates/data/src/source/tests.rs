//! Tests of the names of sources.

use super::*;
use crate::testing::TestDirectory;

#[test]
fn urls_are_distinguished_from_paths() {
    let csv = |path: &str| format!("csv:{path}").parse::<Source>().unwrap();
    for url in ["s3://bucket/folder", "https://host/file.csv", "http://host:80/a", "gs://bucket/a"] {
        assert!(csv(url).is_remote() && csv(url).is_same(&csv(url)), "{url}");
        assert!(!csv(url).is_same(&csv(&format!("{url}x"))), "{url}");
        assert_eq!(csv(url).to_string(), format!("csv:{url}"));
    }
    for path in ["a/b", "/a:b", "://a", "./s3://bucket", "C:/a"] {
        assert!(!csv(path).is_remote(), "{path}");
    }
}

#[test]
fn sources_round_trip_through_text() {
    for name in [
        "digits",
        "idx:some/where",
        "text:a:b.txt,c",
        "csv:a-*.csv",
        "tfrecord:a",
        "webdataset:a-{00..12}.tar",
        "npy:a",
        "parquet:a-*",
        "arrow:a-*",
        "images:a/b",
        "cifar:c",
        "service:a:1,b:2",
    ] {
        assert_eq!(name.parse::<Source>().unwrap().to_string(), name);
    }
    for name in ["", "digit", "digits:", "idx", "idx:", "text:", "csv", "image:a"] {
        let message = name.parse::<Source>().unwrap_err().to_string();
        assert!(message.contains(&format!("`{name}`: expected `digits`, `idx:DIR`, `text")), "{message}");
        for word in ["csv", "parquet", "arrow", "tfrecord", "webdataset", "npy", "images", "cifar", "service"]
        {
            assert!(message.contains(&format!("`{word}:")), "{message}");
        }
    }
}

#[test]
fn a_source_lists_the_features_that_it_lacks() {
    let built_in = [
        ("parquet", cfg!(feature = "parquet")),
        ("arrow", cfg!(feature = "arrow")),
        ("service", cfg!(feature = "service")),
        ("remote", cfg!(feature = "remote")),
    ];
    for (name, needed) in [
        ("digits", &[][..]),
        ("csv:a", &[]),
        ("parquet:a", &["parquet"]),
        ("arrow:a", &["arrow"]),
        ("service:a:1", &["service"]),
        ("csv:https://host/a", &["remote"]),
        ("parquet:s3://bucket/a", &["parquet", "remote"]),
    ] {
        let missing: Vec<_> =
            needed.iter().copied().filter(|feature| !built_in.contains(&(*feature, true))).collect();
        let source: Source = name.parse().unwrap();
        assert_eq!(source.missing_features(), missing, "{name}");
        if missing.is_empty() {
            continue;
        }
        let message = crate::load(&source, &Options::default()).unwrap_err().to_string();
        let expected = format!(
            "`{name}` cannot be read: this program was built without `--features {}`",
            missing.join(",")
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn zero_classes_are_refused() {
    let none = Options { classes: Some(0), ..Options::default() };
    for name in ["tfrecord:a", "webdataset:a", "npy:a"] {
        let message = crate::load(&name.parse().unwrap(), &none).unwrap_err().to_string();
        assert_eq!(message, "the number of classes is 0: it must be at least 1", "{name}");
    }
}

#[test]
fn sources_with_the_same_files_are_the_same() {
    let directory = TestDirectory::new();
    let [a, b] = ["a.csv", "b.csv"].map(|name| directory.file(name, name).display().to_string());
    let root = directory.path().display();
    let source = |name: String| format!("csv:{name}").parse::<Source>().unwrap();
    let both = source(format!("{a},{b}"));
    assert!(both.is_same(&source(format!("{root}/./*.csv"))));
    assert!(both.is_same(&source(format!("{root}/{{a,b}}.csv"))));
    assert!(!both.is_same(&source(a.clone())));
    assert_eq!(
        [&both, &source(a.clone()), &Source::Idx(directory.path().into())].map(Source::size_bytes),
        [10, 5, 10]
    );
    assert!(source(a.clone()).is_same(&source(format!("{root}/./a.csv"))));
    assert!(!source(a.clone()).is_same(&Source::Text(a.into())));
}

#[test]
fn servers_are_hosts_with_ports() {
    let service: Service = "host1:7070,[::1]:7071, 10.0.0.1:1".parse().unwrap();
    assert_eq!(service.servers, ["host1:7070", "[::1]:7071", "10.0.0.1:1"]);
    assert_eq!(service.to_string(), "host1:7070,[::1]:7071,10.0.0.1:1");
    for (list, wrong) in [
        ("", ""),
        ("host1", "host1"),
        ("a:1,b:x", "b:x"),
        ("a:1,", ""),
        ("http://a:1", "http://a:1"),
        (":1", ":1"),
    ] {
        let refused = list.parse::<Service>().unwrap_err().to_string();
        assert!(
            refused.contains(&format!("`{wrong}` is not the address of a data server: expected HOST:PORT")),
            "{refused}"
        );
    }
}
