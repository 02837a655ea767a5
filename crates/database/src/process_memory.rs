//! How much memory this process may use, and how it is divided unless the configuration says otherwise.
//!
//! The limit is the machine's memory, or that of the control group the process is in, or of any group around that one, whichever is least. Control
//! groups of both versions are read; a machine may have both, with the memory controller in either.

use std::fs;
use std::path::{Path, PathBuf};

/// Parts of what the process itself does not need that the two tablespaces may take, in percent. Memory is taken when it is used, not before.
const NEAR_PERCENT: u64 = 63;
const FAR_PERCENT: u64 = 37;

/// What the process itself needs: one part in so many of the limit, but at least so many bytes, as far as that is not more than half.
const PROCESS_PART: u64 = 20;
const PROCESS_BYTES_MIN: u64 = 256 << 20;

/// Where neither machine nor control group say how much there is: a size that most machines have.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// What clients may make the process hold is half of what tablespaces leave of the limit, but at least this much: a configuration may give
/// tablespaces more than there is.
const CLIENT_BYTES_MIN: u64 = 64 << 20;

/// Memory that this process may use: the machine's, or its control groups' if that is less.
pub fn memory_total_bytes() -> u64 {
    total_bytes(Path::new("/"))
}

/// As `memory_total_bytes`, with `/proc` and `/sys` below `root`.
fn total_bytes(root: &Path) -> u64 {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
    });
    machine.into_iter().chain(group_bytes(root)).min().unwrap_or(UNKNOWN_BYTES)
}

/// The least limit of the control groups that this process is in.
fn group_bytes(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let mut limits = Vec::new();
    for line in groups.lines() {
        // `HIERARCHY:CONTROLLERS:PATH`; version 2 is hierarchy 0, without controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            _ if controllers.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        for mount in mounts.iter().filter(|mount| mount.version == version) {
            limits.extend(mount.limits(root, path));
        }
    }
    // Without a mount that is known, where containers have their own group.
    if limits.is_empty() {
        limits.extend(limit_of(&root.join("sys/fs/cgroup/memory.max")));
        limits.extend(limit_of(&root.join("sys/fs/cgroup/memory/memory.limit_in_bytes")));
    }
    limits.into_iter().min()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A mount of control groups that has the memory controller, or may have it.
struct Mount {
    version: Version,
    /// The group that the mount's folder is.
    group: String,
    folder: PathBuf,
}

impl Mount {
    /// A line of `mountinfo`: `ID PARENT MAJOR:MINOR ROOT FOLDER OPTIONS [FIELDS…] - TYPE SOURCE OPTIONS`.
    fn parse(line: &str) -> Option<Mount> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (group, folder) = (unescaped(mount.next()?), unescaped(mount.next()?));
        let mut file_system = file_system.split(' ');
        let version = match file_system.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if file_system.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, group, folder: folder.into() })
    }

    /// Limits of a group and of all around it, as far as the mount shows them.
    fn limits(&self, root: &Path, path: &str) -> Vec<u64> {
        let top = root.join(self.folder.strip_prefix("/").unwrap_or(&self.folder));
        // A container may see its group's path from outside while the mount shows only what is inside.
        let inside = match self.group.as_str() {
            "/" => path,
            group => path.strip_prefix(group).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(""),
        };
        let mut folder = top.join(inside.trim_start_matches('/'));
        if !folder.is_dir() {
            folder.clone_from(&top);
        }
        let name = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        let mut limits = Vec::new();
        loop {
            limits.extend(limit_of(&folder.join(name)));
            // The kernel knows those that the mount does not show.
            if self.version == Version::One {
                limits.extend(hierarchical_limit(&folder.join("memory.stat")));
            }
            if folder == top || !folder.pop() {
                return limits;
            }
        }
    }
}

/// `None` for no limit: `max` in version 2, more than any machine has in version 1.
fn limit_of(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn hierarchical_limit(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?.trim().parse().ok()
}

/// Blanks and backslashes are written as three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                whole.push(char::from(byte));
                whole.push_str(&part[3..]);
            }
            None => whole.push_str(part),
        }
    }
    whole
}

/// What the process itself needs of `limit`, beside its tablespaces.
fn process_bytes(limit: u64) -> u64 {
    (limit / PROCESS_PART).max(PROCESS_BYTES_MIN).min(limit / 2)
}

/// How large `near` and `far` may be where the configuration does not say. `near` and `others`: what it does say of near, and of all other
/// tablespaces in this machine's memory, far included.
pub fn tablespace_defaults(limit: u64, near: Option<u64>, others: u64) -> (u64, u64) {
    let rest = limit.saturating_sub(process_bytes(limit));
    // Never so small that a table would not fit.
    let least = limit / 50;
    let near_default = (rest / 100 * NEAR_PERCENT).min(rest.saturating_sub(others)).max(least);
    let left = rest.saturating_sub(near.unwrap_or(near_default)).saturating_sub(others);
    (near_default, (rest / 100 * FAR_PERCENT).min(left).max(least))
}

