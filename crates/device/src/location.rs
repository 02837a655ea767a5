//! Where a device is: `anon:`, `file:PATH`, `numa:N`, `dax:PATH`, `paged:CACHE:LOCATION`, `node:ADDRESS,cache=SIZE`, or
//! several of the first four.
//!
//! A memory node's address is `HOST:PORT` or `unix:PATH`. What follows it are `cache=SIZE` or `cache=SHARE%`,
//! `token=FILE` where the node was given one, and `policy=managed` or `policy=os`, in any order.
//!
//! Several are written as a list, each with its weight (one, if it is left out): `numa:0*3, numa:1*1`. A comma starts
//! another location only where the name of a kind and a colon follow, so a path may hold commas; in a list, one that ends in
//! `*` and digits, or holds a comma and such a name, is written in double quotes with its kind: `"file:/a*3"*1, anon:`.

use crate::remote::{NodeAddress, NodeSettings, Policy};
use crate::topology;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tidepool_base::{ByteSize, Error, Result, SqlState};

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
    /// Pages that a remote node holds, with a bounded local cache. `remote` is this machine's memory that stands for the
    /// remote node's: `Anon` or `Numa`.
    Paged { cache: CacheSize, remote: Box<Location> },
    /// Pages of a memory node, over the network, with a bounded local cache.
    Node { node: Box<NodeSettings>, cache: CacheSize },
    /// Extents of the pool that the process is a host of, leased as they are needed.
    Pool,
    /// Several of the others, at least two, none of them paged, of a node or of a pool: stripes of memory go to each by its weight.
    Striped(Vec<Stripe>),
}

/// One of several locations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stripe {
    pub location: Location,
    /// Stripes that it has of as many as the weights of all add up to. From 1 to [`Stripe::WEIGHT_MAX`].
    pub weight: u32,
}

impl Stripe {
    /// Beyond, stripes would be so many that a device comes in after gigabytes.
    pub const WEIGHT_MAX: u32 = 100;
}

impl Location {
    /// Whether its memory is farther than the processors' own by what it is: a DAX device, a node without processors, pages of another
    /// machine. Of several locations, whether any is.
    pub fn is_far(&self) -> bool {
        match self {
            // Of a pool, its devices say it.
            Location::Anon | Location::File(_) | Location::Pool => false,
            Location::Numa(node) => topology::is_memory_alone(*node),
            Location::Dax(_) | Location::Paged { .. } | Location::Node { .. } => true,
            Location::Striped(stripes) => stripes.iter().any(|stripe| stripe.location.is_far()),
        }
    }

    /// Memory of this machine that nobody else can name: it takes the size that is asked for, and can be had twice.
    pub fn is_anonymous(&self) -> bool {
        match self {
            Location::Anon | Location::Numa(_) | Location::Paged { .. } => true,
            Location::File(_) | Location::Dax(_) | Location::Node { .. } | Location::Pool => false,
            Location::Striped(stripes) => stripes.iter().all(|stripe| stripe.location.is_anonymous()),
        }
    }

    /// The size that is given for it, which it cannot do without. 22023 when there is none.
    pub fn require_size(&self, size: Option<u64>) -> Result<u64> {
        size.ok_or_else(|| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("a size is required for device \"{self}\""))
                .with_hint("Write it as in size=4GB.")
        })
    }

    /// All of several, or the one.
    pub fn stripes(&self) -> Vec<Stripe> {
        match self {
            Location::Striped(stripes) => stripes.clone(),
            one => vec![Stripe { location: one.clone(), weight: 1 }],
        }
    }

    /// What `stripes` shows. 22023 when there is none, 0A000 for paged memory, a node or a pool among several.
    pub fn of_stripes(mut stripes: Vec<Stripe>) -> Result<Location> {
        if let Some(stripe) = stripes.iter().find(|stripe| !(1..=Stripe::WEIGHT_MAX).contains(&stripe.weight)) {
            return Err(invalid_weight(&stripe.location.to_string()));
        }
        match stripes.len() {
            0 => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "a location is missing")),
            1 => Ok(stripes.remove(0).location),
            _ => {
                let is_alone = |location: &Location| {
                    matches!(location, Location::Paged { .. } | Location::Node { .. } | Location::Pool)
                };
                match stripes.iter().find(|stripe| is_alone(&stripe.location)) {
                    Some(alone) => {
                        Err(Error::unsupported(format!("\"{}\" cannot be one of several locations", alone.location)))
                    }
                    None => Ok(Location::Striped(stripes)),
                }
            }
        }
    }
}

