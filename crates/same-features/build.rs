//! Does nothing. Without it, Cargo would not look at the build dependencies.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
