//! Compares Unisono's header with NCCL's: both are bound as in the build script, and the bindings are compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::bind::{FUNCTIONS, bind};

const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/nccl/header");
const CUDA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/nccl/header/cuda");

/// The compared parts of a binding.
struct Interface {
    /// Functions, handles, and the integer types of enumerations.
    types: BTreeMap<String, String>,
    constants: BTreeMap<String, String>,
    /// Sizes, alignments and offsets, as bindgen asserts them.
    layout: BTreeMap<String, String>,
    /// The fields of `ncclConfig_t`, with their types, in order.
    fields: Vec<(String, String)>,
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("there is no {before:?}"));
    rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} follows {before:?}")).0
}

fn interface(folder: &Path) -> Interface {
    let bindings =
        bind(folder, Path::new(CUDA)).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    // Each version of NCCL has another name for the structure.
    let name = between(&bindings, "pub type ncclConfig_t = ", " ;");
    let fields = between(&bindings, &format!("pub struct {name} {{ "), ", }").split(" , ").map(|field| {
        let (name, kind) = field.trim_start_matches("pub ").split_once(" : ").unwrap();
        (name.to_owned(), kind.trim().to_owned())
    });
    let fields = fields.collect();
    let bindings = &bindings.replace(name, "ncclConfig_t");
    let items = |begin: &'static str, middle: &'static str| {
        let items = bindings.split(begin).skip(1).map(move |rest| {
            let (name, value) = rest.split(" ;").next().unwrap().split_once(middle).unwrap();
            (name.to_owned(), value.to_owned())
        });
        items.collect::<BTreeMap<_, _>>()
    };
    let mut constants = items("pub const ", " : ");
    constants.retain(|name, _| {
        !["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH", "NCCL_VERSION_CODE"].contains(&&**name)
    });
    Interface { types: items("pub type ", " = "), constants, layout: items("[\"", "\"] "), fields }
}

/// Returns the entries of `ours` that differ in `theirs`, which may have additional entries.
fn differences(ours: &Interface, theirs: &Interface) -> Vec<String> {
    // The configuration may have additional fields at its end, which `fields` checks.
    let grows = "Size of ncclConfig_t";
    let pairs =
        [(&ours.types, &theirs.types), (&ours.constants, &theirs.constants), (&ours.layout, &theirs.layout)];
    let mut differences = Vec::new();
    for (ours, theirs) in pairs {
        for (name, value) in ours.iter().filter(|(name, _)| *name != grows) {
            if theirs.get(name) != Some(value) {
                differences.push(format!("{name} is {value} and should be {:?}", theirs.get(name)));
            }
        }
    }
    if !theirs.fields.starts_with(&ours.fields) {
        differences.push(format!("the fields {:?} do not begin {:?}", ours.fields, theirs.fields));
    }
    differences
}

pub(super) fn ours_is_whole() {
    let ours = interface(Path::new(OURS));
    for name in FUNCTIONS {
        let signature = ours.types.get(*name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(signature.contains("unsafe extern \"C\" fn"), "{name} is {signature}");
    }
    assert_eq!(ours.fields.len(), 4);
    assert_eq!(ours.layout["Size of ncclUniqueId"].rsplit("- ").next().unwrap(), "128usize]");
}

pub(super) fn ours_is_nccl_s(wheel: &Path) {
    let (ours, theirs) = (interface(Path::new(OURS)), interface(&wheel.join("include")));
    let differences = differences(&ours, &theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // Everything was compared: functions and five types; constants of three enumerations and one more; two structures.
    let compared = (ours.types.len(), ours.constants.len(), ours.layout.len());
    assert!(compared.0 >= FUNCTIONS.len() + 5 && compared.1 >= 25 && compared.2 >= 9, "{compared:?}");
    assert!(theirs.fields.len() >= ours.fields.len());
}

/// Compares what `begin` in `src/nccl/result.rs` sets with `NCCL_CONFIG_INITIALIZER`, a macro, which cannot be bound.
pub(super) fn settings(wheel: &Path) {
    let text = fs::read_to_string(wheel.join("include/nccl.h")).unwrap();
    let values = between(&text, "#define NCCL_CONFIG_INITIALIZER {", "}");
    let values: Vec<&str> =
        values.lines().filter_map(|line| line.split_once(',')).map(|(value, _)| value.trim()).collect();
    assert_eq!(values[..3], ["sizeof(ncclConfig_t)", "NCCL_API_MAGIC", "NCCL_VERSION_CODE"]);
    assert!(text.contains("#define NCCL_API_MAGIC 0xcafebeef\n"), "the number that NCCL checks");
}

pub(super) fn differences_are_seen() {
    let ours = interface(Path::new(OURS));
    let text = fs::read_to_string(Path::new(OURS).join("nccl.h")).unwrap();
    let differ = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("nccl.h"), text.replace(from, to)).unwrap();
        differences(&ours, &interface(folder.path()))
    };
    assert_eq!(differ("ncclMin = 3", "ncclMin = 5").len(), 1);
    assert_eq!(differ("NCCL_UNIQUE_ID_BYTES 128", "NCCL_UNIQUE_ID_BYTES 64").len(), 2);
    assert_eq!(differ("ncclDataType_t type, int root,", "ncclDataType_t type, long root,").len(), 1);
    // Another type at the same position, and another position.
    assert_eq!(differ("unsigned int version;", "int version;").len(), 1);
    assert_eq!(differ("int blocking;", "int other, blocking;").len(), 2);
    // Additional fields at the end are no difference.
    assert!(differ("int blocking;", "int blocking; const char *name;").is_empty());
    assert!(differ("ncclRemoteError = 6", "ncclNew = 9, ncclRemoteError = 6").is_empty());
}
