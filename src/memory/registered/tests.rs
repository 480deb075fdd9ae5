//! Registered memory: its locations, and its detachment.

use std::os::unix::fs::MetadataExt as _;

use super::*;

#[test]
fn registered_memory_is_zero_and_located() {
    let registry = Registry::Processes;
    let mut array = Registered::<f32>::new(registry, 1000).unwrap();
    assert!(array.iter().all(|&element| element == 0.0));
    array[999] = 1.0;
    let all = registry.locate(bytemuck::cast_slice::<f32, u8>(&array)).unwrap();
    let tail = registry.locate(bytemuck::cast_slice::<f32, u8>(&array[10..])).unwrap();
    assert_eq!((all.segment, all.offset), (tail.segment, 0));
    assert_eq!(tail.offset, 40);
    assert!(registry.locate(&[0_u8; 8][..]).is_none());

    drop(array);
    assert!(SEGMENTS.read().unwrap().iter().all(|segment| segment.number != all.segment));
}

#[test]
fn segment_number_contains_its_descriptor_and_is_unique() {
    let registry = Registry::Processes;
    let locate = || {
        let mut block = registry.allocate(8).unwrap();
        let location = registry.locate(block.as_mut_slice()).unwrap();
        (location, block.file.as_ref().unwrap().as_raw_fd())
    };
    let ((first, file), (second, _)) = (locate(), locate());
    assert_eq!(first.file(), file as u64);
    assert_ne!(first.segment, second.segment);
}

#[test]
fn segment_number_never_sets_the_flag_for_shares() {
    for created in [0, 1, (1 << 31) - 4, (1 << 31) - 3, 1 << 31, u32::MAX] {
        let location = Location { segment: Location::segment(created, i32::MAX), offset: 0 };
        assert!(location.segment > Location::SLOT && location.file() == i32::MAX as u64);
        assert!(location.share_of(1, 8).is_none(), "{created}");
    }
}

#[test]
fn memory_of_one_communicator_is_registered_for_the_others() {
    let mut block = Registry::Processes.allocate(100).unwrap();
    assert!(Registry::Processes.locate(block.as_mut_slice()).is_some());
}

#[test]
fn arrays_are_located_in_their_own_segments() {
    let registry = Registry::Processes;
    let mut blocks: Vec<_> = (0..300).map(|_| registry.allocate(100).unwrap()).collect();
    // The other blocks are dropped.
    let mut kept: Vec<_> = blocks.drain(..).step_by(3).collect();
    let numbers: std::collections::HashSet<_> = kept
        .iter_mut()
        .map(|block| {
            let bytes = block.as_mut_slice();
            let (whole, end) = (registry.locate(bytes).unwrap(), registry.locate(&bytes[90..]).unwrap());
            assert_eq!((whole.offset, end.offset, whole.segment), (0, 90, end.segment));
            whole.segment
        })
        .collect();
    assert_eq!(numbers.len(), kept.len());
}

#[test]
fn an_array_may_be_empty() {
    let mut array = Registered::<u8>::new(Registry::Threads, 0).unwrap();
    assert!(array.is_empty() && array.as_mut().is_empty());
}

#[test]
fn array_dropped_by_a_forked_child_stays_valid_in_the_parent() {
    let mut array = Registered::<u8>::new(Registry::Processes, 1 << 20).unwrap();
    array.fill(7);
    // SAFETY: the child runs only the next lines, and ends without unwinding or exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            drop(array);
            // SAFETY: it ends this process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is a local variable.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    assert!(array.iter().all(|&byte| byte == 7));
}

#[test]
fn detached_memory_keeps_its_bytes_and_is_no_longer_shared() {
    let registry = Registry::Processes;
    let mut array = Registered::<u8>::new(registry, 10_000).unwrap();
    array.fill(7);
    let location = registry.locate(&raw const array[..]).unwrap();
    // The mapping of another process that accesses it.
    let other = Pages::of_process(std::process::id() as i32, location.file()).unwrap();
    let (other_half, loan) = registry.lend(&raw const array[5_000..]).unwrap();
    assert!(!Registry::detach(location).unwrap(), "another communicator's ranks write to the other half");
    // SAFETY: the byte is in the mapping, which no other code uses now.
    unsafe { *other.as_ptr().add(other_half.offset as usize) = 6 };
    assert_eq!(array[5_000], 6, "and this process sees it");
    drop(loan);
    assert!(Registry::detach(location.with_shares().after(5)).unwrap());
    array[5_000] = 7;
    assert!(array.iter().all(|&byte| byte == 7), "a rank can still send it");
    // SAFETY: the byte is in the mapping, which no other code uses now.
    unsafe { *other.as_ptr() = 1 };
    assert_eq!(array[0], 7);
    array.fill(8);
    // SAFETY: as before.
    assert_eq!(unsafe { *other.as_ptr().add(1) }, 7);
    assert!(registry.locate(&raw const array[..]).is_none() && Registry::detach(location).unwrap());
    let file = || std::fs::metadata(Pages::path(std::process::id() as i32, location.file())).unwrap();
    let before = file();
    drop(array);
    assert_eq!((file().ino(), file().size()), (before.ino(), before.size()), "the descriptor is not reused");
    assert!(before.blocks() > 0 && file().blocks() == 0, "its pages are freed");
}

#[test]
fn segment_of_a_parent_process_is_replaced_at_the_same_addresses() {
    // No other test creates segments with these numbers, or at these addresses.
    let insert = |created: u32, start: usize| {
        let (number, loans) = (Location::segment(1 << 30 | created, 7 + created as i32), Loan::default());
        Segment { number, start, size_bytes: 8192, loans, is_detached: false }.insert();
    };
    let file = |address: usize| {
        let bytes = std::ptr::slice_from_raw_parts(std::ptr::without_provenance(address), 8);
        Registry::Processes.locate(bytes).map(Location::file)
    };
    (0..3).for_each(|created| insert(created, (1 + created as usize) * 8192));
    insert(3, 2 * 8192);
    assert_eq!([1, 2, 3].map(|place| file(place * 8192)), [Some(7), Some(10), Some(9)]);
    // It overlaps two of them.
    insert(4, 12_288);
    assert_eq!([8192, 12_288, 20_480, 24_576].map(file), [None, Some(11), None, Some(9)]);
}
