//! A tablespace of the configuration, part by part.

use super::{find_profile, invalid};
use tidepool_base::{ByteSize, Result};
use tidepool_device::{Location, Profile};
use tidepool_tablespace::TablespaceConfig;

/// A tablespace as written in file, environment or flags; what is left out comes from below.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SpaceSpec {
    pub(super) location: Option<Location>,
    pub(super) size_bytes: Option<u64>,
    pub(super) profile: Option<String>,
    pub(super) huge_pages: Option<bool>,
    pub(super) populate_bytes: Option<u64>,
}

impl SpaceSpec {
    /// `LOCATION,size=SIZE,profile=NAME,huge_pages=on,populate=SIZE`, parts in any order; a size alone will do. Several locations, each
    /// with its weight, are a list: `numa:0*3,numa:1*1,size=8GB,profile=none+NAME`. What belongs to a node follows it:
    /// `node:HOST:PORT,cache=SIZE,size=SIZE`.
    pub(super) fn parse(text: &str) -> Result<SpaceSpec> {
        let mut spec = SpaceSpec::default();
        let (mut locations, mut at_node): (Vec<&str>, Vec<&str>) = Default::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("size", size)) => spec.size_bytes = Some(size.parse::<ByteSize>()?.0),
                Some(("populate", size)) => spec.populate_bytes = Some(size.parse::<ByteSize>()?.0),
                Some(("profile", name)) => spec.profile = Some(name.trim().to_owned()),
                Some(("huge_pages", value)) => {
                    spec.huge_pages = Some(match value.trim() {
                        "on" | "true" | "yes" | "1" => true,
                        "off" | "false" | "no" | "0" => false,
                        other => return Err(invalid(format!("huge_pages must be on or off, not \"{other}\""))),
                    });
                }
                // Of the node that was named before.
                Some(("cache" | "token" | "policy", _))
                    if locations.last().is_some_and(|last| last.starts_with("node:")) =>
                {
                    at_node.push(part);
                }
                Some((key, _)) if !key.contains(':') => {
                    return Err(invalid(format!("unknown part \"{key}\""))
                        .with_hint("Write LOCATION,size=SIZE,profile=NAME,huge_pages=on,populate=SIZE."));
                }
                _ if part.starts_with(|c: char| c.is_ascii_digit()) => {
                    spec.size_bytes = Some(part.parse::<ByteSize>()?.0);
                }
                _ => locations.push(part),
            }
        }
        if !locations.is_empty() {
            let text = locations.join(", ");
            let options: String = at_node.iter().flat_map(|option| [",", option]).collect();
            spec.location = Some((text + &options).parse()?);
        }
        Ok(spec)
    }

    pub(super) fn merge(&mut self, over: SpaceSpec) {
        // A size belongs to a device: another location does not inherit it.
        if over.location.is_some() && over.location != self.location {
            self.size_bytes = None;
            self.populate_bytes = None;
        }
        self.location = over.location.or(self.location.take());
        self.size_bytes = over.size_bytes.or(self.size_bytes);
        self.profile = over.profile.or(self.profile.take());
        self.huge_pages = over.huge_pages.or(self.huge_pages);
        self.populate_bytes = over.populate_bytes.or(self.populate_bytes);
    }

    pub(super) fn build(
        &self,
        name: &str,
        size_default: Option<u64>,
        profiles: &[Profile],
    ) -> Result<TablespaceConfig> {
        let location = self.location.clone().unwrap_or(Location::Anon);
        let (profile, profiles) = match self.profile.as_deref() {
            None => (None, Vec::new()),
            Some(wanted) => profiles_of(wanted, &location, profiles)?,
        };
        let sized = location.is_anonymous();
        if self.size_bytes == Some(0) {
            return Err(invalid(format!("tablespace \"{name}\" cannot have size 0")));
        }
        let config = TablespaceConfig {
            name: name.to_owned(),
            size_bytes: self.size_bytes.or(if sized { size_default } else { None }),
            location,
            profile,
            profiles,
            huge_pages: self.huge_pages.unwrap_or(true),
            populate_bytes: self.populate_bytes.unwrap_or(0),
        };
        config.check_populate()?;
        Ok(config)
    }
}

pub(super) fn profiles_of(
    text: &str,
    location: &Location,
    own: &[Profile],
) -> Result<(Option<Profile>, Vec<Option<Profile>>)> {
    let find = |name: &str| match name.trim() {
        "none" => Ok(None),
        name => find_profile(own, name).map(Some),
    };
    if !text.contains('+') || own.iter().any(|profile| profile.name == text) {
        return Ok((find(text)?, Vec::new()));
    }
    let profiles = text.split('+').map(find).collect::<Result<Vec<_>>>()?;
    let parts = location.stripes().len();
    if profiles.len() != parts {
        return Err(invalid(format!("profile names {} for {parts} locations: \"{text}\"", profiles.len())));
    }
    Ok((None, profiles))
}
