//! Exported functions that other macros write. cbindgen, which does not expand macros, reads their declarations.

/// Exports functions that return 0 or the code of an error. `DECLARATIONS` has their text without the bodies.
macro_rules! exported {
    ($($(#[doc = $doc:expr])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[doc = $doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int $body
        )*

        /// The functions of the table, for cbindgen.
        #[doc(hidden)]
        pub const DECLARATIONS: &str = concat!($(
            $("///", $doc, "\n",)*
            "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn ", stringify!($name), "(",
            $(stringify!($argument), ": ", stringify!($type), ", ",)*
            ") -> c_int {}\n",
        )*);
    };
}

pub(crate) use exported;
