//! Our header, held against NCCL's: both are bound in the way of the build script, and the results are compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::bind::{FUNCTIONS, bind, config_fields};

const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/nccl/header");
const CUDA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/nccl/header/cuda");

/// What is told apart of two bindings.
struct Interface {
    /// Functions, handles and the kinds of numbers that enumerations are.
    types: BTreeMap<String, String>,
    constants: BTreeMap<String, String>,
    /// Sizes, alignments and offsets, as bindgen asserts them.
    layout: BTreeMap<String, String>,
    /// Of `ncclConfig_t`, with their types, in their order.
    fields: Vec<(String, String)>,
    /// Its constant.
    settings: BTreeMap<String, String>,
}

fn interface(folder: &Path) -> Interface {
    let bindings =
        bind(folder, Path::new(CUDA)).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let fields = config_fields(&bindings).unwrap();
    let fields = fields.into_iter().map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
    let (bindings, settings) = bindings.split_once("pub const UNDEFINED_CONFIG").unwrap();
    // Each version of NCCL names the structure by itself.
    let (_, alias) = bindings.split_once("pub type ncclConfig_t = ").unwrap();
    let bindings = &bindings.replace(alias.split(' ').next().unwrap(), "ncclConfig_t");
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
    // A name that bindgen makes up, and counts.
    constants.values_mut().for_each(|value| *value = value.trim_start_matches("_bindgen_ty_1").to_owned());
    let (_, settings) = settings.split_once("ncclConfig_t {").unwrap();
    let settings = settings.split(", ").filter_map(|field| field.split_once(": "));
    Interface {
        types: items("pub type ", " = "),
        constants,
        layout: items("[\"", "\"] "),
        fields,
        settings: settings.map(|(name, value)| (name.trim().to_owned(), value.to_owned())).collect(),
    }
}

/// What in `ours` is not so in `theirs`, which may have more.
fn differences(ours: &Interface, theirs: &Interface) -> Vec<String> {
    // It grows: `fields` sees to it that it does so at its end.
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
        let signature = ours.types.get(*name).unwrap_or_else(|| panic!("there is no {name}"));
        assert!(signature.contains("unsafe extern \"C\" fn"), "{name} is {signature}");
    }
    assert_eq!(ours.constants["UNISONO_UNDEFINED"].rsplit("= ").next().unwrap(), "- 2147483648");
    assert_eq!(ours.fields.len(), 4);
    assert_eq!(ours.layout["Size of ncclUniqueId"].rsplit("- ").next().unwrap(), "128usize]");
}

pub(super) fn ours_is_nccl_s(wheel: &Path) {
    let (ours, theirs) = (interface(Path::new(OURS)), interface(&wheel.join("include")));
    let differences = differences(&ours, &theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // All of it was seen: functions and five types; constants of three enumerations and two more; two structures.
    let seen = (ours.types.len(), ours.constants.len(), ours.layout.len());
    assert!(seen.0 >= FUNCTIONS.len() + 5 && seen.1 >= 26 && seen.2 >= 9, "{seen:?}");
    assert!(theirs.fields.len() >= ours.fields.len());
}

/// `NCCL_CONFIG_INITIALIZER`, which is a macro and so cannot be bound.
pub(super) fn settings(wheel: &Path) {
    let folder = wheel.join("include");
    let text = fs::read_to_string(folder.join("nccl.h")).unwrap();
    let (_, text) = text.split_once("#define NCCL_CONFIG_INITIALIZER {").unwrap();
    let (text, _) = text.split_once('}').unwrap();
    let mut theirs = interface(&folder);
    for line in text.lines().filter(|line| line.contains("/*")) {
        let (value, name) = line.split_once("/*").unwrap();
        let name = name.trim_matches([' ', '\\', '/', '*']);
        let expected = match value.trim_matches([' ', ',']) {
            "sizeof(ncclConfig_t)" => "size_of::<ncclConfig_t>()",
            "NCCL_API_MAGIC" | "0xcafebeef" => "0xcafebeef",
            value if value.starts_with("NCCL_VERSION") => "NCCL_VERSION_CODE",
            "NCCL_CONFIG_UNDEF_INT" => "UNISONO_UNDEFINED",
            "NCCL_CONFIG_UNDEF_PTR" => "std::ptr::null()",
            value => panic!("NCCL begins {name} as {value}, which is new to us"),
        };
        assert_eq!(theirs.settings.remove(name).as_deref(), Some(expected), "{name}");
    }
    assert!(theirs.settings.is_empty(), "NCCL does not set {:?}", theirs.settings);
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
    // Another type at the same place, and another place.
    assert_eq!(differ("unsigned int version;", "int version;").len(), 1);
    assert_eq!(differ("int blocking;", "int other, blocking;").len(), 2);
    // More at the end is none.
    assert!(differ("int blocking;", "int blocking; const char *name;").is_empty());
    assert!(differ("ncclRemoteError = 6", "ncclNew = 9, ncclRemoteError = 6").is_empty());
}
