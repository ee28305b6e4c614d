//! What the operating system says of the machine: memory, cores, caches, container limits.

use std::fs;
use std::time::Duration;

use crate::MemoryInfo;
use crate::hardware::Caches;

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

/// A number with an optional K, M or G suffix, as in `/sys`.
fn sized(text: &str) -> Option<usize> {
    let (digits, unit) = text.split_at(text.trim_end_matches(|c: char| !c.is_ascii_digit()).len());
    let unit = match unit.trim() {
        "" => 1,
        "K" | "kB" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// The processor's name.
pub fn cpu_name() -> String {
    read("/proc/cpuinfo")
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Data cache sizes of the first core.
pub fn caches() -> Caches {
    let mut caches = Caches { l1d: 0, l2: 0, l3: 0 };
    for index in 0..8 {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let (Some(level), Some(kind), Some(size)) = (
            read(&format!("{folder}/level")),
            read(&format!("{folder}/type")),
            read(&format!("{folder}/size")).and_then(|s| sized(&s)),
        ) else {
            continue;
        };
        match (level.as_str(), kind.as_str()) {
            ("1", "Data") => caches.l1d = size,
            ("2", _) => caches.l2 = size,
            ("3", _) => caches.l3 = size,
            _ => {}
        }
    }
    caches
}

/// Threads this process may run at once: affinity and CPU quota respected.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Where the control groups of this process are mounted, innermost first: version 2, else version 1's `controller`.
///
/// A container usually sees its own group as the root of the mount; outside one the path in `/proc/self/cgroup` leads
/// there. Limits of every group on the way up apply. `root` is what stands before `/proc` and `/sys`: nothing, but in
/// tests.
#[cfg(target_os = "linux")]
fn cgroups(root: &str, controller: &str) -> Vec<String> {
    let mut folders = Vec::new();
    let text = read(&format!("{root}/proc/self/cgroup")).unwrap_or_default();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => format!("{root}/sys/fs/cgroup"),
            list if list.split(',').any(|c| c == controller) => format!("{root}/sys/fs/cgroup/{controller}"),
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            folders.push(format!("{mount}{path}"));
            match path.rfind('/') {
                Some(cut) => path = &path[..cut],
                None => break,
            }
        }
    }
    folders
}

#[cfg(not(target_os = "linux"))]
fn cgroups(_root: &str, _controller: &str) -> Vec<String> {
    Vec::new()
}

/// Version 1 writes "no limit" as the largest multiple of a page in an `i64`.
const NO_LIMIT: usize = 1 << 60;

/// The container's memory limit and use in bytes, where there is a limit: the tightest of nested ones.
///
/// Pages of files that the kernel can drop at once do not count as used; a mapped checkpoint would otherwise look like
/// memory that is gone.
pub fn cgroup_memory() -> Option<(usize, usize)> {
    cgroup_memory_at("")
}

fn cgroup_memory_at(root: &str) -> Option<(usize, usize)> {
    let number = |path: String| read(&path)?.parse::<usize>().ok();
    cgroups(root, "memory")
        .into_iter()
        .filter_map(|folder| {
            let limit = number(format!("{folder}/memory.max"))
                .or_else(|| number(format!("{folder}/memory.limit_in_bytes")))
                .filter(|&limit| limit < NO_LIMIT)?;
            let used = number(format!("{folder}/memory.current"))
                .or_else(|| number(format!("{folder}/memory.usage_in_bytes")))?;
            let stat = read(&format!("{folder}/memory.stat")).unwrap_or_default();
            Some((limit, used.saturating_sub(droppable(&stat))))
        })
        .min_by_key(|&(limit, used)| limit.saturating_sub(used))
}

/// Bytes of file pages in a group's `memory.stat`: version 1 prefixes the sums over child groups with `total_`.
fn droppable(stat: &str) -> usize {
    let sum = |prefix: &str| {
        let values = stat.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix(prefix)?.split_once(' ')?;
            matches!(name, "inactive_file" | "active_file").then(|| value.parse::<usize>().ok())?
        });
        values.fold(0, usize::saturating_add)
    };
    if stat.contains("total_inactive_file") { sum("total_") } else { sum("") }
}

