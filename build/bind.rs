//! Bindings of one `nccl.h`, made by bindgen. The build script uses this, and the test that compares headers.

use std::fmt::Write;
use std::path::Path;

use bindgen::callbacks::{ItemInfo, ParseCallbacks};

include!("../src/nccl/functions.rs");

macro_rules! names {
    ($($name:ident $since:literal,)*) => {
        /// The functions that we use.
        pub(super) const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
    };
}

functions!(names);

/// The types that we use beside those that the functions name.
const TYPES: &str = "ncclResult_t|ncclDataType_t|ncclRedOp_t|ncclConfig_t|ncclUniqueId|ncclComm_t";
const CONSTANTS: &str = "NCCL_MAJOR|NCCL_MINOR|NCCL_PATCH|NCCL_VERSION_CODE|NCCL_UNIQUE_ID_BYTES";

/// What begins the name of a function's type in C, where the function has the name itself.
const POINTER: &str = "unisono_";
/// The value of a number in `ncclConfig_t` that is left to NCCL.
const UNDEFINED: &str = "UNISONO_UNDEFINED";
/// What every header writes into `ncclConfig_t`, most of them without a name for it.
const MAGIC: &str = "0xcafebeef";

/// Binds `nccl.h` of a folder. `cuda` is the folder of the headers that stand in for CUDA's, whether that is there
/// or not.
///
/// Of a function we want the type, to resolve it when the library is loaded, so C is asked for the type of its address;
/// it has the function's name in Rust.
///
/// # Errors
/// What is wrong with the header, in a sentence.
pub(super) fn bind(folder: &Path, cuda: &Path) -> Result<String, String> {
    let mut source = format!("#include <nccl.h>\nenum {{ {UNDEFINED} = NCCL_CONFIG_UNDEF_INT }};\n");
    for name in FUNCTIONS {
        writeln!(source, "typedef __typeof__(&{name}) {POINTER}{name};").expect("a string takes everything");
    }
    let bindings = bindgen::Builder::default()
        .header_contents("unisono_nccl.h", &source)
        .clang_args([cuda, folder].map(|folder| format!("-I{}", folder.display())))
        .allowlist_type(format!("{TYPES}|{POINTER}.*"))
        .allowlist_var(format!("{CONSTANTS}|{UNDEFINED}"))
        .parse_callbacks(Box::new(Names))
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(false)
        // One token, one space: whether rustfmt is there makes no difference to who reads it.
        .formatter(bindgen::Formatter::None)
        .generate()
        .map_err(|error| error.to_string())?
        .to_string();
    let config = undefined_config(&bindings)?;
    Ok(format!("{bindings}\n{config}\n"))
}

#[derive(Debug)]
struct Names;

impl ParseCallbacks for Names {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        item.name.strip_prefix(POINTER).map(str::to_owned)
    }
}

/// A constant of the type `ncclConfig_t` in which everything is left to NCCL, as its own macro makes it.
///
/// The type grows with every few versions, so the fields are taken from the bindings.
fn undefined_config(bindings: &str) -> Result<String, String> {
    let mut fields = String::new();
    for (name, kind) in config_fields(bindings)? {
        let value = match (name, kind) {
            ("size", _) => "size_of::<ncclConfig_t>()",
            ("magic", _) => MAGIC,
            ("version", _) => "NCCL_VERSION_CODE",
            (_, ":: std :: os :: raw :: c_int") => UNDEFINED,
            (_, kind) if kind.starts_with("* const") => "std::ptr::null()",
            (_, kind) if kind.starts_with("* mut") => "std::ptr::null_mut()",
            (name, kind) => {
                return Err(format!(
                    "ncclConfig_t has a field {name} of the type {kind}, which is new to us"
                ));
            }
        };
        write!(fields, "{name}: {value}, ").expect("a string takes everything");
    }
    Ok(format!("pub const UNDEFINED_CONFIG: ncclConfig_t = ncclConfig_t {{ {fields}}};"))
}

/// Names and types of the fields of `ncclConfig_t`.
pub(super) fn config_fields(bindings: &str) -> Result<Vec<(&str, &str)>, String> {
    let named = |name: &str| format!("there is no {name} in the bindings");
    let alias = between(bindings, "pub type ncclConfig_t = ", " ;").ok_or_else(|| named("ncclConfig_t"))?;
    let body = between(bindings, &format!("pub struct {alias} {{ "), ", }").ok_or_else(|| named(alias))?;
    let fields = body.split(" , ").map(|field| {
        let (name, kind) = field.trim_start_matches("pub ").split_once(" : ").ok_or_else(|| named(field))?;
        Ok((name, kind.trim()))
    });
    fields.collect()
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(text, _)| text)
}