/// How large the local cache of paged memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheSize {
    Bytes(u64),
    /// Of all the paged memory, 1 to 100.
    Percent(u8),
}

impl CacheSize {
    /// Of paged memory of `size` bytes.
    pub fn bytes_of(self, size: u64) -> u64 {
        match self {
            CacheSize::Bytes(bytes) => bytes,
            CacheSize::Percent(percent) => (u128::from(size) * u128::from(percent) / 100) as u64,
        }
    }
}

impl FromStr for CacheSize {
    type Err = Error;

    /// A size such as `256MB`, or a share such as `25%`. 22023 for anything else.
    fn from_str(text: &str) -> Result<CacheSize> {
        let Some(share) = text.trim().strip_suffix('%') else {
            return Ok(CacheSize::Bytes(text.parse::<ByteSize>()?.0));
        };
        match share.trim().parse::<u8>() {
            Ok(percent) if (1..=100).contains(&percent) => Ok(CacheSize::Percent(percent)),
            _ => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid share: \"{text}\""))
                .with_hint("Write a whole number from 1 to 100, as in 25%.")),
        }
    }
}

impl fmt::Display for CacheSize {
    /// What `FromStr` reads as the same value: a `ByteSize` would be rounded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CacheSize::Percent(percent) => write!(f, "{percent}%"),
            CacheSize::Bytes(bytes) => {
                let units =
                    [(ByteSize::TIB, "TB"), (ByteSize::GIB, "GB"), (ByteSize::MIB, "MB"), (ByteSize::KIB, "kB")];
                match units.iter().find(|(scale, _)| bytes > 0 && bytes.is_multiple_of(*scale)) {
                    Some((scale, unit)) => write!(f, "{}{unit}", bytes / scale),
                    None => write!(f, "{bytes}B"),
                }
            }
        }
    }
}

const KINDS: [&str; 7] = ["anon:", "file:", "numa:", "dax:", "paged:", "node:", "pool:"];

fn starts_location(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with('"') || KINDS.iter().any(|kind| text.starts_with(kind))
}

/// A list's elements.
fn elements(text: &str) -> Vec<&str> {
    let (mut elements, mut start, mut quoted) = (Vec::new(), 0, false);
    for (position, character) in text.char_indices() {
        match character {
            '"' if quoted || text[start..position].trim().is_empty() => quoted = !quoted,
            ',' if !quoted && starts_location(&text[position + 1..]) => {
                elements.push(text[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    elements.push(text[start..].trim());
    elements
}

fn is_number(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn invalid_weight(text: &str) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid weight of a location: \"{text}\""))
        .with_detail(format!("A weight is a whole number from 1 to {}.", Stripe::WEIGHT_MAX))
}

impl FromStr for Stripe {
    type Err = Error;

    /// A location, `*` and its weight, or a location alone. 22023 for anything else.
    fn from_str(text: &str) -> Result<Stripe> {
        let text = text.trim();
        let (location, weight) = match text.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            Some((location, "")) => (location, None),
            Some((location, rest)) => {
                (location, Some(rest.trim_start().strip_prefix('*').ok_or_else(|| invalid_weight(text))?))
            }
            None => match text.rsplit_once('*') {
                Some((location, weight)) if is_number(weight) => (location.trim_end(), Some(weight)),
                _ => (text, None),
            },
        };
        let weight = match weight {
            None => 1,
            Some(weight) => weight.trim().parse::<u32>().map_err(|_| invalid_weight(text))?,
        };
        if !(1..=Stripe::WEIGHT_MAX).contains(&weight) {
            return Err(invalid_weight(text));
        }
        Ok(Stripe { location: one(location)?, weight })
    }
}

impl fmt::Display for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = self.location.to_string();
        let weighted = location.rsplit_once('*').is_some_and(|(_, rest)| is_number(rest));
        if weighted || elements(&location).len() > 1 {
            write!(f, "\"{location}\"*{}", self.weight)
        } else {
            write!(f, "{location}*{}", self.weight)
        }
    }
}

