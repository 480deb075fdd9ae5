//! The cores on a GPU's NUMA node, from which copies to the GPU are fastest.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds this thread, and the threads that it starts from now on, to the cores near the PCI device with this address, and returns a notice. Does
/// nothing if the thread is already bound, or if the system does not report the device's NUMA node.
pub(super) fn stay(address: &str) -> Option<String> {
    let bound = sched_getaffinity(None).ok()?;
    let may_use: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&core| bound.is_set(core)).collect();
    let (node, cores) = near(Path::new("/sys"), address, &may_use)?;
    bind(&cores).ok()?;
    Some(format!("threads that it starts run on the {} cores of its NUMA node {node}", cores.len()))
}

/// Returns the NUMA node of a device and its cores, if the thread may use all cores of the machine and these are fewer.
fn near(system: &Path, address: &str, may_use: &[usize]) -> Option<(usize, Vec<usize>)> {
    let read = |path: &str| fs::read_to_string(system.join(path)).ok();
    let online = listed(&read("devices/system/cpu/online")?)?;
    // The value is -1 if the firmware does not report the node.
    let node = read(&format!("bus/pci/devices/{address}/numa_node"))?.trim().parse().ok()?;
    let cores = listed(&read(&format!("devices/system/node/node{node}/cpulist"))?)?;
    let is_part = !cores.is_empty() && cores.len() < online.len();
    (is_part && may_use == online).then_some((node, cores))
}

/// Parses a list in the kernel's format, such as `0-3,8`.
fn listed(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

fn bind(cores: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn kernel_core_lists_are_parsed() {
        assert_eq!(listed("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(listed("5\n").unwrap(), [5]);
        assert_eq!(listed("\n").unwrap(), [0_usize; 0]);
        assert_eq!([listed("a"), listed("1-"), listed("-2")], [None, None, None]);
    }

    #[test]
    fn node_of_a_device_is_found_unless_the_thread_is_bound() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let near = |address: &str, may_use: &[usize]| near(folder.path(), address, may_use);
        let all: Vec<_> = (0..8).collect();
        assert_eq!(near("0000:3b:00.0", &all), None, "nothing is known");
        write("devices/system/cpu/online", "0-7\n");
        write("devices/system/node/node0/cpulist", "0-1,4-5\n");
        write("devices/system/node/node1/cpulist", "2-3,6-7\n");
        write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        write("bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
        let found = (1, vec![2, 3, 6, 7]);
        assert_eq!(near("0000:3b:00.0", &all), Some(found));
        assert_eq!(near("0000:5e:00.0", &all), None, "its node is not known");
        assert_eq!(near("0000:86:00.0", &all), None, "there is no such device");
        assert_eq!(near("0000:3b:00.0", &all[..4]), None, "a launcher has bound it");
        write("devices/system/node/node1/cpulist", "0-7\n");
        assert_eq!(near("0000:3b:00.0", &all), None, "there is one node");
    }

    #[test]
    fn missing_device_binds_nothing() {
        let before = sched_getaffinity(None).unwrap();
        assert_eq!(stay("ffff:ff:1f.7"), None);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn threads_inherit_the_binding() {
        let may_use = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect::<Vec<_>>();
        let before = may_use(sched_getaffinity(None).unwrap());
        let first = before[0];
        let of_child = thread::spawn(move || {
            bind(&[first]).unwrap();
            thread::spawn(move || may_use(sched_getaffinity(None).unwrap())).join().unwrap()
        });
        assert_eq!(of_child.join().unwrap(), [first]);
        assert_eq!(may_use(sched_getaffinity(None).unwrap()), before, "and no others");
    }
}
