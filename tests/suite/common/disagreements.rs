//! Calls that differ between ranks, and their errors.

use std::time::Duration;

use unisono::{Algorithm, Communicator, Method, ReduceOp, Vendor};

/// A call of one rank that the others do not make, and the parts of the error that name both.
pub const DISAGREEMENTS: [(&str, &str, &str); 7] = [
    ("count", "of 100000 f32", "of 99999 f32"),
    ("dtype", "of 100000 f32", "of 100000 u32"),
    ("op", "f32, mean", "f32, sum"),
    ("algorithm", "by tree", "by butterfly"),
    ("vendor", "of 100000 f32, sum, by rail+mpi", "of 99999 f32, sum, by rail+mpi"),
    ("order", "all-reduce #0", "broadcast #0"),
    ("message", "rank 1 called message #0 of 100000 f32", "rank 0 called message #0 of 99999 f32"),
];

/// Mismatched labels, over shared memory and over messages. Without shared memory, a rank has the name of its own label only, and
/// any rank may detect the mismatch first.
pub const OTHER_LABELS: [(&str, &str, &str); 2] = [
    ("label", "#0 \"bucket 1\" of 100000 f32", "#0 \"bucket 2\" of 100000 f32"),
    ("label", "called all-reduce #0 \"bucket ", "called all-reduce #0 with another label of 100000 f32"),
];

/// Makes calls that differ on one rank.
pub fn disagree(role: &str, comm: &mut Communicator) {
    match role {
        "count" => mismatched(comm, |comm, buffer| {
            let short = if comm.rank() == 1 { &mut buffer[1..] } else { buffer };
            comm.all_reduce(short, ReduceOp::Sum).map(drop)
        }),
        "dtype" => mismatched(comm, |comm, buffer| match comm.rank() {
            2 => comm.all_reduce(bytemuck::cast_slice_mut::<f32, u32>(buffer), ReduceOp::Sum).map(drop),
            _ => comm.all_reduce(buffer, ReduceOp::Sum).map(drop),
        }),
        "op" => mismatched(comm, |comm, buffer| {
            let op = if comm.rank() == 0 { ReduceOp::Mean } else { ReduceOp::Sum };
            comm.all_reduce(buffer, op).map(drop)
        }),
        "algorithm" => mismatched(comm, |comm, buffer| {
            let algorithm = if comm.rank() == 1 { Algorithm::Tree } else { Algorithm::Butterfly };
            comm.set_choice(algorithm)?;
            comm.all_reduce(buffer, ReduceOp::Sum).map(drop)
        }),
        "vendor" => mismatched(comm, |comm, buffer| {
            comm.set_choice(Method::InNodes(Algorithm::Rail, Vendor::Mpi))?;
            let short = if comm.rank() == 1 { &mut buffer[1..] } else { buffer };
            comm.all_reduce(short, ReduceOp::Sum).map(drop)
        }),
        "label" => mismatched(comm, |comm, buffer| {
            let label = if comm.rank() == 1 { "bucket 2" } else { "bucket 1" };
            comm.call().label(label).all_reduce(buffer, ReduceOp::Sum).map(drop)
        }),
        "message" => mismatched(comm, |comm, buffer| match comm.rank() {
            0 => comm.send(&buffer[1..], 1),
            1 => comm.receive(buffer, 0),
            _ => Ok(()),
        }),
        "order" => mismatched(comm, |comm, buffer| {
            if comm.rank() == 0 {
                comm.broadcast(buffer, 0)?;
            }
            comm.all_reduce(buffer, ReduceOp::Sum).map(drop)
        }),
        _ => panic!("no such role: {role}"),
    }
}

/// Makes mismatched calls, of which no rank may get a result.
fn mismatched(comm: &mut Communicator, call: impl Fn(&mut Communicator, &mut [f32]) -> unisono::Result<()>) {
    comm.set_timeout(Duration::from_secs(30));
    comm.set_choice(Algorithm::Ring).unwrap();
    let mut buffer = vec![1.0; 100_000];
    let called = call(comm, &mut buffer);
    let then = comm.barrier();
    println!("rank {} got a result: {}", comm.rank(), called.is_ok() && then.is_ok());
}
