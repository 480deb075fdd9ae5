//! The constants where no file says others.

use unisono_collectives::model::{Link, Range};

use super::{Reach, Section};

pub(super) fn section(reach: Reach) -> Section {
    let (messages, one_pass): (&[Range], Option<&[Range]>) = match reach {
        Reach::ShmSlice => (&SHM_SLICE, Some(&SHM_SLICE_ONE_PASS)),
        Reach::ShmRegistered => (&SHM_REGISTERED, Some(&SHM_REGISTERED_ONE_PASS)),
        Reach::Threads => (&THREADS, Some(&THREADS_ONE_PASS)),
        Reach::Mpi => (&MPI, None),
        Reach::Network => (&NETWORK, None),
    };
    let link = |ranges: &[Range]| Link::new(ranges.to_vec()).expect("the constants make a link");
    Section { messages: link(messages), one_pass: one_pass.map(link), measured: MEASURED.to_owned() }
}

const MEASURED: &str = "2 ranks on a machine of 2 cores";

const fn range(up_to_bytes: usize, alpha_us: f64, move_gb_per_s: f64, reduce_gb_per_s: f64) -> Range {
    Range { up_to_bytes, alpha_us, move_gb_per_s, reduce_gb_per_s }
}

const fn pass(up_to_bytes: usize, alpha_us: f64, gb_per_s: f64) -> Range {
    range(up_to_bytes, alpha_us, gb_per_s, gb_per_s)
}

const ANY: usize = usize::MAX;

const SHM_SLICE: [Range; 1] = [range(ANY, 0.4, 6.0, 5.0)];
const SHM_SLICE_ONE_PASS: [Range; 1] = [pass(ANY, 0.7, 5.0)];
const SHM_REGISTERED: [Range; 1] = [range(ANY, 0.4, 6.0, 5.0)];
const SHM_REGISTERED_ONE_PASS: [Range; 1] = [pass(ANY, 0.6, 5.0)];
const THREADS: [Range; 1] = [range(ANY, 0.4, 6.0, 5.0)];
const THREADS_ONE_PASS: [Range; 1] = [pass(ANY, 0.6, 5.0)];
const MPI: [Range; 1] = [range(ANY, 1.0, 6.0, 5.0)];
const NETWORK: [Range; 1] = [range(ANY, 15.0, 1.25, 1.25)];
