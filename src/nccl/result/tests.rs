use std::mem::ManuallyDrop;
use std::process::Command;

use super::*;

/// Compiles `stand_in.c` with Unisono's header, and resolves its functions.
fn stand_in() -> Functions {
    let project = env!("CARGO_MANIFEST_DIR");
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnccl.so.2");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-shared", "-fPIC"]);
    for include in ["src/nccl/header/cuda", "src/nccl/header"] {
        compiler.arg(format!("-I{project}/{include}"));
    }
    compiler.arg(format!("{project}/src/nccl/result/stand_in.c")).arg("-o").arg(&library);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // SAFETY: the library has no initialisers, its functions have NCCL's signatures, and it is never closed.
    unsafe {
        let library = ManuallyDrop::new(libloading::Library::new(&library).unwrap());
        Functions::resolve(&library).unwrap()
    }
}

fn on() -> On {
    On { comm: 0x1000 as _, stream: 0x3000 as _ }
}

fn elements(first: usize, count: usize) -> Elements {
    Elements { start: (0x20000 + 4 * first) as *mut u8, count, dtype: sys::ncclFloat32 }
}

#[test]
fn arguments_are_passed_correctly() {
    let nccl = stand_in();
    let (on, all) = (on(), (elements(0, 100), elements(75, 25)));
    assert_eq!(nccl.version().unwrap().to_string(), "2.32.3");
    let id = nccl.unique_id().unwrap();
    assert_eq!(nccl.begin(4, 3, id).unwrap(), on.comm);
    // SAFETY: the stand-in only compares its arguments, and dereferences none but the output addresses, which are valid.
    unsafe {
        assert_eq!(nccl.describe(on.comm).unwrap(), [4, 3, 1]);
        for (operation, op, root) in [
            (Operation::AllReduce, sys::ncclSum, 0),
            (Operation::Reduce { root: 2 }, sys::ncclMax, 2),
            (Operation::Broadcast { root: 1 }, sys::ncclSum, 1),
            (Operation::ReduceScatter, sys::ncclMin, 0),
            (Operation::AllGather, sys::ncclSum, 0),
        ] {
            let done = nccl.collective(operation, all, (op, root), on);
            assert_eq!(done.unwrap(), Progress::Done, "{operation}");
        }
        assert_eq!(nccl.finalize(on.comm).unwrap(), Progress::Begun);
        assert_eq!(nccl.destroy(on.comm).unwrap(), Progress::Done);
        assert_eq!(nccl.abort(on.comm).unwrap(), Progress::Done);
    }
}

#[test]
fn failure_names_the_call_its_code_and_the_logged_error() {
    let nccl = stand_in();
    let all = (elements(0, 99), elements(0, 99));
    // SAFETY: as above.
    let failed = unsafe { nccl.collective(Operation::AllReduce, all, (sys::ncclSum, 0), on()) };
    let error = failed.unwrap_err().to_string();
    assert!(error.starts_with("ncclAllReduce failed with code 4: invalid (send == DATA"), "{error}");
    assert!(nccl.begin(4, 4, nccl.unique_id().unwrap()).is_err());
}

#[test]
fn call_is_in_progress_until_done_or_failed() {
    let nccl = stand_in();
    // SAFETY: as above.
    unsafe {
        assert_eq!(nccl.progress(on().comm).unwrap(), Progress::Begun);
        assert_eq!(nccl.progress(on().comm).unwrap(), Progress::Done);
        let error = nccl.progress(on().comm).unwrap_err();
        assert!(matches!(error, Error::Nccl { code: sys::ncclRemoteError, .. }), "{error}");
    }
}

#[test]
fn group_ends_even_if_a_call_in_it_failed() {
    let (nccl, all) = (stand_in(), (elements(0, 100), elements(0, 100)));
    let (broadcast, op) = (Operation::Broadcast { root: 0 }, sys::ncclSum);
    // SAFETY: as above. The stand-in refuses a group within a group.
    unsafe {
        let failed = nccl.group(|| nccl.collective(broadcast, all, (op, 3), on()).map(|_| ()));
        assert!(failed.unwrap_err().to_string().starts_with("ncclBroadcast failed"));
        let done = nccl.group(|| nccl.collective(broadcast, all, (op, 1), on()).map(|_| ()));
        assert_eq!(done.unwrap(), Progress::Begun);
    }
}
