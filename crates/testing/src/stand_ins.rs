//! Builds the stand-ins for the CUDA driver and NCCL (`crates/stand-ins/`), and configures programs to use them.
//!
//! The dynamic loader must find them when a program starts. So a test launches a process, itself or another, with [`environment`].
//! The `lib.rs` of each stand-in describes its further variables.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::launch::{SAME_FEATURES, outputs, target_and_profile};

/// Returns the folder with `libcuda.so`, `libnccl.so` and `libnccl.so.2`, built on first use, with the profile of
/// this test.
pub fn folder() -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(build);
    FOLDER.clone()
}

/// Returns the variables with which a process uses the stand-ins: `LD_LIBRARY_PATH`, where they come first, and
/// `UNISONO_NCCL`, which names the stand-in for NCCL.
pub fn environment() -> [(&'static str, OsString); 2] {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let before = env::split_paths(&before).filter(|path| !path.as_os_str().is_empty());
    let paths = env::join_paths([folder()].into_iter().chain(before)).expect("no path has a colon");
    [("LD_LIBRARY_PATH", paths), ("UNISONO_NCCL", folder().join("libnccl.so.2").into())]
}

fn build() -> PathBuf {
    let (outputs, (target, profile)) = (outputs(), target_and_profile());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "unisono-stand-in-cuda", "-p", "unisono-stand-in-nccl"]);
    cargo.args(["-p", SAME_FEATURES, "--profile", &profile, "--target-dir"]).arg(target);
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
    assert!(built.success(), "{cargo:?}: {built}");

    let folder = outputs.join("stand-ins");
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for (library, name) in [("cuda", "libcuda.so"), ("nccl", "libnccl.so"), ("nccl", "libnccl.so.2")] {
        replace(&outputs.join(format!("libstand_in_{library}.so")), &folder.join(name));
    }
    folder
}

/// Replaces a file that another process may be using.
fn replace(from: &Path, to: &Path) {
    let new = to.with_extension(format!("{}.new", std::process::id()));
    fs::copy(from, &new).unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), new.display()));
    fs::rename(&new, to).unwrap_or_else(|error| panic!("{} to {}: {error}", new.display(), to.display()));
}
