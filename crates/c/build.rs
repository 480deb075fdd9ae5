//! The name under which programs load the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Programs linked with one version run with all others of the same first number.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libunisono.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
}
