//! Compares the table with `ucp/api/ucp.h`, if it is installed.

use std::collections::BTreeMap;

use crate::transport::ucx::sys::{CONSTANTS, LAYOUT, SIGNATURES};

const SOURCE: &str =
    "#include <ucp/api/ucp.h>\n#include <ucs/type/status.h>\n#include <ucs/type/thread_mode.h>\n";

/// Returns the header's declarations in Rust, with one space between tokens.
fn bindings() -> String {
    let bindings = bindgen::Builder::default()
        .header_contents("unisono_ucp.h", SOURCE)
        .allowlist_function("uc[ps]_.*")
        .allowlist_type("uc[ps]_.*|UC[PS]_.*")
        .allowlist_var("UC[PS]_.*")
        .prepend_enum_name(false)
        .generate_comments(false)
        .formatter(bindgen::Formatter::None)
        .generate();
    bindings.expect("libucx-dev is installed (scripts/setup --tests)").to_string()
}

/// Returns the text without spaces, and without the path of C's types.
fn plain(text: &str) -> String {
    text.replace(' ', "").replace("::std::os::raw::", "")
}

#[test]
fn table_agrees_with_the_header() {
    let bindings = bindings();
    let mut mismatches = Vec::new();
    for (name, arguments, result) in SIGNATURES {
        let declared = declaration(&bindings, name);
        let expected = (arguments.iter().map(|kind| plain(kind)).collect::<Vec<_>>(), plain(result));
        if declared.as_ref() != Some(&expected) {
            mismatches.push(format!("{name}: {declared:?}, and not {expected:?}"));
        }
    }
    let constants = constants(&bindings);
    for (name, value) in CONSTANTS {
        if constants.get(*name) != Some(&value.to_string()) {
            mismatches.push(format!("{name}: {:?}, and not {value}", constants.get(*name)));
        }
    }
    let text = plain(&bindings);
    for (name, size_bytes, fields) in LAYOUT {
        // Some are typedefs of a structure whose name has no suffix.
        let tag = name.strip_suffix("_t").filter(|tag| text.contains(&format!("[\"Sizeof{tag}\"]")));
        let name = tag.unwrap_or(name);
        for (field, offset) in *fields {
            // bindgen's own assertion.
            let line = format!(
                "[\"Offsetoffield:{name}::{field}\"][::std::mem::offset_of!({name},{field})-{offset}usize]"
            );
            if !text.contains(&line) {
                mismatches.push(format!("{name}.{field} is not at {offset}"));
            }
        }
        let size = format!("[\"Sizeof{name}\"][::std::mem::size_of::<{name}>()-");
        let declared = text.split_once(&size).and_then(|(_, rest)| rest.split_once("usize"));
        let declared: Option<usize> = declared.and_then(|(size, _)| size.parse().ok());
        // A later version may have more fields at the end.
        if declared.is_none_or(|declared| declared < *size_bytes) {
            mismatches.push(format!("{name} has {declared:?} bytes, and not {size_bytes}"));
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

/// Returns the types of the arguments of a function and of its result.
fn declaration(bindings: &str, name: &str) -> Option<(Vec<String>, String)> {
    let (_, rest) = bindings.split_once(&format!("pub fn {name} ("))?;
    let (declaration, _) = rest.split_once(';')?;
    let (arguments, result) = declaration.rsplit_once(')')?;
    let arguments = arguments.split(',').filter_map(|argument| argument.split_once(" : "));
    Some((arguments.map(|(_, kind)| plain(kind)).collect(), plain(result.trim().trim_start_matches("->"))))
}

/// Returns the values of the header's constants.
fn constants(bindings: &str) -> BTreeMap<String, String> {
    let constants = bindings.split("pub const ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(" : ")?;
        let (_, value) = rest.split(';').next()?.split_once(" = ")?;
        Some((name.to_owned(), plain(value)))
    });
    constants.collect()
}
