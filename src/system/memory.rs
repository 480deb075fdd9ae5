//! The available memory of a node, and the memory limit of a container, job or systemd unit: the kernel's control groups,
//! both versions.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::size::approximate;

/// The memory that the processes of this node can still allocate before the kernel swaps or kills one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableMemory {
    /// The available bytes, for all processes together.
    pub(crate) available_bytes: u64,
    /// The limit that determines it, unless that is the machine's memory.
    limit: Option<MemoryLimit>,
}

impl AvailableMemory {
    /// Returns the memory available now; `None` if the system does not report it.
    pub fn now() -> Option<Self> {
        let machine = fs::read_to_string("/proc/meminfo").ok()?;
        Self::of(&machine, MemoryLimit::of_this_process())
    }

    /// Describes the available memory, as the end of a sentence, if less than `needed_bytes` are available for all ranks of this
    /// node together; `None` if there is enough, or the system does not report it.
    pub fn shortage(needed_bytes: u64) -> Option<String> {
        Self::now().filter(|memory| needed_bytes > memory.available_bytes).map(|memory| memory.to_string())
    }

    /// Computes it from the text of `/proc/meminfo`, and the limit of this process, if it has one.
    fn of(machine: &str, limit: Option<MemoryLimit>) -> Option<Self> {
        let kib = machine.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"))?;
        let available_bytes = kib.trim().parse::<u64>().ok()? << 10;
        let limit = limit.filter(|limit| limit.free_bytes() < available_bytes);
        Some(Self { available_bytes: limit.map_or(available_bytes, |limit| limit.free_bytes()), limit })
    }
}

impl fmt::Display for AvailableMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of memory is available", approximate(self.available_bytes))?;
        self.limit.map_or(Ok(()), |limit| write!(f, " ({limit})"))
    }
}

/// The memory limit of a group of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit for all of them together.
    pub(crate) limit_bytes: u64,
    /// The used bytes that the kernel cannot reclaim.
    pub(crate) used_bytes: u64,
}

impl MemoryLimit {
    /// Returns the limit that leaves the least memory, if there is any.
    pub fn of_this_process() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::read(Path::new("/sys/fs/cgroup"), &groups)
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }

    fn read(root: &Path, groups: &str) -> Option<Self> {
        let group = |line: &str| {
            let mut parts = line.splitn(3, ':');
            let (_, kinds, path) = (parts.next()?, parts.next()?, parts.next()?);
            let root = match kinds {
                "" => root.to_path_buf(),
                kinds if kinds.split(',').any(|kind| kind == "memory") => root.join("memory"),
                _ => return None,
            };
            Some((root, path.trim_start_matches('/').to_owned()))
        };
        // The limits of its ancestors apply too. In a container, its own group is the root, independent of its path outside.
        let limit = |(root, path): (PathBuf, String)| {
            let folders = Path::new(&path).ancestors().map(|part| root.join(part));
            folders.filter_map(|folder| Self::of(&folder)).min_by_key(Self::free_bytes)
        };
        groups.lines().filter_map(group).filter_map(limit).min_by_key(Self::free_bytes)
    }

    fn of(folder: &Path) -> Option<Self> {
        let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        // Version 2 encodes no limit as the word `max`, and version 1 as the size of the address space.
        let limit_bytes = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
        if limit_bytes >= i64::MAX as u64 / 2 {
            return None;
        }
        let counted = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let value = |name: &str| {
            let mut lines = counted.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name)?.1.trim().parse::<u64>().ok()
        };
        let own = value("anon").or_else(|| value("total_rss")).unwrap_or(0);
        let shared = value("total_shmem").or_else(|| value("shmem")).unwrap_or(0);
        Some(Self { limit_bytes, used_bytes: own + shared })
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, used) = (approximate(self.limit_bytes), approximate(self.used_bytes));
        write!(f, "this container or job is limited to {limit} of memory, and uses {used}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_and_limit_determine_the_available_memory() {
        let machine =
            "MemTotal:       24684092 kB\nMemFree:  9 kB\nMemAvailable:   20971520 kB\nBuffers: 1 kB\n";
        let of = |limit: Option<(u64, u64)>| {
            let limit = limit.map(|(limit_bytes, used_bytes)| MemoryLimit { limit_bytes, used_bytes });
            AvailableMemory::of(machine, limit).unwrap()
        };
        assert_eq!(of(None).available_bytes, 20 << 30);
        assert_eq!(of(Some((30 << 30, 1 << 30))), of(None), "a limit beyond what there is changes nothing");
        let limited = of(Some((8 << 30, 3 << 30)));
        assert_eq!(limited.available_bytes, 5 << 30);
        assert_eq!(
            limited.to_string(),
            "5 GiB of memory is available (this container or job is limited to 8 GiB of memory, and uses 3072 MiB)"
        );
        assert_eq!(AvailableMemory::of("MemTotal: 5 kB\n", None), None, "a kernel before 3.14");
    }

    #[test]
    fn this_machine_reports_its_memory() {
        let total = rustix::system::sysinfo();
        let total_bytes = total.totalram * u64::from(total.mem_unit);
        let available_bytes = AvailableMemory::now().expect("Linux reports it").available_bytes;
        assert!(0 < available_bytes && available_bytes <= total_bytes, "{available_bytes} of {total_bytes}");
        assert_eq!(AvailableMemory::shortage(1), None);
        let message = AvailableMemory::shortage(u64::MAX).expect("no machine has this much memory");
        assert!(message.contains(" of memory is available"), "{message}");
    }

    #[test]
    fn tightest_limit_of_both_versions_is_found() {
        let root = std::env::temp_dir().join(format!("unisono-cgroup-{}", std::process::id()));
        let group = |folder: &str, files: &[(&str, &str)]| {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
        };
        group("job", &[("memory.max", "4000000\n"), ("memory.stat", "anon 1000\nfile 9\nshmem 500\n")]);
        group("job/step", &[("memory.max", "max\n")]);
        group("memory", &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        group("memory/a", &[("memory.limit_in_bytes", "3000\n"), ("memory.stat", "total_rss 1\n")]);
        let limit = |groups: &str| MemoryLimit::read(&root, groups);
        let second = limit("0::/job/step\n");
        let first = limit("0::/\n9:cpu,memory:/a/b\n8:pids:/job\n");
        let none = limit("0::/\n4:memory:/\n");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(second, Some(MemoryLimit { limit_bytes: 4_000_000, used_bytes: 1500 }));
        assert_eq!(first, Some(MemoryLimit { limit_bytes: 3000, used_bytes: 1 }));
        assert_eq!(none, None);
    }
}
