//! The configuration file, as it is written.

use super::space::SpaceSpec;
use super::{ClassConfig, cores, duration, split_names};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;
use tidepool_base::{ByteSize, Result};
use tidepool_device::{Location, Profile, Stripe};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileConfig {
    pub(super) data: Option<PathBuf>,
    #[serde(default)]
    pub(super) memory: FileMemory,
    #[serde(default)]
    pub(super) tablespace: Vec<FileTablespace>,
    #[serde(default)]
    pub(super) profile: Vec<Profile>,
    #[serde(default)]
    pub(super) log: FileLog,
    #[serde(default)]
    pub(super) server: FileServer,
    #[serde(default)]
    pub(super) workload: FileWorkload,
    #[serde(default)]
    pub(super) pool: FilePool,
    #[serde(default)]
    pub(super) settings: FileSettings,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileLog {
    pub(super) folder: Option<PathBuf>,
    pub(super) tablespace: Option<String>,
    pub(super) size: Option<Size>,
    pub(super) segment_size: Option<Size>,
    pub(super) checkpoint_timeout: Option<String>,
    pub(super) archive: Option<PathBuf>,
    pub(super) archive_timeout: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilePool {
    pub(super) location: Option<Place>,
    pub(super) machine: Option<u8>,
    pub(super) slice: Option<u8>,
    pub(super) name: Option<String>,
    pub(super) database: Option<String>,
    pub(super) guard: Option<bool>,
    pub(super) role: Option<String>,
    pub(super) copy_from: Option<PathBuf>,
    pub(super) host_timeout: Option<String>,
    pub(super) tier1_interval: Option<String>,
    pub(super) on_fenced: Option<String>,
    pub(super) switchover_drain: Option<String>,
    pub(super) fence_command: Option<String>,
    pub(super) reader_hold_max: Option<Size>,
    pub(super) route_reads: Option<bool>,
    pub(super) synchronous_standby_names: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileMemory {
    pub(super) limit: Option<Size>,
    pub(super) clients: Option<Size>,
    pub(super) last_level_cache: Option<Size>,
    pub(super) local_profile: Option<String>,
    pub(super) process: Option<String>,
    pub(super) near: Option<FileSpace>,
    pub(super) far: Option<FileSpace>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSpace {
    pub(super) location: Option<Place>,
    pub(super) size: Option<Size>,
    pub(super) profile: Option<String>,
    pub(super) huge_pages: Option<bool>,
    pub(super) populate: Option<Size>,
}

impl From<FileSpace> for SpaceSpec {
    fn from(space: FileSpace) -> SpaceSpec {
        SpaceSpec {
            location: space.location.map(|place| place.0),
            size_bytes: space.size.map(|size| size.0),
            profile: space.profile,
            huge_pages: space.huge_pages,
            populate_bytes: space.populate.map(|size| size.0),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTablespace {
    pub(super) name: String,
    pub(super) location: Place,
    pub(super) size: Option<Size>,
    pub(super) profile: Option<String>,
    pub(super) huge_pages: Option<bool>,
    pub(super) populate: Option<Size>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileServer {
    pub(super) listen: Option<String>,
    pub(super) socket_directory: Option<PathBuf>,
    pub(super) metrics: Option<String>,
    pub(super) tls_certificate: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_required: Option<bool>,
    pub(super) connections_max: Option<usize>,
    pub(super) superuser_reserved_connections: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileWorkload {
    #[serde(default)]
    pub(super) transactions: FileClass,
    #[serde(default)]
    pub(super) analytics: FileClass,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileClass {
    pub(super) running_max: Option<usize>,
    pub(super) queued_max: Option<usize>,
    pub(super) queue_timeout: Option<String>,
    pub(super) cores: Option<String>,
}

impl FileClass {
    pub(super) fn read(self) -> tidepool_base::Result<ClassConfig> {
        Ok(ClassConfig {
            running_max: self.running_max,
            queued_max: self.queued_max,
            queue_timeout: self.queue_timeout.as_deref().map(duration).transpose()?,
            cores: self.cores.as_deref().map_or(Ok(Vec::new()), cores)?,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSettings {
    pub(super) temp_tablespaces: Option<Names>,
    pub(super) default_tablespace: Option<String>,
    pub(super) statement_memory: Option<Size>,
    pub(super) threads: Option<usize>,
}

/// Bytes as a number, or as text with a unit.
pub(super) struct Size(pub(super) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map(|size: ByteSize| Size(size.0)).map_err(D::Error::custom),
        }
    }
}

/// One text, or a list of locations, each a text or a table with `location` and `weight`.
pub(super) struct Place(pub(super) Location);

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Place, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            List(Vec<Element>),
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Element {
            Text(String),
            Table { location: String, weight: Option<u32> },
        }
        let list = match Written::deserialize(deserializer)? {
            Written::Text(text) => return text.parse().map(Place).map_err(D::Error::custom),
            Written::List(list) => list,
        };
        let stripe = |element: Element| match element {
            Element::Text(text) => text.parse::<Stripe>(),
            Element::Table { location, weight } => {
                Ok(Stripe { location: location.parse()?, weight: weight.unwrap_or(1) })
            }
        };
        let stripes = list.into_iter().map(stripe).collect::<tidepool_base::Result<Vec<_>>>();
        stripes.and_then(Location::of_stripes).map(Place).map_err(D::Error::custom)
    }
}

pub(super) struct Names(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            List(Vec<String>),
            Text(String),
        }
        Ok(Names(match Written::deserialize(deserializer)? {
            Written::List(names) => names,
            Written::Text(text) => split_names(&text),
        }))
    }
}
