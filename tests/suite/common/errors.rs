//! The two classes of errors: after a refused call all ranks continue, after a failed one none does.

use std::time::Duration;

use half::bf16;
use unisono::{
    Algorithm, Call, Choice, Collective as _, Communicator, DType, Error, ErrorCode, Method, ReduceOp,
    Result, Unisono, Vendor,
};

type Calls = fn(&mut Communicator) -> Result<()>;

/// Calls that are refused over any transport but MPI.
const REFUSED: [(ErrorCode, Calls); 11] = [
    (ErrorCode::Unsupported, |comm| comm.set_choice(Method::InNodes(Algorithm::Ring, Vendor::Mpi))),
    (ErrorCode::Unsupported, |comm| {
        let by_mpi = Method::Vendor(Vendor::Mpi);
        comm.call().algorithm(by_mpi).all_reduce(&mut [1_u8], ReduceOp::Sum).map(drop)
    }),
    (ErrorCode::Unsupported, |comm| {
        let by_mpi = Method::Vendor(Vendor::Mpi);
        comm.call().algorithm(by_mpi).all_gather_async(vec![1_u8])?.wait().map(drop)
    }),
    (ErrorCode::Unsupported, |comm| {
        let call = Call::all_reduce(DType::U8, ReduceOp::Sum, 1);
        comm.collective(Vendor::Nccl)?.run(&call, &mut [1]).map(drop)
    }),
    (ErrorCode::Unsupported, |comm| comm.collective(Vendor::Mpi).map(drop)),
    (ErrorCode::Unsupported, |comm| comm.scan(&mut [1.0_f32], ReduceOp::Mean).map(drop)),
    (ErrorCode::Unsupported, |comm| comm.exclusive_scan_async(vec![1_u32], ReduceOp::Mean)?.wait().map(drop)),
    (ErrorCode::Unsupported, |comm| comm.all_reduce(&mut [1.0_f32], ReduceOp::BitXor).map(drop)),
    (ErrorCode::Unsupported, |comm| {
        comm.reduce_scatter_async(vec![bf16::ONE; 9], ReduceOp::LogicalAnd)?.wait().map(drop)
    }),
    (ErrorCode::Memory, |comm| comm.alloc::<u64>(1 << 45).map(drop)),
    // Another world, which does not start.
    (ErrorCode::Setting, |_| Unisono::builder().tuning("no-such-file.toml").threads(1).map(drop)),
];

/// Checks that the next call succeeds on all ranks after a refusal on all ranks or on one.
pub fn refused(comm: &mut Communicator) {
    for (code, calls) in REFUSED {
        for alone in [false, true] {
            if !alone || comm.rank() == comm.ranks() - 1 {
                let error = calls(comm).unwrap_err();
                assert_eq!(error.code(), code, "{error}");
                assert!(!error.is_fatal(), "{error}");
            }
            goes_on(comm);
        }
    }
    let error = comm.on_rank0("reading", || Err::<(), _>("there is no such file")).unwrap_err();
    assert_eq!((error.code(), error.is_fatal(), error.failed_rank()), (ErrorCode::OnRank0, false, Some(0)));
    goes_on(comm);
}

fn goes_on(comm: &mut Communicator) {
    let mut one = [1_u64; 5];
    comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
    assert_eq!(one, [comm.ranks() as u64; 5]);
}

/// Returns the errors of ranks 0 and 1 of threads for a failed call, which is the last.
pub fn failed(calls: Calls) -> [Option<Error>; 2] {
    let errors = unisono::threads(2, |mut comm| {
        comm.barrier().unwrap();
        comm.set_timeout(Duration::from_millis(300));
        let error = calls(&mut comm).err()?;
        assert!(error.is_fatal(), "{error}");
        for refuses in [
            |comm: &mut Communicator| comm.all_reduce(&mut [1_u8], ReduceOp::Max).map(drop),
            |comm: &mut Communicator| comm.all_reduce_async(vec![1_u8], ReduceOp::Max)?.wait().map(drop),
            |comm: &mut Communicator| comm.send(&[1_u8], 1 - comm.rank()),
            |comm: &mut Communicator| comm.split(Some(0), 0).map(drop),
            |comm: &mut Communicator| comm.collective(Choice::Auto).map(drop),
        ] {
            let later = refuses(&mut comm).unwrap_err();
            assert!(matches!(later, Error::Aborted { .. }), "{later}");
        }
        Some(error)
    });
    errors.try_into().unwrap()
}