/// What clients may make the process hold, beside rows and statements' heaps, where the configuration does not say. `tablespaces`: those
/// in this machine's memory.
pub fn client_bytes_default(limit: u64, tablespaces: u64) -> u64 {
    (limit.saturating_sub(tablespaces) / 2).max(CLIENT_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 4 GB with these files.
    fn machine(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        let all = [("proc/meminfo", "MemTotal:        4194304 kB\nMemFree: 1 kB\n")];
        for (path, text) in all.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        total_bytes(root.path()) / MIB
    }

    const V1: &str = "30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
    const V2: &str = "29 24 0:25 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const NONE: &str = "9223372036854771712\n";

    #[test]
    fn without_control_groups_the_machine_counts() {
        assert_eq!(machine(&[]), 4096);
        assert_eq!(total_bytes(Path::new("/nowhere")), UNKNOWN_BYTES);
        assert!(memory_total_bytes() > 64 * MIB);
    }

    #[test]
    fn limits_of_version_1_count_up_to_the_root() {
        let cgroup = ("proc/self/cgroup", "4:memory:/services/db\n2:cpu,cpuacct:/elsewhere\n0::/\n");
        let mounts = ("proc/self/mountinfo", V1);
        let folder = |limits: [&'static str; 3]| {
            let paths = ["", "services/", "services/db/"].map(|path| format!("sys/fs/cgroup/memory/{path}"));
            paths.map(|path| format!("{path}memory.limit_in_bytes")).into_iter().zip(limits).collect::<Vec<_>>()
        };
        for (limits, expected) in [
            ([NONE, NONE, NONE], 4096),
            ([NONE, NONE, "838860800\n"], 800),
            ([NONE, "838860800\n", "1073741824\n"], 800),
            (["209715200\n", NONE, NONE], 200),
        ] {
            let files = folder(limits);
            let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            files.extend([cgroup, mounts]);
            assert_eq!(machine(&files), expected, "{limits:?}");
        }
    }

    #[test]
    fn limits_of_version_2_count_up_to_the_root() {
        let cgroup = ("proc/self/cgroup", "0::/services/my db\n");
        let mounts = ("proc/self/mountinfo", V2);
        let own = "sys/fs/cgroup/services/my db/memory.max";
        let around = "sys/fs/cgroup/services/memory.max";
        assert_eq!(machine(&[cgroup, mounts, (own, "max\n"), (around, "max\n")]), 4096);
        assert_eq!(machine(&[cgroup, mounts, (own, "838860800\n"), (around, "max\n")]), 800);
        assert_eq!(machine(&[cgroup, mounts, (own, "max\n"), (around, "419430400\n")]), 400);
    }

    #[test]
    fn both_versions_at_once() {
        let cgroup = ("proc/self/cgroup", "5:memory:/a\n0::/b\n");
        let both = format!("{V1}{}", V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "));
        let mounts = ("proc/self/mountinfo", both.as_str());
        let one = ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "838860800");
        let two = ("sys/fs/cgroup/unified/b/memory.max", "419430400");
        assert_eq!(machine(&[cgroup, mounts, one]), 800);
        assert_eq!(machine(&[cgroup, mounts, one, two]), 400);
    }

    #[test]
    fn a_container_sees_its_own_group_only() {
        // The path is the one outside; the mount shows only the container's own group, under a name with a blank.
        let cgroup = ("proc/self/cgroup", "5:memory:/docker/f00\n");
        let mounts = ("proc/self/mountinfo", "9 8 0:2 /docker/f00 /sys/fs/c\\040g ro - cgroup cgroup ro,memory\n");
        assert_eq!(machine(&[cgroup, mounts, ("sys/fs/c g/memory.limit_in_bytes", "104857600")]), 100);
        // Groups around it, which the mount does not show, are in what the kernel says of all.
        let stat = ("sys/fs/c g/memory.stat", "cache 1\nhierarchical_memory_limit 52428800\n");
        assert_eq!(machine(&[cgroup, mounts, ("sys/fs/c g/memory.limit_in_bytes", NONE), stat]), 50);
        // A path that the mount has nothing of.
        let other = ("proc/self/cgroup", "5:memory:/../../x\n");
        assert_eq!(machine(&[other, mounts, ("sys/fs/c g/memory.limit_in_bytes", "104857600")]), 100);
        // Where no mounts can be read.
        assert_eq!(machine(&[("sys/fs/cgroup/memory.max", "104857600")]), 100);
        assert_eq!(machine(&[("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600")]), 100);
    }

    #[test]
    fn tablespaces_leave_room_for_the_process() {
        for limit in [64, 400, 800, 4_000, 16_000, 1_000_000].map(|size| size * MIB) {
            let (near, far) = tablespace_defaults(limit, None, 0);
            let left = limit - near - far;
            assert!(near > far && left >= process_bytes(limit), "{limit}: {near} and {far}");
            assert!(left >= (256 * MIB).min(limit / 2), "{limit}: {left} left");
            // What is given leaves less to the other, down to a fiftieth of the limit.
            let given = limit / 10 * 8;
            let rest = (limit - process_bytes(limit)).saturating_sub(given).max(limit / 50);
            let (_, far) = tablespace_defaults(limit, Some(given), 0);
            assert!(far <= rest, "{limit}: {far}");
            let (near, _) = tablespace_defaults(limit, None, given);
            assert!(near <= rest, "{limit}: {near}");
        }
        // On a large machine nearly all is the tablespaces'.
        let (near, far) = tablespace_defaults(64_000 * MIB, None, 0);
        assert_eq!((near / (640 * MIB), far / (640 * MIB)), (59, 35));
        assert!(client_bytes_default(800 * MIB, 544 * MIB) >= 128 * MIB);
        assert_eq!(client_bytes_default(800 * MIB, 900 * MIB), CLIENT_BYTES_MIN);
    }
}