impl FromStr for Location {
    type Err = Error;

    /// 22023 for anything that is not one of the forms.
    fn from_str(text: &str) -> Result<Location> {
        let elements = elements(text);
        match elements.as_slice() {
            [only] if !only.starts_with('"') => one(only),
            _ => Location::of_stripes(elements.into_iter().map(str::parse).collect::<Result<_>>()?),
        }
    }
}

/// One location, without a weight.
fn one(text: &str) -> Result<Location> {
    let invalid = |detail: String| {
        Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid device location: \"{text}\""))
            .with_detail(detail)
            .with_hint(
                "Write anon:, file:PATH, numa:NODE, dax:PATH, paged:CACHE:anon:, node:HOST:PORT,cache=SIZE or pool:.",
            )
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
        "pool" if rest.is_empty() => Ok(Location::Pool),
        "pool" => Err(invalid("Nothing follows \"pool:\": the server's configuration names the pool.".into())),
        "file" => Ok(Location::File(path(rest)?)),
        "dax" => Ok(Location::Dax(path(rest)?)),
        "numa" => match rest.parse::<u32>() {
            Ok(node) if node <= NUMA_NODE_MAX => Ok(Location::Numa(node)),
            _ => Err(invalid(format!("A NUMA node is a number from 0 to {NUMA_NODE_MAX}."))),
        },
        "paged" => {
            let Some((cache, remote)) = rest.split_once(':') else {
                return Err(invalid(
                    "Paged memory needs the size of its cache and what stands for the remote node.".into(),
                )
                .with_hint("Write paged:CACHE:anon: or paged:CACHE:numa:NODE, as in paged:256MB:anon:."));
            };
            let cache =
                cache.parse().map_err(|error: Error| invalid(format!("The cache is no size: {}.", error.message())))?;
            match remote.parse()? {
                remote @ (Location::Anon | Location::Numa(_)) => {
                    Ok(Location::Paged { cache, remote: Box::new(remote) })
                }
                _ => Err(invalid("Pages are held in anon: or numa:NODE.".into())),
            }
        }
        "node" => at_node(rest).map_err(|detail| {
            invalid(detail).with_hint("Write node:HOST:PORT,cache=SIZE, as in node:10.0.0.7:7777,cache=256MB.")
        }),
        _ => Err(invalid(format!("There is no kind of device named \"{kind}\"."))),
    }
}

