//! Giving up a log that cannot be read.

use crate::Config;
use crate::durability::check::{check_log, open_folder};
use crate::durability::log_home::{MARK, configured_folder, folder_of};
use crate::durability::storage::{LogPlace, Manifest};
use std::path::{Path, PathBuf};
use tidepool_base::{Error, Result, SqlState};
use tidepool_log::FileDevice;

/// Gives the log of a data folder up, which no process uses: the next start goes on from the last checkpoint, with a new log.
/// Its files are put aside; where they went is returned. 55000 if it can be read, unless `force`d.
pub fn reset_log(config: &Config, force: bool) -> Result<Option<PathBuf>> {
    let (storage, manifest) = open_folder(config)?;
    if !force && check_log(config, &storage, &manifest).faults.is_empty() {
        return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "the log can be read, and is not given up")
            .with_detail("A server that is started reads it.")
            .with_hint("Use --force to give up what was committed since the last checkpoint."));
    }
    let folder = match manifest.log.as_ref().map(|log| &log.place) {
        Some(LogPlace::Folder(folder)) => Some(folder_of(folder.as_deref(), &storage)),
        Some(LogPlace::Memory(_)) => None,
        Some(LogPlace::Pool(copy)) => {
            Some(folder_of(configured_folder(config).as_deref(), &storage).join(&copy.folder))
        }
        None => Some(folder_of(configured_folder(config).as_deref(), &storage)),
    };
    // First: from now on there is none.
    storage.write_manifest(Manifest { identity: None, log: None, ..manifest })?;
    folder.map_or(Ok(None), |folder| put_aside(&folder))
}

/// Moves a log's files into a new folder beside them.
fn put_aside(folder: &Path) -> Result<Option<PathBuf>> {
    let failed = |path: &Path, error: &std::io::Error| Error::io(format_args!("move \"{}\"", path.display()), error);
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .filter(|path| {
            path.extension().is_some_and(|it| it == "log") || path.ends_with(MARK) || path.ends_with(FileDevice::NOTES)
        })
        .collect();
    if files.is_empty() {
        return Ok(None);
    }
    let aside = (1..).map(|number| folder.join(format!("lost-{number}"))).find(|path| !path.exists());
    let aside = aside.ok_or_else(|| Error::internal("no name is free"))?;
    std::fs::create_dir(&aside).map_err(|error| failed(&aside, &error))?;
    for file in files {
        let to = aside.join(file.file_name().unwrap_or_default());
        std::fs::rename(&file, to).map_err(|error| failed(&file, &error))?;
    }
    Ok(Some(aside))
}
