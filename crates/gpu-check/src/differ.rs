//! Two ranks whose calls differ after both are known, and one rank that does not arrive. Each call must end with an error that names the rank, and
//! NCCL's kernels, which wait on the GPU, are aborted. Ranks are threads, so that their failures do not end the job.

use std::time::{Duration, Instant};

use unisono::{Communicator, ReduceOp, Result};

use crate::report::{Failure, Figures, Outcome};
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the timeout, to leave time for the error handling on a busy machine.
const MOST: Duration = Duration::from_secs(15);

pub(crate) fn check(_: &mut Communicator, _: &Settings, _: &str) -> Outcome {
    let route = unisono::threads(2, |mut comm| comm.device_route()).remove(0)?;
    if !route.starts_with("NCCL") {
        return Err(Failure::Skipped(format!("arrays are reduced {route}")));
    }
    let mut figures = Figures::default().with("route", route);
    for (name, counts_of_rank_1, expected) in
        [("order", &[999, 1000][..], "of 999 f32"), ("missing", &[], "rank 1")]
    {
        let begun = Instant::now();
        let ended = unisono::threads(2, move |comm| one(comm, counts_of_rank_1));
        let seconds = begun.elapsed().as_secs_f64();
        let text = ended[0].as_ref().err().map_or("no error".to_owned(), ToString::to_string);
        figures = figures.with(&format!("{name}_s"), seconds).with(&format!("{name}_says"), text.clone());
        if !text.contains(expected) || begun.elapsed() > MOST {
            return figures.unless(Some(format!("{name}: rank 0 reported after {seconds:.1} s: {text}")));
        }
    }
    Ok(figures)
}

fn one(mut comm: Communicator, of_rank_1: &[usize]) -> Result<()> {
    let stream = comm.device()?.new_stream().expect("a stream");
    let call = |comm: &mut Communicator, count: usize| {
        let mut array = comm.alloc_device::<f32>(count)?;
        comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream)?;
        comm.synchronize(&stream)
    };
    [1000, 999].into_iter().try_for_each(|count| call(&mut comm, count))?;
    comm.set_timeout(TIMEOUT);
    let counts = if comm.rank() == 1 { of_rank_1 } else { &[1000, 999] };
    if counts.is_empty() {
        // This rank is alive, but makes no call.
        std::thread::sleep(TIMEOUT + Duration::from_secs(1));
    }
    counts.iter().try_for_each(|&count| call(&mut comm, count))
}
