//! The roles of ranks in the tests.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use unisono::{Communicator, Error, ReduceOp};

/// More arrays than the files that `ulimit -n 64` allows.
const ARRAYS: usize = 100;

/// The time for which a rank with an error stays: a launcher ends the other ranks when the first one exits with an error, and all errors must be
/// captured.
const ALL_HEARD: Duration = Duration::from_millis(500);

pub(crate) fn play(role: &str) -> ExitCode {
    match role {
        "no copies" => forbid(libc::SYS_process_vm_readv),
        "no memory" => forbid(libc::SYS_memfd_create),
        _ => {}
    }
    let mut comm = match unisono::init() {
        Ok(comm) => comm,
        Err(error) => {
            println!("refused: {error}");
            thread::sleep(ALL_HEARD);
            return ExitCode::from(3);
        }
    };
    println!("rank {} has begun over {}", comm.rank(), comm.transport());
    let done = match role {
        "start" => Ok(()),
        "sum" | "no copies" | "no memory" => sum(&mut comm),
        "arrays" => arrays(&mut comm),
        "again" => again(comm),
        "much" => comm.alloc::<u8>(3 << 30).map(drop),
        _ => panic!("no such role: {role}"),
    };
    if let Err(error) = done {
        println!("failed: {error}");
        return ExitCode::from(4);
    }
    ExitCode::SUCCESS
}

/// Sums slices on the stack and on the heap, in all size classes of the transport.
fn sum(comm: &mut Communicator) -> unisono::Result<()> {
    let ranks = comm.ranks();
    for count in [1, 100, 5000, 200_000, 1_000_000] {
        let mut slice: Vec<u64> = (0..count).map(|index| (comm.rank() + index) as u64).collect();
        comm.all_reduce(&mut slice, ReduceOp::Sum)?;
        let of_ranks = ranks * (ranks - 1) / 2;
        let right = |(index, &sum): (usize, &u64)| sum == (of_ranks + ranks * index) as u64;
        assert!(slice.iter().enumerate().all(right), "a wrong sum of {count}");
    }
    Ok(())
}

/// Requests a second world, which is refused. The first one continues to work.
fn again(mut comm: Communicator) -> unisono::Result<()> {
    sum(&mut comm)?;
    drop(comm);
    match unisono::init() {
        Err(error @ Error::Launch(_)) => println!("refused: {error}"),
        other => panic!("it was not refused: {other:?}"),
    }
    Ok(())
}

/// Registers many arrays at the same time, and uses each.
fn arrays(comm: &mut Communicator) -> unisono::Result<()> {
    let arrays = (0..ARRAYS).map(|_| comm.alloc::<f32>(1000)).collect::<Result<Vec<_>, _>>()?;
    for mut array in arrays {
        array.fill(1.0);
        comm.all_reduce(&mut array, ReduceOp::Sum)?;
        assert!(array.iter().all(|&sum| sum == comm.ranks() as f32));
    }
    Ok(())
}

/// Installs a seccomp filter as in a container: the kernel rejects a system call.
#[allow(unsafe_code, reason = "a filter is given to the kernel as addresses")]
fn forbid(call: libc::c_long) {
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        // The number of the system call is the first word of the filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live to the end of the calls, which copy them.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if !set {
        println!("no filters: {}", std::io::Error::last_os_error());
        std::process::exit(77);
    }
}
