//! Who uses a node's memory.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tidepool_base::{Error, Result};
use tidepool_wire::{Epoch, Identity};

/// The file of a data folder that has its identity at nodes, and the last epoch.
const FILE: &str = "NODE";

/// A process of a database, as memory nodes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The same in each process of the database.
    pub database: Identity,
    /// Greater in each than in the one before.
    pub epoch: Epoch,
    /// This process.
    pub client: Identity,
    /// Where files of it go.
    pub folder: PathBuf,
}

impl Tenant {
    /// The next process of the database that lives in `folder`. Each call is the next one.
    pub fn next_of(folder: &Path) -> Result<Tenant> {
        let path = folder.join(FILE);
        let failed =
            |action: &str, error: &std::io::Error| Error::io(format_args!("{action} \"{}\"", path.display()), error);
        let about = fs::metadata(folder).map_err(|error| failed("read", &error))?;
        let place = format!("{:x}.{:x}", about.dev(), about.ino());
        let known = match fs::read_to_string(&path) {
            Ok(text) => parse(&text, &place),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read", &error)),
        };
        let (database, epoch) = match known {
            Some((database, epoch)) => (database, epoch + 1),
            None => (Identity::random()?, 1),
        };
        // Durable before a node is told: no two processes have the same epoch.
        let text = format!("{database:?} {epoch} {place}\n");
        let new = folder.join(format!("{FILE}.new"));
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            fs::File::open(folder)?.sync_all()
        };
        write().map_err(|error| failed("write", &error))?;
        Ok(Tenant { database, epoch: Epoch(epoch), client: Identity::random()?, folder: folder.to_owned() })
    }

    /// A database that no other process will know of.
    pub fn passing() -> Result<Tenant> {
        Ok(Tenant {
            database: Identity::random()?,
            epoch: Epoch(1),
            client: Identity::random()?,
            folder: std::env::temp_dir(),
        })
    }

    /// Numbers of connections that no other connection of the process has. Returns the first.
    pub(crate) fn take_lanes(count: u32) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        NEXT.fetch_add(count, Ordering::Relaxed)
    }
}

/// Identity and epoch, if the text is of the folder at `place`: a copy of a folder is another database.
fn parse(text: &str, place: &str) -> Option<(Identity, u64)> {
    let mut words = text.split_whitespace();
    let identity = words.next().filter(|word| word.len() == 32)?;
    let identity = u128::from_str_radix(identity, 16).ok()?;
    let epoch = words.next()?.parse().ok()?;
    (words.next() == Some(place)).then(|| (Identity(identity.to_be_bytes()), epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_of_a_folder_has_the_next_epoch_and_a_copy_is_another_database() {
        let folder = std::env::temp_dir().join(format!("tidepool tenant {}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (first, second) = (Tenant::next_of(&folder).unwrap(), Tenant::next_of(&folder).unwrap());
        assert_eq!((first.epoch, second.epoch), (Epoch(1), Epoch(2)));
        assert_eq!(first.database, second.database);
        assert_ne!(first.client, second.client);
        let copy = folder.join("copy");
        fs::create_dir(&copy).unwrap();
        fs::copy(folder.join(FILE), copy.join(FILE)).unwrap();
        let other = Tenant::next_of(&copy).unwrap();
        assert_ne!(other.database, first.database);
        // A damaged file begins anew.
        fs::write(folder.join(FILE), "nonsense").unwrap();
        assert_eq!(Tenant::next_of(&folder).unwrap().epoch, Epoch(1));
        fs::remove_dir_all(&folder).unwrap();
    }
}
