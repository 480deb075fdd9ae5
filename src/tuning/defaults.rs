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

// As `unisono tune` wrote them, over Open MPI 4.1.4.
const MEASURED: &str = "2 ranks on a machine of 2 cores";

const fn range(up_to_bytes: usize, alpha_us: f64, move_gb_per_s: f64, reduce_gb_per_s: f64) -> Range {
    Range { up_to_bytes, alpha_us, move_gb_per_s, reduce_gb_per_s }
}

const fn pass(up_to_bytes: usize, alpha_us: f64, gb_per_s: f64) -> Range {
    range(up_to_bytes, alpha_us, gb_per_s, gb_per_s)
}

const ANY: usize = usize::MAX;

const SHM_SLICE: [Range; 6] = [
    range(512, 0.396, 2.627, 2.083),
    range(4 << 10, 0.514, 4.213, 3.834),
    range(32 << 10, 0.972, 6.348, 6.505),
    range(256 << 10, 1.365, 8.896, 7.007),
    range(2 << 20, 3.478, 9.812, 6.627),
    range(ANY, 0.0, 7.299, 4.988),
];

const SHM_SLICE_ONE_PASS: [Range; 6] = [
    pass(512, 0.678, 1.309),
    pass(4 << 10, 0.98, 3.194),
    pass(16 << 10, 1.8, 3.4),
    pass(256 << 10, 1.064, 4.717),
    pass(2 << 20, 4.506, 4.947),
    pass(ANY, 0.001, 3.469),
];

const SHM_REGISTERED: [Range; 6] = [
    range(512, 0.518, 3.785, 2.9),
    range(4 << 10, 0.524, 4.149, 4.09),
    range(32 << 10, 1.312, 16.1, 17.6),
    range(256 << 10, 0.757, 13.1, 13.5),
    range(2 << 20, 0.001, 11.3, 11.4),
    range(ANY, 0.001, 8.64, 7.718),
];

const SHM_REGISTERED_ONE_PASS: [Range; 6] = [
    pass(512, 0.699, 4.002),
    pass(4 << 10, 0.911, 8.869),
    pass(32 << 10, 0.629, 6.684),
    pass(256 << 10, 0.872, 6.019),
    pass(2 << 20, 25.4, 12.0),
    pass(ANY, 0.001, 8.108),
];

const THREADS: [Range; 6] = [
    range(512, 0.485, 3.7, 2.768),
    range(4 << 10, 0.533, 4.117, 3.992),
    range(32 << 10, 1.287, 15.2, 16.6),
    range(256 << 10, 0.866, 13.3, 13.8),
    range(2 << 20, 0.0, 11.4, 11.8),
    range(ANY, 0.001, 8.833, 8.171),
];

const THREADS_ONE_PASS: [Range; 6] = [
    pass(512, 0.716, 4.321),
    pass(4 << 10, 0.955, 8.693),
    pass(32 << 10, 0.682, 6.738),
    pass(256 << 10, 0.982, 6.194),
    pass(2 << 20, 24.9, 11.9),
    pass(ANY, 0.001, 8.645),
];

const MPI: [Range; 6] = [
    range(512, 0.72, 0.669, 0.618),
    range(4 << 10, 0.982, 1.562, 1.484),
    range(32 << 10, 4.149, 9.552, 7.588),
    range(256 << 10, 3.834, 9.629, 6.988),
    range(2 << 20, 0.0, 8.056, 4.992),
    range(ANY, 0.0, 5.913, 3.678),
];

/// 10 Gbit/s Ethernet, typical and not measured.
const NETWORK: [Range; 1] = [range(ANY, 15.0, 1.25, 1.25)];