/// The container's CPU quota in cores, where there is one: the tightest of nested ones.
pub fn cgroup_cpus() -> Option<f64> {
    cgroup_cpus_at("")
}

fn cgroup_cpus_at(root: &str) -> Option<f64> {
    let cores = |quota: &str, period: &str| {
        let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
        (period > 0.0 && quota > 0.0).then_some(quota / period)
    };
    let quotas = cgroups(root, "cpu").into_iter().filter_map(|folder| match read(&format!("{folder}/cpu.max")) {
        Some(text) => text.split_once(' ').and_then(|(quota, period)| cores(quota, period)),
        None => cores(&read(&format!("{folder}/cpu.cfs_quota_us"))?, &read(&format!("{folder}/cpu.cfs_period_us"))?),
    });
    quotas.min_by(f64::total_cmp)
}

/// Cores of the machine, whatever this process may use of them.
pub fn logical_cores() -> usize {
    let cores = read("/proc/cpuinfo").map_or(0, |text| text.lines().filter(|l| l.starts_with("processor")).count());
    if cores == 0 { available_threads() } else { cores }
}

/// What says how much memory is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    /// What the machine has left.
    Machine,
    /// What the limit of the container leaves, where that is less.
    Cgroup,
}

/// Total and available memory, with the container's limit applied.
pub fn memory() -> MemoryInfo {
    memory_and_bound().0
}

/// [`memory`], and which of machine and container says how much is available.
///
/// ```
/// use sinew_memory::system::{MemoryBound, cgroup_memory, memory_and_bound};
///
/// let (memory, bound) = memory_and_bound();
/// assert!(memory.available <= memory.total);
/// assert!(bound == MemoryBound::Machine || cgroup_memory().is_some());
/// ```
pub fn memory_and_bound() -> (MemoryInfo, MemoryBound) {
    memory_at("")
}

fn memory_at(root: &str) -> (MemoryInfo, MemoryBound) {
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        sized(&line.split_once(':')?.1.trim().replace(' ', ""))
    };
    let text = read(&format!("{root}/proc/meminfo")).unwrap_or_default();
    // Where nothing can be read nothing is refused: the allocator itself will say no.
    let mut total = field(&text, "MemTotal").unwrap_or(usize::MAX);
    let mut available = field(&text, "MemAvailable").unwrap_or(usize::MAX);
    let mut bound = MemoryBound::Machine;
    if let Some((limit, used)) = cgroup_memory_at(root) {
        total = total.min(limit);
        let left = limit.saturating_sub(used);
        if left < available {
            (available, bound) = (left, MemoryBound::Cgroup);
        }
    }
    (MemoryInfo { total, available }, bound)
}

/// The largest resident size this process has had, in bytes; 0 where the system does not say.
pub fn peak_resident_bytes() -> usize {
    read("/proc/self/status")
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("VmHWM"))?;
            sized(&line.split_once(':')?.1.trim().replace(' ', ""))
        })
        .unwrap_or(0)
}

