//! Compares `include/unisono.h` with cbindgen's output.

use std::path::Path;

use expect_test::expect_file;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Compares the header. `UPDATE_EXPECT=1 cargo test -p unisono-c --test suite header` rewrites it.
fn the_header_is_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let tables = tempfile::NamedTempFile::with_suffix(".rs").unwrap();
    let declarations = [unisono_c::collectives::DECLARATIONS, unisono_c::gpu::DECLARATIONS].concat();
    std::fs::write(&tables, declarations).unwrap();
    let builder = cbindgen::Builder::new().with_config(config).with_crate(root).with_src(tables.path());
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    // Rust's safety sections are the conditions of a call.
    let header = String::from_utf8(header).unwrap().replace("# Safety", "Conditions:");
    expect_file!["../../include/unisono.h"].assert_eq(&header);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![the_header_is_generated,]
}
