//! How a payload is cut into messages of MPI's.

use std::ffi::c_int;

/// The tags of first messages and of segments. Those of one pair of ranks arrive in the order in which they
/// are sent.
pub(super) const FIRST_TAG: c_int = 1;
pub(super) const SEGMENT_TAG: c_int = 2;
/// The same for the point-to-point messages of the program.
pub(super) const MESSAGE_TAG: c_int = 4;
pub(super) const MESSAGE_SEGMENT_TAG: c_int = 5;
/// The size of the longest first message: MPIs send that much at once to another node, and a second message costs a quarter of the
/// whole (measured for 4 KiB: 99 and 73 µs).
pub(super) const FIRST: usize = 8 << 10;