/// Time since some fixed moment, a few milliseconds coarse: for ages, at a fifth of the price of a fine clock.
pub(crate) fn coarse_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place to write to; the clock exists since Linux 2.6.32.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
        debug_assert_eq!(status, 0);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs().min(999_999_999) as u32)
    }
    #[cfg(not(target_os = "linux"))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's files in a folder of their own.
    #[cfg(target_os = "linux")]
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_str().expect("its name is UTF-8").to_owned();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("the file is written");
        }
        (folder, root)
    }

    #[cfg(target_os = "linux")]
    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  8192 kB\nMemFree:  16 kB\nMemAvailable:  6144 kB\n");

    #[cfg(target_os = "linux")]
    #[test]
    fn without_a_limit_all_memory_of_the_machine_counts() {
        let no_group = machine(&[MEMINFO]);
        let of_max = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "4096\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        let version_1 = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/\n2:cpu,cpuacct:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        for (_folder, root) in [no_group, of_max, version_1] {
            assert_eq!((cgroup_memory_at(&root), cgroup_cpus_at(&root)), (None, None));
            let memory = MemoryInfo { total: 8 << 20, available: 6 << 20 };
            assert_eq!(memory_at(&root), (memory, MemoryBound::Machine));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn of_nested_groups_the_tightest_limit_applies() {
        let (_folder, root) = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/own\n"),
            ("sys/fs/cgroup/pod/own/memory.max", "4194304\n"),
            ("sys/fs/cgroup/pod/own/memory.current", "2097152\n"),
            ("sys/fs/cgroup/pod/own/memory.stat", "anon 1048576\ninactive_file 524288\nactive_file 524288\n"),
            ("sys/fs/cgroup/pod/own/cpu.max", "max 100000\n"),
            // Larger, and nearly full.
            ("sys/fs/cgroup/pod/memory.max", "6291456\n"),
            ("sys/fs/cgroup/pod/memory.current", "5242880\n"),
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "6291456\n"),
            ("sys/fs/cgroup/cpu.max", "300000 100000\n"),
        ]);
        assert_eq!(cgroup_memory_at(&root), Some((6 << 20, 5 << 20)));
        let memory = MemoryInfo { total: 6 << 20, available: 1 << 20 };
        assert_eq!(memory_at(&root), (memory, MemoryBound::Cgroup));
        assert_eq!(cgroup_cpus_at(&root), Some(1.5));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn limits_of_version_1_are_read_where_its_controllers_are_mounted() {
        let (_folder, root) = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "9:cpuset:/elsewhere\n4:memory:/box\n2:cpu,cpuacct:/box\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "3145728\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2097152\n"),
            ("sys/fs/cgroup/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n"),
            ("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n"),
            // Of another controller.
            ("sys/fs/cgroup/cpuset/elsewhere/memory.limit_in_bytes", "4096\n"),
        ]);
        assert_eq!(cgroup_memory_at(&root), Some((3 << 20, 1 << 20)));
        let memory = MemoryInfo { total: 3 << 20, available: 2 << 20 };
        assert_eq!(memory_at(&root), (memory, MemoryBound::Cgroup));
        assert_eq!(cgroup_cpus_at(&root), Some(0.5));
        // More is used than the limit was lowered to.
        let (_folder, root) = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1048576\n"),
            ("sys/fs/cgroup/memory.current", "2097152\n"),
        ]);
        let memory = MemoryInfo { total: 1 << 20, available: 0 };
        assert_eq!(memory_at(&root), (memory, MemoryBound::Cgroup));
        // A limit that leaves more than the machine has says nothing of what is available.
        let (_folder, root) = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "8388608\n"),
            ("sys/fs/cgroup/memory.current", "1048576\n"),
        ]);
        let memory = MemoryInfo { total: 8 << 20, available: 6 << 20 };
        assert_eq!(memory_at(&root), (memory, MemoryBound::Machine));
    }

    #[test]
    fn file_pages_do_not_count_as_used_memory() {
        let v2 = "anon 100\nfile 70\ninactive_file 40\nactive_file 20\ninactive_anon 7\n";
        assert_eq!(droppable(v2), 60);
        let v1 = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 4\n";
        assert_eq!(droppable(v1), 34);
        assert_eq!(droppable(""), 0);
    }

    #[test]
    fn sizes_read_as_the_kernel_writes_them() {
        assert_eq!(sized("48K"), Some(48 << 10));
        assert_eq!(sized("16384kB"), Some(16384 << 10));
        assert_eq!(sized("260M"), Some(260 << 20));
        assert_eq!(sized("12"), Some(12));
        assert_eq!(sized("12X"), None);
        assert_eq!(sized("99999999999999999G"), None);
    }
}