/// What follows `node:`. Or why that is none.
fn at_node(text: &str) -> std::result::Result<Location, String> {
    let mut parts = text.split(',').map(str::trim);
    let address = parts
        .next()
        .unwrap_or_default()
        .parse::<NodeAddress>()
        .map_err(|error| error.detail().map_or_else(|| error.message().to_owned(), str::to_owned))?;
    let (mut cache, mut token, mut policy) = (None, None, None);
    for part in parts {
        match part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
            Some(("cache", _)) if cache.is_some() => return Err("The cache is given twice.".into()),
            Some(("cache", size)) => {
                let size = size.parse::<CacheSize>();
                cache = Some(size.map_err(|error| format!("The cache is no size: {}.", error.message()))?);
            }
            Some(("token", _)) if token.is_some() => return Err("The token is given twice.".into()),
            Some(("token", "")) => return Err("The token's file is missing.".into()),
            Some(("token", path)) => token = Some(PathBuf::from(path)),
            Some(("policy", _)) if policy.is_some() => return Err("The policy is given twice.".into()),
            Some(("policy", name)) => {
                let named = [Policy::Managed, Policy::Os].into_iter().find(|policy| policy.name() == name);
                policy = Some(named.ok_or("The policy is managed or os.")?);
            }
            _ => return Err(format!("\"{part}\" is none of cache=SIZE, policy=NAME and token=FILE.")),
        }
    }
    let cache = cache.ok_or("The size of the local cache is missing.")?;
    let node = NodeSettings { address, token, policy: policy.unwrap_or_default() };
    Ok(Location::Node { node: Box::new(node), cache })
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Anon => f.write_str("anon:"),
            Location::Pool => f.write_str("pool:"),
            Location::File(path) => write!(f, "file:{}", path.display()),
            Location::Numa(node) => write!(f, "numa:{node}"),
            Location::Dax(path) => write!(f, "dax:{}", path.display()),
            Location::Paged { cache, remote } => write!(f, "paged:{cache}:{remote}"),
            Location::Node { node, cache } => {
                write!(f, "node:{},cache={cache}", node.address)?;
                if node.policy != Policy::default() {
                    write!(f, ",policy={}", node.policy.name())?;
                }
                match &node.token {
                    Some(token) => write!(f, ",token={}", token.display()),
                    None => Ok(()),
                }
            }
            Location::Striped(stripes) => {
                for (index, stripe) in stripes.iter().enumerate() {
                    write!(f, "{}{stripe}", if index == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paged(cache: CacheSize, remote: Location) -> Location {
        Location::Paged { cache, remote: Box::new(remote) }
    }

    #[test]
    fn a_cache_is_a_size_or_a_share() {
        assert_eq!("1.5 GB".parse::<CacheSize>().unwrap(), CacheSize::Bytes(3 << 29));
        assert_eq!(CacheSize::Bytes(3 << 29).to_string(), "1536MB");
        assert_eq!(CacheSize::Percent(25).bytes_of(1 << 30), 256 << 20);
        assert_eq!(CacheSize::Percent(100).bytes_of(u64::MAX), u64::MAX);
        assert_eq!(CacheSize::Bytes(5).bytes_of(1 << 30), 5);
    }

    #[test]
    fn locations_are_read_and_shown() {
        for (text, location) in [
            ("anon:", Location::Anon),
            ("file:/dev/shm/far:1", Location::File("/dev/shm/far:1".into())),
            ("numa:2", Location::Numa(2)),
            ("pool:", Location::Pool),
            ("dax:/dev/dax0.0", Location::Dax("/dev/dax0.0".into())),
            ("paged:256MB:anon:", paged(CacheSize::Bytes(256 << 20), Location::Anon)),
            ("paged:1048577B:numa:1", paged(CacheSize::Bytes((1 << 20) + 1), Location::Numa(1))),
            ("paged:25%:anon:", paged(CacheSize::Percent(25), Location::Anon)),
        ] {
            assert_eq!(text.parse::<Location>().unwrap(), location);
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn a_node_has_an_address_and_a_cache() {
        let node = |address: &str, token: Option<&str>, cache| Location::Node {
            node: Box::new(NodeSettings {
                address: address.parse().unwrap(),
                token: token.map(PathBuf::from),
                policy: if address.ends_with('5') { Policy::Os } else { Policy::Managed },
            }),
            cache,
        };
        for (text, shown, location) in [
            (
                "node:10.0.0.7:7777,cache=256MB",
                "node:10.0.0.7:7777,cache=256MB",
                node("10.0.0.7:7777", None, CacheSize::Bytes(256 << 20)),
            ),
            (
                "node:[::1]:7777, token=/etc/token , cache = 10%",
                "node:[::1]:7777,cache=10%,token=/etc/token",
                node("[::1]:7777", Some("/etc/token"), CacheSize::Percent(10)),
            ),
            (
                "node:host:7775,policy=os,cache=1MB,token=/t",
                "node:host:7775,cache=1MB,policy=os,token=/t",
                node("host:7775", Some("/t"), CacheSize::Bytes(1 << 20)),
            ),
            (
                "node:unix:/run/node,policy=managed,cache=64MB",
                "node:unix:/run/node,cache=64MB",
                node("unix:/run/node", None, CacheSize::Bytes(64 << 20)),
            ),
        ] {
            assert_eq!(text.parse::<Location>().unwrap(), location);
            assert_eq!((location.to_string().as_str(), shown.parse::<Location>()), (shown, Ok(location)));
        }
        for (text, detail) in [
            ("node:", "The port is missing."),
            ("node:host,cache=64MB", "The port is missing."),
            ("node:host:70000,cache=64MB", "A port is a number from 0 to 65535."),
            ("node:host:7777", "The size of the local cache is missing."),
            ("node:host:7777,cache=lots", "The cache is no size: invalid size: \"lots\"."),
            ("node:host:7777,cache=0%", "The cache is no size: invalid share: \"0%\"."),
            ("node:host:7777,cache=1MB,cache=2MB", "The cache is given twice."),
            ("node:host:7777,cache=1MB,token=", "The token's file is missing."),
            (
                "node:host:7777,cache=1MB,colour=red",
                "\"colour=red\" is none of cache=SIZE, policy=NAME and token=FILE.",
            ),
            ("node:host:7777,cache=1MB,policy=best", "The policy is managed or os."),
            ("node:host:7777,cache=1MB,policy=os,policy=os", "The policy is given twice."),
        ] {
            let error = text.parse::<Location>().unwrap_err();
            assert_eq!((error.code(), error.detail()), (SqlState::INVALID_PARAMETER_VALUE, Some(detail)), "{text}");
            assert!(error.hint().unwrap().contains("node:HOST:PORT,cache=SIZE"), "{text}");
        }
        let several = "anon:, node:host:7777,cache=1MB".parse::<Location>().unwrap_err();
        assert_eq!(several.code(), SqlState::FEATURE_NOT_SUPPORTED);
    }

    #[test]
    fn several_locations_have_weights() {
        let stripe = |location: &str, weight| Stripe { location: one(location).unwrap(), weight };
        for (text, shown, stripes) in [
            ("numa:0*3, numa:1", "numa:0*3, numa:1*1", vec![stripe("numa:0", 3), stripe("numa:1", 1)]),
            ("anon:,anon: * 2", "anon:*1, anon:*2", vec![stripe("anon:", 1), stripe("anon:", 2)]),
            // Commas and stars of paths.
            (
                "file:/a,b*2,dax:/dev/dax0.0",
                "file:/a,b*2, dax:/dev/dax0.0*1",
                vec![stripe("file:/a,b", 2), stripe("dax:/dev/dax0.0", 1)],
            ),
            (
                "\"file:/a*3\"*2, \"file:/x, anon:\"",
                "\"file:/a*3\"*2, \"file:/x, anon:\"*1",
                vec![stripe("file:/a*3", 2), Stripe { location: Location::File("/x, anon:".into()), weight: 1 }],
            ),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location, Location::Striped(stripes), "{text}");
            assert_eq!(location.to_string(), shown);
            assert_eq!(shown.parse::<Location>().unwrap(), location);
        }
        // One location has no weight, and its path may end as it likes.
        assert_eq!("file:/a*3".parse::<Location>().unwrap(), Location::File("/a*3".into()));
        assert_eq!("file:/a, b".parse::<Location>().unwrap(), Location::File("/a, b".into()));
        assert_eq!("\"file:/a, anon:\"".parse::<Location>().unwrap(), Location::File("/a, anon:".into()));
        for text in ["anon:*0, anon:", "anon:*101, anon:", "anon:*2x, anon:", "anon:, nonsense", "numa:0*2"] {
            assert_eq!(text.parse::<Location>().unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE, "{text}");
        }
        let paged = "anon:, paged:64MB:anon:".parse::<Location>().unwrap_err();
        assert_eq!(paged.code(), SqlState::FEATURE_NOT_SUPPORTED);
        let pool = "pool:*2, anon:".parse::<Location>().unwrap_err();
        assert_eq!(pool.code(), SqlState::FEATURE_NOT_SUPPORTED);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "anon",
            "anon:x",
            "pool:x",
            "file:",
            "dax:",
            "numa:",
            "numa:-1",
            "numa:1024",
            "tape:0",
            "/dev/shm/x",
            "paged:",
            "paged:64MB",
            "paged:anon:",
            "paged:64MB:",
            "paged:0%:anon:",
            "paged:101%:anon:",
            "paged:64XB:anon:",
            "paged:64MB:file:/dev/shm/x",
            "paged:64MB:paged:64MB:anon:",
        ] {
            let error = text.parse::<Location>().unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{text}");
            assert!(error.hint().is_some());
        }
    }
}
