//! bindgen's output, and the table of functions.

/// The bindings to `nccl.h`, which the build script generates.
#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    dead_code,
    clippy::all,
    reason = "generated from C"
)]
mod raw {
    include!(concat!(env!("OUT_DIR"), "/nccl.rs"));
}

include!("functions.rs");

pub(super) use raw::*;

/// The pointer type within an `Option`: bindgen declares C function pointers as options.
pub(super) trait Pointer {
    type To;
}

impl<T> Pointer for Option<T> {
    type To = T;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) name: &'static str,
    /// The version that introduced it.
    pub(super) since: &'static str,
}

macro_rules! table {
    ($($name:ident $since:literal,)*) => {
        /// All functions that Unisono uses, resolved.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "NCCL's names")]
        pub(super) struct Functions {
            $(pub(super) $name: <raw::$name as Pointer>::To,)*
        }

        impl Functions {
            /// Resolves all functions in a library that stays loaded.
            ///
            /// # Errors
            /// The functions that the library lacks.
            ///
            /// # Safety
            /// Functions of these names must have the signatures that `nccl.h` declares. The library must not be closed
            /// while the result is used.
            #[allow(non_snake_case, reason = "NCCL's names")]
            pub(super) unsafe fn resolve(library: &libloading::Library) -> Result<Self, Vec<Missing>> {
                $(
                    // SAFETY: the caller promises that the function has this signature.
                    let $name: raw::$name = unsafe { library.get(stringify!($name)) }.map_or(None, |symbol| *symbol);
                )*
                if let ($(Some($name),)*) = ($($name,)*) {
                    return Ok(Self { $($name,)* });
                }
                let all = [$(($name.is_none(), Missing { name: stringify!($name), since: $since }),)*];
                Err(all.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, missing)| missing).collect())
            }
        }
    };
}

functions!(table);
