//! Where a device is: `anon:`, `file:PATH`, `numa:N`, `dax:PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tidepool_base::{Error, Result, SqlState};

/// The kernel's own limit on node numbers (`MAX_NUMNODES` of the largest configuration).
pub(crate) const NUMA_NODE_MAX: u32 = 1023;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Anonymous private memory: local DRAM.
    Anon,
    /// A file mapped shared: tmpfs, fsdax, hugetlbfs.
    File(PathBuf),
    /// Anonymous memory bound to one NUMA node by the kernel's memory policy.
    Numa(u32),
    /// A device-DAX character device.
    Dax(PathBuf),
}

impl FromStr for Location {
    type Err = Error;

    /// 22023 for anything that is not one of the four forms.
    fn from_str(text: &str) -> Result<Location> {
        let invalid = |detail: String| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid device location: \"{text}\""))
                .with_detail(detail)
                .with_hint("Write anon:, file:PATH, numa:NODE or dax:PATH.")
        };
        let path = |rest: &str| {
            if rest.is_empty() {
                Err(invalid("The path is missing.".into()))
            } else if rest.contains('\0') {
                Err(invalid("A path holds no zero byte.".into()))
            } else {
                Ok(PathBuf::from(rest))
            }
        };
        let Some((kind, rest)) = text.trim().split_once(':') else {
            return Err(invalid("There is no colon after the kind of device.".into()));
        };
        match kind {
            "anon" if rest.is_empty() => Ok(Location::Anon),
            "anon" => Err(invalid("Nothing follows \"anon:\".".into())),
            "file" => Ok(Location::File(path(rest)?)),
            "dax" => Ok(Location::Dax(path(rest)?)),
            "numa" => match rest.parse::<u32>() {
                Ok(node) if node <= NUMA_NODE_MAX => Ok(Location::Numa(node)),
                _ => Err(invalid(format!("A NUMA node is a number from 0 to {NUMA_NODE_MAX}."))),
            },
            _ => Err(invalid(format!("There is no kind of device named \"{kind}\"."))),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Anon => f.write_str("anon:"),
            Location::File(path) => write!(f, "file:{}", path.display()),
            Location::Numa(node) => write!(f, "numa:{node}"),
            Location::Dax(path) => write!(f, "dax:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_and_shown() {
        for (text, location) in [
            ("anon:", Location::Anon),
            ("file:/dev/shm/far:1", Location::File("/dev/shm/far:1".into())),
            ("numa:2", Location::Numa(2)),
            ("dax:/dev/dax0.0", Location::Dax("/dev/dax0.0".into())),
        ] {
            assert_eq!(text.parse::<Location>().unwrap(), location);
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "anon", "anon:x", "file:", "dax:", "numa:", "numa:-1", "numa:1024", "tape:0", "/dev/shm/x"] {
            let error = text.parse::<Location>().unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{text}");
            assert!(error.hint().is_some());
        }
    }
}
